"""What to measure next: the table and the reasons for the terminal, coverage as a page."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from foretell.design.design import Choice, Design, groups, measured_rows
from foretell.design.information import Row
from foretell.report.charts import svg
from foretell.report.page import document, swatch, write_page
from foretell.report.terminal import grid, section
from foretell.units import show_bytes, show_flops, show_seconds

_REASONS: Final = 5
_PANELS: Final = 9
_DOTS: Final = 500  # of one kind in a panel; more would only be darker
_WIDTH, _HEIGHT = 280, 220
_TITLE: Final = 38  # letters that fit above a panel


# In the terminal.


def design_table(design: Design) -> RenderableType:
    table = grid("points of", "candidates", "chosen", "seconds", "information", left=("points of",))
    for group in groups(design):
        gain = f"{group.gain:.1f}" if group.chosen else "–"
        table.add_row(group.name, f"{group.candidates:,}", f"{group.chosen:,}", show_seconds(group.seconds), gain)
    parts: list[RenderableType] = [Text(headline(design)), Padding(table, (1, 0, 0, 2))]
    if design.choices:
        lines = [Text(f"{n}. {why(choice)}") for n, choice in enumerate(design.choices[:_REASONS], 1)]
        parts.append(section("Measure first", Group(*lines), f"of {len(design.choices):,}"))
    return Group(*parts)


def headline(design: Design) -> str:
    share = design.information / design.all_information if design.all_information else 0.0
    known = f", {len(design.known):,} points known already" if design.known else ""
    return (
        f"{len(design.choices):,} of {len(design.candidates):,} candidates ({design.method}) for {design.device.title}: "
        f"{show_seconds(design.seconds)} of {show_seconds(design.budget)}, {share:.0%} of all there is to learn{known}."
    )


def why(choice: Choice) -> str:
    """One sentence: what a point brings that nothing before it had."""
    point, seconds = choice.candidate.point, show_seconds(choice.candidate.seconds)
    if not choice.openings:
        return f"{point} ({seconds}): nothing new."
    opened = [f"{o.family} ({'first of its kind' if o.first else ', '.join(o.features)})" for o in choice.openings]
    ops = f"{choice.new:,} op{'s that are' if choice.new > 1 else ' that is'} new"
    return f"{point} ({seconds}): {ops}, most of all {', '.join(opened)}."


def design_dict(design: Design) -> dict[str, Any]:
    """What `design --json` prints."""
    return {
        "schema_version": 1,
        "method": design.method,
        "device": design.device.name,
        "budget_seconds": design.budget,
        "seconds": design.seconds,
        "candidates": len(design.candidates),
        "known": len(design.known),
        "information": design.information,
        "all_information": design.all_information,
        "swaps": design.swaps,
        "groups": [
            {
                "name": g.name,
                "candidates": g.candidates,
                "chosen": g.chosen,
                "seconds": g.seconds,
                "information": g.gain,
            }
            for g in groups(design)
        ],
        "choices": [_choice_dict(choice) for choice in design.choices],
    }


def _choice_dict(choice: Choice) -> dict[str, Any]:
    point = choice.candidate.point
    question = {"point": point.key, "source": point.source, "settings": dict(point.settings), "kind": point.kind}
    gains = {"seconds": choice.candidate.seconds, "information": choice.gain, "new_ops": choice.new}
    opens = [
        {"family": o.family, "information": o.gain, "first": o.first, "features": list(o.features)}
        for o in choice.openings
    ]
    return {**question, "plan": point.plan, **gains, "opens": opens}


# Coverage: candidates, known and chosen ops over two of their sizes, a panel per family.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """A logarithmic axis."""

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float) -> LogScale:
        seen = [v for v in values if v > 0] or [1.0]
        return cls(least=math.log(min(seen)) - 0.3, most=math.log(max(seen)) + 0.3, start=start, end=end)

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (math.log(value) - self.least) / (self.most - self.least)


def write_coverage(design: Design, path: str | os.PathLike[str]) -> None:
    write_page(coverage_page(design), path)


def coverage_page(design: Design) -> str:
    kinds = {
        "candidate": list(measured_rows(c.ops for c in design.candidates)),
        "known": list(measured_rows(design.known)),
        "chosen": list(measured_rows(c.candidate.ops for c in design.choices)),
    }
    share: dict[str, float] = {}
    for row in kinds["candidate"]:
        share[row.family] = share.get(row.family, 0.0) + row.times * row.seconds(design.device)
    panels = sorted(share, key=lambda family: -share[family])[:_PANELS]
    drawn = "".join(_panel(family, kinds, number) for number, family in enumerate(panels))
    reasons = "".join(f"<li>{escape(why(choice))}</li>" for choice in design.choices[:_REASONS])
    keys = "".join(f"<li>{swatch(_COLOURS[kind])}{kind}</li>" for kind in kinds)
    title = f"What to measure on {design.device.title}"
    body = (
        f"<h1>{escape(title)}</h1>\n<p>{escape(headline(design))}</p>\n"
        f"<h3>Measure first</h3>\n<ol>{reasons}</ol>\n<h3>Coverage</h3>\n<figure><figcaption>Each dot is an op, of the "
        "families that take most of the candidates' time: the bytes it moves to the right, upwards the arithmetic it "
        f'does or, where it does none, its innermost side.</figcaption><ul class="keys">{keys}</ul>'
        f'<div class="panels">{drawn}</div></figure>'
    )
    return document(title, body, kind="design", style=_PAGE_STYLE)


_COLOURS: Final = {"candidate": "var(--c-waiting)", "known": "var(--c-forward)", "chosen": "var(--c-communication)"}
_PAGE_STYLE: Final = (
    ".panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1.4rem 1.6rem; "
    "margin-top: 1.2rem; }\nol { max-width: 46rem; padding-left: 1.3rem; }\nol li { margin: 0.3rem 0; }\n"
)


def _panel(family: str, kinds: Mapping[str, Sequence[Row]], number: int) -> str:
    own = {kind: [row for row in rows if row.family == family] for kind, rows in kinds.items()}
    every = [row for rows in own.values() for row in rows]
    works = any(row.flops for row in every)
    upwards, show = (_flops, show_flops) if works else (_inner, lambda size: f"{size:,.0f} long")
    x = LogScale.over((row.traffic for row in every), 8, _WIDTH - 8)
    y = LogScale.over(map(upwards, every), _HEIGHT - 22, 22)
    dots = []
    for kind, rows in own.items():
        stride = max(1, len(rows) // _DOTS)
        radius = 2.0 if kind == "candidate" else 2.6
        dots += [
            f'<circle cx="{x(row.traffic):.1f}" cy="{y(upwards(row)):.1f}" r="{radius}" fill="{_COLOURS[kind]}"/>'
            for row in rows[::stride]
            if row.traffic > 0 and upwards(row) > 0
        ]
    counts = ", ".join(f"{len(rows):,} {kind}" for kind, rows in own.items())
    shown = family if len(family) <= _TITLE else family[: _TITLE - 1] + "…"
    ends = (
        f'<text x="8" y="{_HEIGHT - 4}">{show_bytes(math.exp(x.least))}</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 4}" text-anchor="end">{show_bytes(math.exp(x.most))}, '
        f"{escape(show(math.exp(y.most)))}</text>"
    )
    body = (
        f'<rect class="outline" x="0" y="16" width="{_WIDTH}" height="{_HEIGHT - 32}"/>'
        f'<text class="strong" x="0" y="10">{escape(shown)}</text>{"".join(dots)}{ends}'
    )
    return svg(_WIDTH, _HEIGHT, body, name=f"panel-{number}", title=family, description=counts)


def _flops(row: Row) -> float:
    return row.flops


def _inner(row: Row) -> float:
    return math.exp(row.shape["inner"])
