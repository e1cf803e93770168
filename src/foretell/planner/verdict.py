"""The verdict on choices: what cannot be beaten, and which of it to take for a deadline, a budget or neither."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foretell.planner.candidates import complexity
from foretell.planner.cluster_search import ALIKE, CLASS, ROOMY
from foretell.planner.goal import Goal
from foretell.planner.result import Choice, Range
from foretell.units import show_dollars, show_seconds, show_share

ROOM: Final = 0.10  # of the memory free: so much is enough to prefer what is faster


def front(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those that no other beats in time, cost and memory alike; fastest first."""
    return _unbeaten(choices, lambda c: -math.floor(min(c.headroom, ROOMY) / CLASS))


def _unbeaten(choices: Sequence[Choice], cramped: Callable[[Choice], float]) -> tuple[Choice, ...]:
    """Those that no other beats in time, in cost and in being cramped."""
    kept: list[tuple[tuple[float, float, float], Choice]] = []
    figures = [((*time_and_cost(c), cramped(c)), c) for c in choices]
    for own, choice in sorted(figures, key=lambda entry: (*entry[0], complexity(entry[1].plan))):
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) for other, _ in kept):
            kept.append((own, choice))
    return tuple(sorted((choice for _, choice in kept), key=lambda c: c.time.median))


def time_and_cost(choice: Choice) -> tuple[float, float]:
    """As far as people see them, three digits: what looks the same is the same, and then the simpler plan is taken."""
    cost = choice.cost.median if choice.cost else choice.time.median * choice.devices
    return float(f"{choice.time.median:.3g}"), float(f"{cost:.3g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    recommended: Choice | None
    reason: str
    nearest: Choice | None = None


def choose(choices: Sequence[Choice], goal: Goal) -> Verdict:
    """The cheapest that keeps the deadline, the fastest within the budget, or the best product of both.

    Time and cost count as they are expected: what may not fit may have to be done again. Of those that forecasts cannot
    tell apart by that, the one with room enough that is fastest; none is taken that another beats.
    """
    good = [c for c in choices if not goal.missed_by(c)]
    if not good:
        return _nothing(choices, goal)
    good = [c for c in good if c.cost is not None] or good  # what has no price cannot be compared with what has
    measure, why = _wanted(good, goal)
    unbeaten = _unbeaten(front(good), is_tight)  # of what takes the same to the last digit, what leaves more free
    least = min(map(measure, unbeaten))
    alike = [c for c in unbeaten if measure(c) <= (1 + ALIKE) * least]
    best = min(alike, key=lambda c: (is_tight(c), *time_and_cost(c), complexity(c.plan), measure(c)))
    if measure(best) > least:
        why += f", or within {show_share(ALIKE)} of it, and {'fastest' if not is_tight(best) else 'roomiest'} of those"
    others = [c for c in unbeaten if c is not best]
    reason = f"{describe(best)} is {why}.{_next(best, others, measure)}{_unsure(best, choices, goal, measure)}"
    return Verdict(recommended=best, reason=reason)


def _wanted(good: Sequence[Choice], goal: Goal) -> tuple[Callable[[Choice], float], str]:
    """What shall be least, and what that is called."""
    priced = good[0].cost is not None
    if goal.deadline is not None and priced:
        within = f" and {show_dollars(goal.budget)}" if goal.budget is not None else ""
        return _expected_cost, f"the cheapest that keeps to {show_seconds(goal.deadline)}{within}"
    if goal.budget is not None:
        return _expected_time, f"the fastest for at most {show_dollars(goal.budget)}"
    if goal.deadline is not None:
        text = f"the fewest devices that keep to {show_seconds(goal.deadline)}; no prices are known"
        return lambda c: float(c.devices), text
    if priced:
        text = "the best compromise: the smallest product of time and cost"
        return lambda c: _expected_time(c) * _expected_cost(c), text
    return _expected_time, "the fastest; no prices are known"


def _expected_time(choice: Choice) -> float:
    return _expected(choice, choice.time)


def _expected_cost(choice: Choice) -> float:
    return _expected(choice, choice.cost)


def _expected(choice: Choice, of: Range | None) -> float:
    """Over the interval, and with the risk of a plan that fails."""
    if of is None:
        return math.inf
    return of.distribution.mean / max(choice.fit_probability, 1e-9)


def is_tight(choice: Choice) -> bool:
    """Whether more memory free would make it safer: what goes wrong, goes wrong near the limit."""
    return choice.headroom < ROOM


def _next(best: Choice, others: Sequence[Choice], measure: Callable[[Choice], float]) -> str:
    """The runner-up, and what it would take more or less."""
    if not others:
        return ""
    other = min(others, key=lambda c: (measure(c), *time_and_cost(c)))
    return f" Next is {_compared(other, best)}."


def _unsure(best: Choice, choices: Sequence[Choice], goal: Goal, measure: Callable[[Choice], float]) -> str:
    """What would be faster and cheaper than the best, and why it is not taken: it stands in the same table."""
    least = time_and_cost(best)
    better = [
        c for c in choices
        if (c.cost is None) == (best.cost is None) and time_and_cost(c) != least
        and all(a <= b for a, b in zip(time_and_cost(c), least, strict=True))
    ]  # fmt: skip
    unsure = [c for c in better if goal.missed_by(c)]
    if not unsure:
        return ""
    other = min(unsure, key=measure)
    odds = [f"keeps to the {name} with {show_share(goal.odds(other)[name] or 0.0)}" for name in goal.missed_by(other)]
    words = " and ".join(odds).replace("keeps to the memory", "fits into memory")
    return f" {_compared(other, best)}, but it {words} where {show_share(goal.confidence)} is wanted."


def _compared(other: Choice, best: Choice) -> str:
    """Another choice, and what it would take more or less."""
    parts = [_difference(other.time.median - best.time.median, show_seconds, "longer", "shorter")]
    if other.cost and best.cost:
        parts.append(_difference(other.cost.median - best.cost.median, show_dollars, "more", "less"))
    return f"{other.cluster} with {_written(other)}: {' and '.join(parts)}"


def _written(choice: Choice) -> str:
    return f"{choice.plan}{', compiled,' * choice.compiled}"


def _difference(value: float, show: Callable[[float], str], more: str, less: str) -> str:
    return f"{show(abs(value))} {more if value > 0 else less}" if abs(value) > 0 else f"no {more}"


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
    return f"{choice.cluster} with {_written(choice)} and micro-batches of {choice.batch} ({show_seconds(choice.time.median)}{cost})"
