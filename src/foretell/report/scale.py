"""Scaling drawn: a table for the terminal, and a page with throughput over devices and where the time goes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from foretell.report import findings
from foretell.report.charts import Lane, stacked_bars, svg
from foretell.report.findings import Part
from foretell.report.page import caveats, document, figure, keys, table, write_page
from foretell.report.terminal import caveats_of, grid
from foretell.units import or_dash, show_bytes, show_rate, show_seconds, show_share

if TYPE_CHECKING:
    from foretell.forecasting.scale import ScalePoint

_HEADINGS = ("Devices", "Step", "Samples/s", "Efficiency", "Exposed", "Bubble", "Memory")
_WIDTH, _LEFT, _RIGHT, _BELOW = 720, 64, 16, 36


def scaling_table(points: Sequence[ScalePoint]) -> RenderableType:
    """In 80 columns; the plan, which differs in dp alone, is named above it."""
    rows = grid(*_HEADINGS)
    for point in points:
        rows.add_row(*_row(point))
    first, last = points[0].forecast, points[-1].forecast
    over = [Text("! does not fit", style="bold red")] if not all(p.forecast.memory.fits for p in points) else []
    return Group(
        Text(f"{first.workload} on up to {points[-1].devices:,} devices · {last.plan}", style="bold"),
        Text(" · ".join(findings.step_words(first)), style="dim"),
        Padding(rows, (1, 0)),
        *over,
        *caveats_of([point.forecast for point in points]),
    )


def _row(point: ScalePoint) -> tuple[str, ...]:
    f, step = point.forecast, point.forecast.step_time.seconds
    return (
        f"{point.devices:,}",
        show_seconds(step),
        or_dash(f.throughput.samples_per_second, show_rate),
        show_share(point.efficiency),
        show_share(f.exposed_communication.seconds / step),
        show_share(f.bubble.seconds / step),
        show_bytes(f.memory.total) + ("" if f.memory.fits else " !"),
    )


def write_scaling(points: Sequence[ScalePoint], path: str | os.PathLike[str]) -> None:
    write_page(scaling_page(points), path)


def scaling_page(points: Sequence[ScalePoint]) -> str:
    title = f"{points[0].forecast.workload} on up to {points[-1].devices:,} devices"
    first, last = points[0].forecast, points[-1].forecast
    description = escape(" · ".join([*findings.step_words(first), last.plan]))
    body = "\n".join(
        (
            f'<h1>{escape(title)}</h1>\n<p class="soft">{description}</p>',
            table(_HEADINGS, map(_row, points), wide=("Exposed", "Bubble")),
            scaling_figures(points),
            caveats(findings.weighty(findings.together(p.forecast for p in points))),
        )
    )
    return document(title, body, kind="scaling", footer="A forecast, before the job ran.")


def scaling_figures(points: Sequence[ScalePoint]) -> str:
    """For a page of somebody else's."""
    relative = f"Throughput per device, relative to that of {points[0].devices:,}."
    parts = {part.key: part.label for point in points for part in findings.time_parts(point.forecast)}
    figures = (
        figure("Throughput", "Over devices; the thin line is perfect scaling.", _throughput_chart(points)),
        figure("Efficiency", relative, _efficiency_chart(points)),
        figure("Where the step goes", "By number of devices.", _time_chart(points), keys(parts)),
    )
    return "\n".join(figures)


def _throughput_chart(points: Sequence[ScalePoint]) -> str:
    """Relative throughput over devices, both doubling from line to line."""
    ideal = [p.devices / points[0].devices for p in points]
    real = [p.efficiency * i for p, i in zip(points, ideal, strict=True)]
    height, steps = 320, max(len(points) - 1, 1)
    across, rise = (_WIDTH - _LEFT - _RIGHT) / steps, (height - _BELOW - 16) / steps

    def at(number: int, value: float) -> tuple[float, float]:
        return _LEFT + number * across, height - _BELOW - math.log2(max(value, 1.0)) * rise

    drawn = []
    for number, (point, value) in enumerate(zip(points, ideal, strict=True)):
        x, y = at(number, value)
        drawn.append(_label(x, height - 12, f"{point.devices:,}") + _gridline(y, f"{value:,.0f}×"))
    for name, values, width in (("perfect scaling", ideal, 1), ("forecast", real, 3)):
        places = " ".join("{:.1f},{:.1f}".format(*at(number, value)) for number, value in enumerate(values))
        line = f'points="{places}" fill="none" stroke="currentColor" stroke-width="{width}"'
        drawn.append(f"<polyline {line}><title>{name}</title></polyline>")
    for number, (point, value) in enumerate(zip(points, real, strict=True)):
        x, y = at(number, value)
        text = f"{point.devices:,} devices: {value:.1f} times, {show_share(point.efficiency)} efficient"
        dot = f'cx="{x:.1f}" cy="{y:.1f}" r="5" fill="currentColor"'
        drawn.append(f"<circle {dot}><title>{escape(text)}</title></circle>")
    return _chart("throughput over devices", height, drawn, points)


def _efficiency_chart(points: Sequence[ScalePoint]) -> str:
    """A bar for each number of devices, as high as its share of perfect scaling."""
    height = 200
    bottom, rise = height - _BELOW, height - _BELOW - 24
    across = (_WIDTH - _LEFT - _RIGHT) / len(points)
    most = max(1.0, *(point.efficiency for point in points))
    drawn = [_gridline(bottom - rise * share / most, f"{share * 100:.0f} %") for share in (0.0, 0.5, 1.0)]
    for number, point in enumerate(points):
        x, tall = _LEFT + (number + 0.2) * across, rise * point.efficiency / most
        middle, share = x + 0.3 * across, show_share(point.efficiency)
        place = f'x="{x:.1f}" y="{bottom - tall:.1f}" width="{0.6 * across:.1f}" height="{tall:.1f}"'
        tooltip = f"<title>{point.devices:,} devices: {share}</title>"
        drawn.append(f'<rect class="segment" {place} fill="var(--accent)">{tooltip}</rect>')
        drawn += [_label(middle, height - 12, f"{point.devices:,}"), _label(middle, bottom - tall - 6, share)]
    return _chart("efficiency over devices", height, drawn, points)


def _gridline(y: float, label: str) -> str:
    return (
        f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{label}</text>'
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    )


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{text}</text>'


def _chart(title: str, height: float, drawn: Sequence[str], points: Sequence[ScalePoint]) -> str:
    described = ", ".join(f"{p.devices:,} devices: {show_share(p.efficiency)}" for p in points)
    name = title.partition(" ")[0]
    return svg(_WIDTH, height, "".join(drawn), name=name, title=title, description=described, scaled=True)


def _time_chart(points: Sequence[ScalePoint]) -> str:
    lanes = []
    for point in points:
        step = point.forecast.step_time.seconds
        parts = [Part(key=p.key, label=p.label, amount=p.amount / step) for p in findings.time_parts(point.forecast)]
        lanes.append(Lane(label=f"{point.devices:,}", parts=parts))
    return stacked_bars(lanes, 1.0, show_share, name="time", title="Where the step goes", width=_WIDTH)
