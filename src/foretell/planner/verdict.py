"""The verdict on choices: what cannot be beaten, and which of it to take for a deadline, a budget or neither."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretell.planner.cluster_search import ALIKE, CLASS
from foretell.planner.goal import Goal
from foretell.planner.result import Choice, Range
from foretell.units import show_dollars, show_seconds, show_share

ROOMY: Final = 0.20  # of the memory free: more is no better


def front(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those that no other beats in time, cost and memory alike; fastest first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=_figures):
        if not any(_beats(other, choice) for other in kept):
            kept.append(choice)
    return tuple(sorted(kept, key=lambda c: c.time.median))


def _figures(choice: Choice) -> tuple[float, float, float]:
    cost = choice.cost.median if choice.cost else choice.time.median * choice.devices
    return choice.time.median, cost, -math.floor(min(choice.headroom, ROOMY) / CLASS)


def _beats(one: Choice, other: Choice) -> bool:
    return all(a <= b for a, b in zip(_figures(one), _figures(other), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    recommended: Choice | None
    reason: str
    nearest: Choice | None = None


def choose(choices: Sequence[Choice], goal: Goal) -> Verdict:
    """The cheapest that keeps the deadline, the fastest within the budget, or the best product of both.

    Time and cost count as they are expected: what may not fit may have to be done again.
    """
    good = [c for c in choices if not goal.missed_by(c)]
    if not good:
        return _nothing(choices, goal)
    priced = [c for c in good if c.cost is not None]
    if goal.deadline is not None and priced:
        best = min(priced, key=lambda c: (_expected(c, c.cost), _expected(c, c.time)))
        within = f" and {show_dollars(goal.budget)}" if goal.budget is not None else ""
        why = f"the cheapest that keeps to {show_seconds(goal.deadline)}{within}"
    elif goal.budget is not None:
        best = min(good, key=lambda c: _expected(c, c.time))
        why = f"the fastest for at most {show_dollars(goal.budget)}"
    elif goal.deadline is not None:
        best = min(good, key=lambda c: (c.devices, _expected(c, c.time)))
        why = f"the fewest devices that keep to {show_seconds(goal.deadline)}; no prices are known"
    elif priced:
        best = min(priced, key=lambda c: _expected(c, c.time) * _expected(c, c.cost))
        why = "the best compromise: the smallest product of time and cost"
    else:
        best = min(good, key=lambda c: _expected(c, c.time))
        why = "the fastest; no prices are known"
    safer = _safer(best, good)
    if safer != best:
        why += f", or within {show_share(ALIKE)} of it, and has more memory free"
    return Verdict(recommended=safer, reason=f"{describe(safer)} is {why}.{_next(safer, good)}")


def _expected(choice: Choice, of: Range | None) -> float:
    """Over the interval, and with the risk of a plan that fails."""
    if of is None:
        return math.inf
    return of.distribution.mean / max(choice.fit_probability, 1e-9)


def _safer(best: Choice, good: Sequence[Choice]) -> Choice:
    """Of plans that forecasts cannot tell apart, the one with most memory free: what goes wrong, goes wrong near the limit."""
    alike = [c for c in good if c.cluster == best.cluster and c.time.median <= (1 + ALIKE) * best.time.median]
    return max(alike, key=lambda c: (_roominess(c), -c.time.median))


def _roominess(choice: Choice) -> int:
    """Free memory in classes; unlike for the front, there is no end to what is better."""
    return math.floor(choice.headroom / CLASS)


def _next(best: Choice, good: Sequence[Choice]) -> str:
    """What it costs to go faster."""
    if best.cost is None:
        return ""
    paid = best.cost.median
    faster = [(c, c.cost.median - paid) for c in good if c.time.median < 0.9 * best.time.median and c.cost]
    if not faster:
        return ""
    other, more = min(faster, key=lambda entry: entry[1] / (best.time.median - entry[0].time.median))
    saved = show_seconds(best.time.median - other.time.median)
    return f" {saved} less would cost {show_dollars(max(more, 0.0))} more: {other.cluster} with {other.plan}."


def _nothing(choices: Sequence[Choice], goal: Goal) -> Verdict:
    if not choices:
        text = (
            "Nothing qualifies: no plan fits into the memory of these devices. Allow more devices, devices with more "
            "memory, or a smaller micro-batch."
        )
        return Verdict(recommended=None, reason=text)
    missed = {id(c): goal.missed_by(c) for c in choices}

    def distance(c: Choice) -> tuple[int, float]:
        over = 0.0
        if goal.deadline is not None and "deadline" in missed[id(c)]:
            over += max(math.log(c.time.high / goal.deadline), 0.0)
        if goal.budget is not None and "budget" in missed[id(c)]:
            over += max(math.log(c.cost.high / goal.budget), 0.0) if c.cost else 10.0
        return ("memory" in missed[id(c)], over)

    near = min(choices, key=distance)
    binding = missed[id(near)]
    wanted = []
    if "deadline" in binding:
        wanted.append(f"a deadline of {show_seconds(near.time.high)}")
    if "budget" in binding:
        wanted.append(f"a budget of {show_dollars(near.cost.high)}" if near.cost else "a price for its devices")
    if "memory" in binding:
        wanted.append(f"less certainty that it fits ({show_share(near.fit_probability)})")
    names = " and ".join(f"the {name}" for name in binding)
    text = (
        f"Nothing qualifies: {names} cannot be kept with {show_share(goal.confidence)} certainty. Nearest is "
        f"{describe(near)}; it would do with {' and '.join(wanted)}."
    )
    return Verdict(recommended=None, reason=text, nearest=near)


def describe(choice: Choice) -> str:
    cost = f" for {show_dollars(choice.cost.median)}" if choice.cost else ""
    return f"{choice.cluster} with {choice.plan} and micro-batches of {choice.batch} ({show_seconds(choice.time.median)}{cost})"
