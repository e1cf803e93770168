"""Held-out error by seconds of measuring, a line for each method of design."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from foretell.report.charts import svg
from foretell.report.design import LogScale
from foretell.units import show_seconds

Curve = Sequence[Sequence[float]]  # seconds, error, lower and upper end of its spread
_TONES: Final = {"random": "#8a9097", "a-optimal": "#6a93b0", "d-optimal": "#c9775d"}


def error_curves(curves: Mapping[str, Curve], width: int = 720, height: int = 380) -> str:
    """A drawing of its own, on paper of its own: it is shown outside our pages."""
    every = [point for curve in curves.values() for point in curve]
    x = LogScale.over((seconds for seconds, *_ in every), 56, width - 110)
    y = LogScale.over((error for _, *errors in every for error in errors), height - 34, 20)
    parts = [f'<rect width="{width}" height="{height}" fill="#fdfcfa"/>', *_grid(x, y, width, height)]
    for method, curve in curves.items():
        tone = _TONES.get(method, "#1d2126")
        above = [f"{x(s):.1f},{y(high):.1f}" for s, _, _, high in curve]
        below = [f"{x(s):.1f},{y(low):.1f}" for s, _, low, _ in reversed(curve)]
        line = " ".join(f"{x(s):.1f},{y(error):.1f}" for s, error, _, _ in curve)
        parts.append(f'<polygon points="{" ".join(above + below)}" fill="{tone}" opacity="0.13"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{tone}" stroke-width="2.2"/>')
    ends = sorted((y(curve[-1][1]), method, x(curve[-1][0])) for method, curve in curves.items())
    last = -math.inf
    for place, method, at in ends:
        last = max(place, last + 15)  # labels keep apart
        tone = _TONES.get(method, "#1d2126")
        parts.append(f'<text x="{at + 8:.1f}" y="{last + 4:.1f}" fill="{tone}">{escape(method)}</text>')
    body = f'<g font-family="system-ui, sans-serif" font-size="12" fill="#5d646c">{"".join(parts)}</g>'
    title = "Held-out error by seconds of measuring"
    described = ", ".join(curves)
    return svg(width, height, body, name="error-curves", title=title, description=described, standalone=True)


def _grid(x: LogScale, y: LogScale, width: int, height: int) -> Iterator[str]:
    for value in _round_numbers(y):
        yield f'<line x1="56" x2="{width - 110}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e2ded5"/>'
        yield f'<text x="48" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0%}</text>'
    for value in _round_numbers(x):
        yield f'<text x="{x(value):.1f}" y="{height - 14}" text-anchor="middle">{show_seconds(value)}</text>'


def _round_numbers(scale: LogScale) -> list[float]:
    powers = range(math.floor(scale.least / math.log(10)), math.ceil(scale.most / math.log(10)) + 1)
    numbers = (m * 10.0**p for p in powers for m in (1, 1.5, 2, 3, 5, 7))
    return [n for n in numbers if scale.least <= math.log(n) <= scale.most]
