"""How forecasts with each profile fared as time went on: a line per profile, measured over predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from foretell.report.charts import svg
from foretell.report.page import figure, swatch, table
from foretell.serve.measured import Compared, drifts
from foretell.units import show_share

_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 260, 64, 34
_COLOURS: Final = ("--c-forward", "--c-communication", "--c-optimizer", "--c-bubble", "--c-host", "--c-stragglers")
_POINTS: Final = 12  # of a line
NONE: Final = "no profile"


def over_time(steps: Sequence[Compared]) -> str:
    """A chart and a table; `steps` are in any order."""
    groups: dict[str, list[Compared]] = {}
    for step in sorted(steps, key=lambda step: step.at):
        groups.setdefault(step.profile or NONE, []).append(step)
    caption = (
        "Measured over predicted, medians of steps in the order they were measured. On the middle line forecasts hold; "
        "above it steps take longer than was forecast."
    )
    listed = "".join(
        f"<li>{swatch(f'var({colour})')}{escape(name)}</li>" for name, colour in zip(groups, _COLOURS, strict=False)
    )
    rows = [(escape(name), *_figures(of)) for name, of in groups.items()]
    titles = ("Profile", "Steps", "Error", "Inside 90 %", "First half", "Second half", "Drifts")
    shown = table(titles, rows, wide=("First half", "Second half"))
    return figure("By profile, over time", caption, _chart(groups), f'<ul class="keys">{listed}</ul>{shown}')


def _error(steps: Sequence[Compared]) -> str:
    return show_share(statistics.median(abs(s.predicted / s.seconds - 1) for s in steps)) if steps else "–"


def _figures(steps: Sequence[Compared]) -> tuple[str, ...]:
    inside = [s.low <= s.seconds <= s.high for s in steps if s.low is not None and s.high is not None]
    middle = len(steps) // 2
    drifting = sum(course.is_drift for course in drifts(steps))
    return (
        f"{len(steps):,}", _error(steps), show_share(sum(inside) / len(inside)) if inside else "–",
        _error(steps[:middle]), _error(steps[middle:]), f"{drifting} of {len(drifts(steps))}",
    )  # fmt: skip


def _lines(steps: Sequence[Compared]) -> list[tuple[float, float]]:
    """(when, median ratio) of as many steps each."""
    each = math.ceil(len(steps) / _POINTS)
    return [
        (statistics.median(s.at for s in few), statistics.median(s.seconds / s.predicted for s in few))
        for few in (steps[first : first + each] for first in range(0, len(steps), each))
    ]


def _chart(groups: dict[str, list[Compared]]) -> str:
    lines = [_lines(of) for of in list(groups.values())[: len(_COLOURS)]]
    times = [at for line in lines for at, _ in line]
    most = max(1.1, *(max(ratio, 1 / ratio) for line in lines for _, ratio in line)) * 1.05
    begin, end = min(times), max(times)

    def x(at: float) -> float:
        share = (at - begin) / (end - begin) if end > begin else 0.5
        return _LEFT + 8 + share * (_WIDTH - _LEFT - 24)

    def y(ratio: float) -> float:
        return (_HEIGHT - _BELOW) * (0.5 - math.log(ratio) / math.log(most) / 2)

    drawn = []
    for ratio in (most, math.sqrt(most), 1.0, 1 / math.sqrt(most), 1 / most):
        kind = "axis" if ratio == 1.0 else "grid"
        drawn.append(f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio:.2f}×</text>')
    for at, anchor in ((begin, "start"), (end, "end")):
        day = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
        place = _LEFT if anchor == "start" else _WIDTH - 8
        drawn.append(f'<text x="{place}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{day}</text>')
    for line, colour in zip(lines, _COLOURS, strict=False):
        points = " ".join(f"{x(at):.1f},{y(ratio):.1f}" for at, ratio in line)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="var({colour})" stroke-width="2"/>')
        drawn += [f'<circle cx="{x(at):.1f}" cy="{y(r):.1f}" r="3.5" fill="var({colour})"/>' for at, r in line]
    described = "; ".join(f"{name}: {len(of)} steps" for name, of in groups.items())
    return svg(
        _WIDTH, _HEIGHT, "".join(drawn), name="over-time", title="Measured over predicted", description=described,
        scaled=True,
    )  # fmt: skip
