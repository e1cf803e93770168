"""Scaling drawn: a table for the terminal, and a page with throughput over devices and where the time goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from foretell.errors import InputError
from foretell.report import findings
from foretell.report.charts import Lane, stacked_bars
from foretell.report.findings import Part, show_share
from foretell.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from foretell.forecasting.scale import ScalePoint

_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 320, 64, 36


def scaling_table(points: Sequence[ScalePoint]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for heading in ("Devices", "Plan", "Step", "Samples/s", "Efficiency", "Communication", "Bubble", "Memory"):
        table.add_column(heading, justify="left" if heading == "Plan" else "right")
    for point in points:
        f, step = point.forecast, point.forecast.step_time.seconds
        rate = f.throughput.samples_per_second
        table.add_row(
            f"{point.devices:,}", f.plan, show_seconds(step), "–" if rate is None else findings.show_rate(rate),
            show_share(point.efficiency), show_share(f.exposed_communication.seconds / step), show_share(f.bubble.seconds / step),
            show_bytes(f.memory.total) + ("" if f.memory.fits else ", does not fit"),
        )  # fmt: skip
    return table


def write_scaling(points: Sequence[ScalePoint], path: str | os.PathLike[str]) -> None:
    try:
        Path(path).write_text(scaling_page(points), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report cannot be written to {path}: {error.strerror}. Choose another file.") from None


def scaling_page(points: Sequence[ScalePoint]) -> str:
    first = points[0].forecast
    title = f"{first.workload} on up to {points[-1].devices:,} devices"
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)} · Foretell</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n"
        f"<figure><figcaption>Throughput over devices; the thin line is perfect scaling</figcaption>{throughput_chart(points)}</figure>\n"
        f"<figure><figcaption>Efficiency: throughput a device, relative to that of {points[0].devices:,}</figcaption>"
        f"{efficiency_chart(points)}</figure>\n"
        f"<figure><figcaption>Where the time of a step goes</figcaption>{_time_chart(points)}{_legend(points)}</figure>\n"
        "</main>\n</body>\n</html>\n"
    )


def throughput_chart(points: Sequence[ScalePoint]) -> str:
    """Relative throughput over devices, both doubling from line to line."""
    ideal = [p.devices / points[0].devices for p in points]
    real = [p.efficiency * i for p, i in zip(points, ideal, strict=True)]
    across = (_WIDTH - _LEFT - 16) / max(len(points) - 1, 1)
    rise = (_HEIGHT - _BELOW - 16) / max(len(points) - 1, 1)

    def at(number: int, value: float) -> tuple[float, float]:
        doublings = max(_log2(value), 0.0)
        return _LEFT + number * across, _HEIGHT - _BELOW - doublings * rise

    drawn = []
    for number, point in enumerate(points):
        x, y = at(number, ideal[number])
        drawn.append(f'<text x="{x:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{point.devices:,}</text>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{ideal[number]:,.0f}×</text>')
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for name, values, width in (("perfect scaling", ideal, 1), ("forecast", real, 3)):
        places = " ".join("{:.1f},{:.1f}".format(*at(i, v)) for i, v in enumerate(values))
        drawn.append(
            f'<polyline points="{places}" fill="none" stroke="currentColor" stroke-width="{width}"><title>{name}</title></polyline>'
        )
    for number, (point, value) in enumerate(zip(points, real, strict=True)):
        x, y = at(number, value)
        text = f"{point.devices:,} devices: {value:.1f} times, {show_share(point.efficiency)} efficient"
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="currentColor"><title>{escape(text)}</title></circle>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="throughput over devices">{"".join(drawn)}</svg>'
    )


def efficiency_chart(points: Sequence[ScalePoint]) -> str:
    """A bar for each number of devices, as high as its share of perfect scaling."""
    height, top = 200, 24
    across = (_WIDTH - _LEFT - 16) / len(points)
    rise = height - _BELOW - top
    most = max(1.0, *(point.efficiency for point in points))
    drawn = []
    for share in (0.0, 0.5, 1.0):
        y = height - _BELOW - rise * share / most
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{share * 100:.0f} %</text>')
    for number, point in enumerate(points):
        x, tall = _LEFT + (number + 0.2) * across, rise * point.efficiency / most
        middle = x + 0.3 * across
        drawn.append(
            f'<rect class="segment" x="{x:.1f}" y="{height - _BELOW - tall:.1f}" width="{0.6 * across:.1f}" height="{tall:.1f}" '
            f'style="fill:var(--accent)"><title>{point.devices:,} devices: {show_share(point.efficiency)}</title></rect>'
        )
        drawn.append(f'<text x="{middle:.0f}" y="{height - 12}" text-anchor="middle">{point.devices:,}</text>')
        said = show_share(point.efficiency)
        drawn.append(f'<text x="{middle:.0f}" y="{height - _BELOW - tall - 6:.0f}" text-anchor="middle">{said}</text>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="efficiency over devices">{"".join(drawn)}</svg>'
    )


def _log2(value: float) -> float:
    from math import log2

    return log2(value) if value > 0 else 0.0


def _time_chart(points: Sequence[ScalePoint]) -> str:
    lanes = []
    for point in points:
        step = point.forecast.step_time.seconds
        parts = [Part(key=p.key, label=p.label, amount=p.amount / step) for p in findings.time_parts(point.forecast)]
        lanes.append(Lane(label=f"{point.devices:,}", parts=parts))
    return stacked_bars(lanes, 1.0, show_share, name="time", title="Where the time of a step goes", width=_WIDTH)


def _legend(points: Sequence[ScalePoint]) -> str:
    parts = {part.key: part.label for point in points for part in findings.time_parts(point.forecast)}
    return "<p>" + " · ".join(
        f'<span style="color:var(--c-{escape(key)})">■</span> {escape(label)}' for key, label in parts.items()
    ) + "</p>"  # fmt: skip
