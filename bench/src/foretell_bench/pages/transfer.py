"""The page of `foretell bench transfer`: tables, and curves of the error over the number of step times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from foretell_bench.pages.benches import put_tables
from foretell_bench.sources.adapted import BARS
from foretell_bench.sources.settings import NUMBERS
from foretell_bench.tables.tailoring import curve, settings, tailored
from foretell_bench.tables.transfer import DESIGNED, OURS, RANDOM, STARTED, ZERO_SHOT, Line

_RIVALS: Final = {
    "zero-shot, scaled": "zero-shot × a factor", "roofline, scaled": "roofline × a factor",
    "ridge from scratch": "ridge", "trees from scratch": "trees", "structural-matrix trees": "structural-matrix trees",
    "ridge, pre-trained": "ridge, pre-trained", "structural-matrix trees, pre-trained": "matrix trees, pre-trained",
}  # fmt: skip
_TONES: Final = {
    OURS: ("a profile", "#c2410c"), "zero-shot, scaled": ("zero-shot × a factor", "#d9a05b"),
    "roofline, scaled": ("roofline × a factor", "#8a9097"), "ridge from scratch": ("ridge from scratch", "#2f6fab"),
    "structural-matrix trees": ("structural-matrix trees", "#5b8c5a"),
}  # fmt: skip
_PANEL, _ROW, _LEFT, _TOP, _ACROSS = 250, 190, 44, 54, 3
_LEAST_ERROR, _LARGEST_ERROR = 0.02, 1.0  # mean error at the ends of the axis; what is beyond stands at its end


def fill(page: Path, lines: Sequence[Line]) -> None:
    tables = {
        "errors": errors(lines), "started": errors(lines, STARTED), "rivals": rivals(lines), "blind": blind(lines),
        "intervals": intervals(lines), "tailoring": tailoring(lines),
    }  # fmt: skip
    put_tables(page, tables)
    if "<!-- table: errors -->" in page.read_text():
        page.with_suffix(".svg").write_text(curves(lines))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _with_bar(line: Line | None, bar: float | None) -> str:
    shown = _percent(line.mean if line else None)
    return f"**{shown}**" if line and bar is not None and round(line.mean, 3) > bar else shown


def errors(lines: Sequence[Line], method: str = OURS) -> str:
    """Random and designed draws next to each other; what misses its bar is bold."""
    rows = []
    for source, name, own in settings(lines):
        drawn, designed = curve(own, method, RANDOM), curve(own, method, DESIGNED)
        if not drawn:
            continue
        zero = curve(own, OURS)[0]
        cells = []
        for number in NUMBERS:
            bar = BARS[source].get(number)
            both = [_with_bar(each.get(number), bar) for each in (drawn, designed)]
            cells.append(" / ".join(both) if number in drawn else "")
        bars = ", ".join(f"{bar:.0%}" for bar in BARS[source].values())
        rows.append([f"`{source}` {name}", str(zero.rows), _percent(zero.mean), *cells, bars])
    return _table(["data", "rows", "zero-shot", *(f"after {n}" for n in NUMBERS), "bar"], rows)


def rivals(lines: Sequence[Line]) -> str:
    """Random draws at each number; the best of a row is bold."""
    rows = []
    for source, name, own in settings(lines):
        for number in NUMBERS:
            found = {method: curve(own, method).get(number) for method in (OURS, STARTED, *_RIVALS)}
            if found[OURS] is None:
                continue
            best = min(line.mean for line in found.values() if line)
            cells = [
                f"**{_percent(line.mean)}**" if line and line.mean == best else _percent(line.mean if line else None)
                for line in found.values()
            ]
            rows.append([f"`{source}` {name}", str(number), *cells])
    return _table(["data", "step times", "a profile", "from another's", *_RIVALS.values()], rows)


def blind(lines: Sequence[Line]) -> str:
    rows = []
    for source, name, own in settings(lines):
        drawn = curve(own, OURS)
        cells = [f"{_percent(drawn[n].open)} / {_percent(drawn[n].blind)}" if n in drawn else "" for n in (0, *NUMBERS)]
        rows.append([f"`{source}` {name}", *cells])
    return _table(["data", "zero-shot", *(f"after {n}" for n in NUMBERS)], rows)


def intervals(lines: Sequence[Line]) -> str:
    """Part of the rows inside, and how wide."""
    rows = []
    for source, name, own in settings(lines):
        drawn = curve(own, OURS)
        rows.append([f"`{source}` {name}", *(_interval(drawn.get(n)) for n in (0, *NUMBERS))])
    return _table(["data", "zero-shot", *(f"after {n}" for n in NUMBERS)], rows)


def _interval(line: Line | None) -> str:
    if line is None:
        return ""
    return "none" if line.inside is None else f"{line.inside:.0%}, {line.width:.2f}×"


def tailoring(lines: Sequence[Line]) -> str:
    rows = []
    for each in tailored(lines):
        ours = ["not reached", ""] if each.ours is None else [str(each.ours.number), f"{each.ours.seconds:,.0f} s"]
        ratios = [
            "" if each.ours is None else f"{ratio:.1f}×" if ratio else "needs none"
            for ratio in (each.ratio, each.time_ratio)
        ]
        source, _, name = each.setting.partition(": ")
        scratch = [str(each.scratch.number), f"{each.scratch.seconds:,.0f} s"]
        rows.append([f"`{source}` {name}", each.rival, _percent(each.level), *scratch, *ours, *ratios])
    head = [
        "data",
        "best from scratch",
        "its error",
        "step times",
        "seconds",
        "a profile",
        "seconds",
        "fewer by",
        "less time by",
    ]
    return _table(head, rows)


# Curves: a panel for each setting.


def curves(lines: Sequence[Line]) -> str:
    panels = list(settings(lines))
    width = _ACROSS * _PANEL + 20
    height = _TOP + math.ceil(len(panels) / _ACROSS) * _ROW
    title = "Mean error over the number of measured step times"
    parts = [f'<rect width="{width}" height="{height}" fill="#fdfcfa"/>', *_legend()]
    for place, (source, name, own) in enumerate(panels):
        x, y = 10 + place % _ACROSS * _PANEL, _TOP + place // _ACROSS * _ROW
        parts.append(f'<g transform="translate({x},{y})">{"".join(_panel(f"{source} {name}", own))}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="#5d646c"><title>{title}</title>{"".join(parts)}</svg>\n'
    )


def _legend() -> Iterator[str]:
    x = 14.0
    for name, tone in _TONES.values():
        yield f'<line x1="{x}" x2="{x + 18}" y1="18" y2="18" stroke="{tone}" stroke-width="2.4"/>'
        yield f'<text x="{x + 23}" y="22">{escape(name)}</text>'
        x += 40 + 6.2 * len(name)
    yield f'<text x="14" y="40">{escape("across: step times measured; up: mean error; left end: zero-shot")}</text>'


def _panel(title: str, lines: Sequence[Line]) -> Iterator[str]:
    yield f'<text x="0" y="10" font-weight="bold">{escape(title)}</text>'
    for error in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        y = _up(error)
        yield f'<line x1="{_LEFT}" x2="{_PANEL - 14}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e7e3da"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{error:.0%}</text>'
    for number in (0, *NUMBERS):
        yield f'<text x="{_along(number):.1f}" y="{_ROW - 22}" text-anchor="middle">{number}</text>'
    zero = next(line.mean for line in lines if line.method == ZERO_SHOT and line.number == 0)
    for method, (name, tone) in reversed(_TONES.items()):
        found = curve(lines, method)
        if method == OURS and len(found) > 1:
            band = [f"{_along(n):.1f},{_up(line.spread[1]):.1f}" for n, line in found.items()]
            band += [f"{_along(n):.1f},{_up(line.spread[0]):.1f}" for n, line in reversed(found.items())]
            yield f'<polygon points="{" ".join(band)}" fill="{tone}" opacity="0.15"/>'
        points = " ".join(f"{_along(n):.1f},{_up(line.mean):.1f}" for n, line in found.items())
        shown = ", ".join(f"{n}: {line.mean:.1%}" for n, line in found.items())
        yield f'<polyline points="{points}" fill="none" stroke="{tone}" stroke-width="2"><title>{escape(name)}, {shown}</title></polyline>'
    yield f'<circle cx="{_along(0):.1f}" cy="{_up(zero):.1f}" r="3" fill="{_TONES[OURS][1]}"/>'


def _along(number: int) -> float:
    return _LEFT + 12 + (_PANEL - _LEFT - 40) * math.log1p(number) / math.log1p(NUMBERS[-1])


def _up(error: float) -> float:
    share = math.log(min(max(error, _LEAST_ERROR), _LARGEST_ERROR) / _LEAST_ERROR) / math.log(
        _LARGEST_ERROR / _LEAST_ERROR
    )
    return 18 + (_ROW - 60) * (1 - share)
