"""A search drawn: the recommendation and the front for the terminal, and a page with time against cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from foretell.report import ticks
from foretell.report.charts import svg
from foretell.report.page import document, figure, section, table, write_page
from foretell.report.terminal import grid
from foretell.units import or_dash, show_bytes, show_dollars, show_kwh, show_seconds, show_share

if TYPE_CHECKING:
    from foretell.planner.result import Choice, PlanResult, Range

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BELOW = 76, 24, 30, 48
_FAR: Final = 2.0  # times the largest value: a limit beyond is not drawn
_ROWS: Final = 12  # of the front in a terminal
_SHORTEST: Final = 80  # characters of a reason
_WIDE: Final = 130


def plan_panel(result: PlanResult, width: int = 100) -> RenderableType:
    """The answer, what else there is, and what was left out."""
    parts: list[RenderableType] = [_answer(result)]
    if result.front:
        parts += [Text(f"\n{_heading(result)}", style="bold"), front_table(result, width)]
    if result.pruned:
        parts.append(Text("\nLeft out", style="bold"))
        for entry in result.pruned[:6]:
            parts.append(Padding(Text(f"{entry.count:>8,}  {_short(entry.reason)}", style="dim"), (0, 0, 0, 1)))
    parts += [Text(f"\n{caveat}", style="dim") for caveat in result.caveats]
    return Group(*parts)


def _heading(result: PlanResult) -> str:
    best, text = result.recommended, "None of these is beaten in time, cost and memory"
    return text if best is None or best in result.front else f"{text}, the recommended one by what fits less surely"


def _answer(result: PlanResult) -> RenderableType:
    searched = f"{result.candidates:,} candidates, {result.simulated:,} simulated, in {show_seconds(result.seconds)}"
    title = f"{result.workload}: {'recommended' if result.recommended else 'nothing qualifies'}"
    lines = [Text(result.reason)]
    if best := result.recommended:
        lines += [Text(), *(Text(f"{name:<10}{value}") for name, value in _facts(best))]
    return Panel(Group(*lines), title=title, subtitle=searched, title_align="left", subtitle_align="left")


def _facts(choice: Choice) -> list[tuple[str, str]]:
    facts = [("cluster", choice.cluster), ("plan", choice.plan)]
    if choice.compiled:
        facts.append(("compiled", f"{show_seconds(choice.job.startup_seconds)} until the first step"))
    facts.append(("batch", f"{choice.batch} per micro-step, {choice.global_batch:,.0f} per step"))
    facts.append(("step", between(choice.step, show_seconds)))
    facts.append(
        (
            "job",
            f"{between(choice.time, show_seconds)}, {between(choice.goodput, show_share)} of it in steps that count",
        )
    )
    if (often := choice.job.best_checkpoint_period) is not None:
        facts.append(("saving", f"best every {show_seconds(often)} of work, by Daly's rule"))
    if choice.cost:
        source = f"; {choice.price}" if choice.price else ""
        facts.append(("cost", f"{between(choice.cost, show_dollars)}{source}"))
    facts.append(("energy", between(choice.kwh, show_kwh)))
    free = f"{show_bytes(choice.memory)} of {show_bytes(choice.capacity)}, {show_share(choice.headroom)} free"
    facts.append(("memory", f"{free}; it fits with {show_odds(choice.fit_probability)}"))
    if choice.deadline_probability is not None:
        facts.append(("deadline", f"kept with {show_odds(choice.deadline_probability)}"))
    if choice.budget_probability is not None:
        facts.append(("budget", f"kept with {show_odds(choice.budget_probability)}"))
    return facts


def front_table(result: PlanResult, width: int = 100) -> RenderableType:
    wide = width >= _WIDE
    headings = ["", "Cluster", "Plan", "Batch", "Job", "Cost", "Free", "Fits"]
    if wide:
        headings += ["MFU", "Energy"]
    odds = result.deadline is not None
    shown = grid(*headings, *(["In time"] if odds else []), left=("", "Cluster", "Plan"), wraps=("Plan",))
    for choice in _picked(result):
        way = f"{choice.plan}{', compiled' * choice.compiled}"
        row = ["→" if choice == result.recommended else "", choice.cluster, way, f"{choice.batch}"]
        row += [show_seconds(choice.time.median), _dollars(choice), show_share(choice.headroom)]
        row.append(show_odds(choice.fit_probability))
        if wide:
            row += [or_dash(choice.mfu, show_share), show_kwh(choice.kwh.median)]
        shown.add_row(*row, *([or_dash(choice.deadline_probability, show_odds)] if odds else []))
    return shown


def _picked(result: PlanResult) -> Sequence[Choice]:
    """Of a long front every few, the recommended always."""
    front = _shown(result)
    if len(front) <= _ROWS:
        return front
    step = (len(front) - 1) / (_ROWS - 1)
    numbers = {round(i * step) for i in range(_ROWS)}
    return [c for i, c in enumerate(front) if i in numbers or c == result.recommended]


def _dollars(choice: Choice) -> str:
    return "–" if choice.cost is None else show_dollars(choice.cost.median)


def show_odds(probability: float) -> str:
    """Never 100 %: a forecast is not that sure."""
    return "> 99 %" if probability > 0.99 else show_share(probability)


def _short(text: str) -> str:
    return text if len(text) <= _SHORTEST else text[: _SHORTEST - 1] + "…"


def between(value: Range, show: Callable[[float], str]) -> str:
    """A median with its interval, unless all three are written alike."""
    median, low, high = show(value.median), show(value.low), show(value.high)
    return median if low == median == high else f"{median} ({low} to {high})"


def write_plan(result: PlanResult, path: str | os.PathLike[str]) -> None:
    write_page(plan_page(result), path)


def plan_page(result: PlanResult) -> str:
    title = f"{result.workload}: which cluster, which plan"
    return document(title, plan_body(result), kind="plan", footer="A forecast, before the job ran.")


def plan_body(result: PlanResult, address: Callable[[Choice], str] | None = None) -> str:
    """For a page of somebody else's, who knows the address of a choice's forecast."""
    title = f"{result.workload}: which cluster, which plan"
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(result.reason)}</p>"]
    if result.recommended:
        rows = [(escape(name), escape(value)) for name, value in _facts(result.recommended)]
        parts.append(table(("Recommended", "value"), rows, words=("value",)))
    if result.choices:
        caption = (
            "Every plan that was simulated and fits; the line joins those that no other beats in time and cost. Large dots, "
            "which nothing beats in memory too, lead to their rows below; the green one is recommended. Bars are 90 % intervals."
        )
        parts.append(figure("Time against cost", caption, pareto_chart(result)))
        lines = [_row(c, number, c == result.recommended, address) for number, c in enumerate(_shown(result))]
        heads = ("Cluster", "Plan", "Micro-batch", "Job", "Cost", "Energy", "Memory free", "Fits", "MFU")
        note = "Fastest first; the recommended one is marked. Memory free is what is left of the fullest device."
        shown = table(heads, lines, words=("Plan",), wide=("Micro-batch", "Energy", "Memory free", "MFU"))
        parts.append(section("The front", note, shown))
    if result.pruned:
        rows = [(escape(entry.reason), f"{entry.count:,}") for entry in result.pruned]
        parts.append(
            section("Left out", f"Of {result.candidates:,} candidates.", table(("Reason", "candidates"), rows))
        )
    parts += [f'<p class="soft">{escape(caveat)}</p>' for caveat in result.caveats]
    return "\n".join(parts)


def _shown(result: PlanResult) -> list[Choice]:
    """The front, and the recommended one, which may be beaten by plans that are not as likely to fit."""
    best = result.recommended
    others = [best] if best is not None and best not in result.front else []
    return sorted([*result.front, *others], key=lambda c: c.time.median)


def _row(choice: Choice, number: int, best: bool, address: Callable[[Choice], str] | None) -> tuple[str, ...]:
    name = escape(choice.cluster)
    linked = name if address is None else f'<a href="{escape(address(choice))}">{name}</a>'
    mark = '<span class="best">recommended</span>' if best else ""
    plan = escape(choice.plan).replace(",", ",<wbr>")
    return (
        f'<span id="choice-{number}">{linked}</span>{mark}', plan, f"{choice.batch}",
        show_seconds(choice.time.median), _dollars(choice),
        show_kwh(choice.kwh.median), show_share(choice.headroom), show_odds(choice.fit_probability),
        or_dash(choice.mfu, show_share),
    )  # fmt: skip


def pareto_chart(result: PlanResult) -> str:
    """Time to the right, cost upward, both in logarithms; without prices, devices upward."""

    def cost(choice: Choice) -> float:
        return choice.cost.median if choice.cost else float(choice.devices)

    priced = all(c.cost for c in result.choices)
    times = [t for c in _shown(result) for t in (c.time.low, c.time.high)] + [c.time.median for c in result.choices]
    costs = [cost(c) for c in result.choices]
    x = _Axis(times, _LEFT, _WIDTH - _RIGHT, result.deadline)
    y = _Axis(costs, _HEIGHT - _BELOW, _TOP, result.budget if priced else None)
    drawn = [_vertical(x(at), label) for at, label in ticks.seconds_by_ratio(x.low, x.high, 6)]
    across = ticks.dollars_by_ratio(y.low, y.high, 6) if priced else ticks.counts_by_ratio(y.low, y.high, 6, "devices")
    drawn += [_horizontal(y(at), label) for at, label in across]
    drawn.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">time of the job</text>')
    drawn.append(f'<text x="0" y="{_TOP - 14}">{"its cost" if priced else "devices"}</text>')
    for c in result.choices:
        drawn.append(_dot(x(c.time.median), y(cost(c)), 3, "var(--bar)", _summary(c)))
    cheaper = accumulate(map(cost, result.front), min)  # others are on the front for their memory alone
    least = [c for c, lowest in zip(result.front, cheaper, strict=True) if cost(c) == lowest]
    line = " ".join(f"{x(c.time.median):.1f},{y(cost(c)):.1f}" for c in least)
    drawn.append(f'<polyline points="{line}" fill="none" stroke="var(--accent)" stroke-width="1.5"/>')
    for number, c in enumerate(_shown(result)):
        low, high, at = x(c.time.low), x(c.time.high), y(cost(c))
        drawn.append(
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{at:.1f}" y2="{at:.1f}" stroke="var(--accent)" opacity="0.35"/>'
        )
        best = c == result.recommended
        dot = _dot(x(c.time.median), at, 7 if best else 4, "var(--good)" if best else "var(--accent)", _summary(c))
        drawn.append(f'<a href="#choice-{number}">{dot}</a>')
    drawn += _limits(result, x, y, priced)  # over all else, which would strike their labels through
    described = "; ".join(_summary(c) for c in result.front)
    return svg(
        _WIDTH, _HEIGHT, "".join(drawn), name="front", title="Time against cost", description=described, scaled=True
    )


class _Axis:
    """Logarithmic, from one pixel to another; a limit far from all values is not on it, for they would be squeezed."""

    def __init__(self, values: Sequence[float], first: float, last: float, limit: float | None = None) -> None:
        near = [limit] if limit and min(values) / _FAR <= limit <= max(values) * _FAR else []
        self.low, self.high = min([*values, *near]) / 1.1, max([*values, *near]) * 1.1
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.first + share * (self.last - self.first)

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high


def _limits(result: PlanResult, x: _Axis, y: _Axis, priced: bool) -> list[str]:
    """The deadline and the budget as lines; those beyond the chart in words."""
    drawn, beyond = [], []
    if result.deadline:
        label = f"deadline {show_seconds(result.deadline)}"
        drawn += [_limit(x(result.deadline), None, label)] if x.has(result.deadline) else []
        beyond += [] if drawn else [label]
    if result.budget and priced:
        label = f"budget {show_dollars(result.budget)}"
        near = y.has(result.budget)
        drawn += [_limit(None, y(result.budget), label)] if near else []
        beyond += [] if near else [label]
    if beyond:
        text = escape(f"beyond the chart: {', '.join(beyond)}")
        drawn.append(
            f'<text class="limit-label halo" x="{_WIDTH - _RIGHT}" y="{_TOP - 14}" text-anchor="end">{text}</text>'
        )
    return drawn


def _vertical(x: float, label: str) -> str:
    bottom = _HEIGHT - _BELOW
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{escape(label)}</text>'
    )


def _horizontal(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _limit(x: float | None, y: float | None, label: str) -> str:
    if x is not None:
        place, at = f'x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BELOW}"', f'x="{x - 6:.1f}" y="{_TOP + 12}"'
    else:
        place, at = (
            f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"',
            f'x="{_WIDTH - _RIGHT}" y="{(y or 0) - 6:.1f}"',
        )
    return f'<line class="limit" {place}/><text class="limit-label halo" {at} text-anchor="end">{escape(label)}</text>'


def _dot(x: float, y: float, radius: float, colour: str, text: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"><title>{escape(text)}</title></circle>'


def _summary(choice: Choice) -> str:
    return f"{choice.cluster}, {choice.plan}, micro-batch {choice.batch}: {show_seconds(choice.time.median)}, {_dollars(choice)}"
