"""Pictures of the comparison of methods: one method among the others, and searches by what they end with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

Row = Mapping[str, Any]
_LEFT, _WIDE, _STEP, _TOP = 250, 380, 18, 34
_LOWEST_ERROR, _HIGHEST_ERROR = (
    0.01,
    3.0,
)  # mean relative error at the ends of the axis; what is beyond stands at its end
_TICKS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_OWN, _OTHER = "#c2410c", "#b8b8b8"


def among_others(method: str, lines: Sequence[Row]) -> str:
    """Mean errors of step times, a row for each source and split: this method's, and in grey the others'."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for line in lines:
        if line["target"] == "step_time" and line["mean"] is not None:
            rows.setdefault((line["source"], line["split"]), {})[line["method"]] = line["mean"]
    shown = {f"{source}, {split}": those for (source, split), those in rows.items() if method in those}
    drawn = list(_axis(len(shown), _TICKS, _LOWEST_ERROR, _HIGHEST_ERROR, lambda v: f"{v:.0%}"))
    for row, (label, those) in enumerate(shown.items()):
        y = _TOP + row * _STEP
        drawn.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        for name in sorted(those, key=lambda n: n == method):
            x, colour = _place(those[name], _LOWEST_ERROR, _HIGHEST_ERROR), _OWN if name == method else _OTHER
            drawn.append(
                f'<circle cx="{x:.1f}" cy="{y}" r="4.5" fill="{colour}"><title>{escape(name)}: {those[name]:.1%}</title></circle>'
            )
    return _svg(drawn, len(shown), f"Mean error of step times: {method}, and the other methods in grey")


def searched(rows: Sequence[Row]) -> str:
    """How much worse than the best each search ends, a row a table."""
    least, most = 0.001, 1.0
    tables: dict[str, dict[str, float]] = {}
    for found in rows:
        if found["regret"] is not None:
            tables.setdefault(f"{found['source']}: {found['table']}", {})[found["method"]] = found["regret"]
    drawn = list(
        _axis(len(tables), (0.001, 0.01, 0.05, 0.2, 1.0), least, most, lambda v: f"{v:.1%}" if v < 0.01 else f"{v:.0%}")
    )
    for row, (label, those) in enumerate(tables.items()):
        y = _TOP + row * _STEP
        drawn.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        for name, regret in those.items():
            colour = "#2f6fab" if name == "CherryPick" else _OWN
            drawn.append(
                f'<circle cx="{_place(regret, least, most):.1f}" cy="{y}" r="4.5" fill="{colour}">'
                f"<title>{escape(name)}: {regret:.1%}</title></circle>"
            )
    return _svg(
        drawn, len(tables), "Worse than the best by: CherryPick in blue, Foretell's first choice with no run in orange"
    )


def _place(value: float, least: float, most: float) -> float:
    share = math.log(min(max(value, least), most) / least) / math.log(most / least)
    return _LEFT + _WIDE * share


def _axis(rows: int, ticks: Sequence[float], least: float, most: float, show: Any) -> Iterator[str]:
    bottom = _TOP + rows * _STEP - _STEP / 2
    for tick in ticks:
        x = _place(tick, least, most)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{bottom}" stroke="#e4e4e4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{show(tick)}</text>'


def _svg(drawn: Sequence[str], rows: int, title: str) -> str:
    width, height = _LEFT + _WIDE + 30, _TOP + rows * _STEP + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#444444"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="16" font-weight="bold">{escape(title)}</text>'
        f"{''.join(drawn)}</svg>\n"
    )
