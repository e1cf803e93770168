"""Which points to measure next, under a budget of seconds.

D-optimal points make log det M large, M being the information matrix of `space.py`: the information they give about all
coefficients at once. A-optimal ones make the trace of M⁻¹ small, the mean variance of a coefficient.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import numpy as np

from foretell.design.information import Candidate, OpSet, Row
from foretell.design.space import Array, Space, State
from foretell.errors import InputError, check_choice
from foretell.hardware import Device
from foretell.units import Seconds

Method = Literal["d-optimal", "a-optimal", "random"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
_WEAKEST, _STRONGEST = 16, 64  # points tried in an exchange, to leave and to come
_SWEEPS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a choice opens in one family: how much, and which features its new ops are far out in."""

    family: str
    gain: float
    first: bool  # nothing measured has an op of this family
    features: tuple[str, ...]  # as `more memory`, `less depth`


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    candidate: Candidate
    gain: float  # in nats for D-optimal, in variance for A-optimal
    new: int  # ops that nothing measured has
    openings: tuple[Opening, ...]  # the strongest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    method: Method
    device: Device
    budget: Seconds
    candidates: tuple[Candidate, ...]
    known: tuple[OpSet, ...]
    choices: tuple[Choice, ...]  # in the order to measure them: the best for its seconds first
    information: float  # log det of M after, over that before
    all_information: float  # the same if everything were measured
    swaps: int  # by exchange

    @property
    def seconds(self) -> Seconds:
        return sum(choice.candidate.seconds for choice in self.choices)


def design(
    candidates: Sequence[Candidate],
    device: Device,
    budget: Seconds,
    *,
    method: Method = "d-optimal",
    known: Iterable[OpSet] = (),
    seed: int = 0,
    exchange: bool = True,
) -> Design:
    """Choose candidates for at most `budget` seconds; `known` is what was measured before."""
    method = method_named(method)
    if not budget > 0:
        raise InputError(f"the budget must be more than 0 seconds, got {budget!r}. Give one like 10min.")
    known = tuple(known)
    space = Space([c.ops for c in candidates], known, device)
    costs = [c.seconds for c in candidates]
    swaps = 0
    if method == "random":
        chosen = _drawn(costs, budget, seed)
    else:
        state = State(space, method)
        chosen = _greedy(state, costs, budget)
        if exchange:
            chosen, swaps = _exchanged(state, chosen, costs, budget)
    choices, information = _explained(space, chosen, costs, method, candidates)
    return Design(
        method=method,
        device=device,
        budget=budget,
        candidates=tuple(candidates),
        known=known,
        choices=choices,
        information=information,
        all_information=space.information(),
        swaps=swaps,
    )


def method_named(name: str) -> Method:
    check_choice("method", name, METHODS, InputError)
    return cast("Method", name)


# Choosing.


def _greedy(state: State, costs: Sequence[Seconds], budget: Seconds) -> list[int]:
    """Most gain per second, one by one.

    Information only shrinks as more is known, so an old gain is a bound: a candidate is looked at again only when its
    bound is the best there is. For A-optimal, where that need not hold, it is a very good guess.
    """
    bounds = [(-state.gain(i) / costs[i], i, 0) for i in range(len(costs)) if costs[i] <= budget]
    heapq.heapify(bounds)
    chosen: list[int] = []
    while bounds:
        bound, i, when = heapq.heappop(bounds)
        if costs[i] > budget or bound >= 0:
            continue  # too dear by now, or nothing new
        if when == len(chosen):
            state.add(i)
            chosen.append(i)
            budget -= costs[i]
        else:
            heapq.heappush(bounds, (-state.gain(i) / costs[i], i, len(chosen)))
    return chosen


def _exchanged(state: State, chosen: list[int], costs: Sequence[Seconds], budget: Seconds) -> tuple[list[int], int]:
    """Fedorov's exchange of chosen for others while information rises; of each, the most likely few are tried."""
    swaps, left = 0, budget - sum(costs[i] for i in chosen)
    for _ in range(_SWEEPS):
        before = swaps
        outside = _best(state, set(range(len(costs))) - set(chosen), costs)
        for i in _weakest(state, chosen, costs):
            state.remove(i)
            room = left + costs[i]
            loss = state.gain(i)
            gains = {j: state.gain(j) for j in outside if costs[j] <= room}
            j = max(gains, key=lambda j: gains[j], default=i)
            if gains.get(j, 0.0) > loss * (1 + 1e-9):
                outside[outside.index(j)] = i
                chosen[chosen.index(i)] = j
                left, swaps = room - costs[j], swaps + 1
            else:
                j = i
            state.add(j)
        if swaps == before:
            break
    return chosen, swaps


def _best(state: State, among: set[int], costs: Sequence[Seconds]) -> list[int]:
    ranked = sorted(among, key=lambda i: (-state.gain(i) / costs[i], i))
    return ranked[:_STRONGEST]


def _weakest(state: State, chosen: Sequence[int], costs: Sequence[Seconds]) -> list[int]:
    loss = {}
    for i in chosen:
        state.remove(i)
        loss[i] = state.gain(i) / costs[i]
        state.add(i)
    return sorted(chosen, key=lambda i: (loss[i], i))[:_WEAKEST]


def _drawn(costs: Sequence[Seconds], budget: Seconds, seed: int) -> list[int]:
    order = list(range(len(costs)))
    random.Random(seed).shuffle(order)
    chosen = []
    for i in order:
        if costs[i] <= budget:
            chosen.append(i)
            budget -= costs[i]
    return chosen


def _explained(
    space: Space, chosen: Sequence[int], costs: Sequence[Seconds], method: str, candidates: Sequence[Candidate]
) -> tuple[tuple[Choice, ...], float]:
    """The chosen in the order in which they help most, each with why."""
    state, information = State(space, method), 0.0
    among = _ordered(state, chosen, costs) if method != "random" else list(chosen)
    state, informed = State(space, method), State(space, "d-optimal")
    choices = []
    for i in among:
        gains = state.gains(i)
        information += informed.gain(i)
        new = state.new(i)
        strongest = sorted(gains, key=lambda f: -gains[f])[:3]
        openings = tuple(
            Opening(
                family=space.families[f],
                gain=gains[f],
                first=not state.count[f].any(),
                features=_directions(new[f], state.variance[f], space.names[f]),
            )
            for f in strongest
        )
        gain, ops = sum(gains.values()), sum(map(len, new.values()))
        choices.append(Choice(candidate=candidates[i], gain=gain, new=ops, openings=openings))
        state.add(i)
        informed.add(i)
    return tuple(choices), information


def _ordered(state: State, chosen: Sequence[int], costs: Sequence[Seconds]) -> list[int]:
    only_chosen = [costs[i] if i in set(chosen) else math.inf for i in range(len(costs))]
    ordered = _greedy(state, only_chosen, math.fsum(costs[i] for i in chosen) * (1 + 1e-9))
    return ordered + [i for i in chosen if i not in set(ordered)]


def _directions(phi: Array, variance: Array, names: Sequence[str], most: int = 2) -> tuple[str, ...]:
    """The features in which the strongest direction of the new rows lies."""
    _, vectors = np.linalg.eigh(phi @ variance @ phi.T)
    direction = variance @ phi.T @ vectors[:, -1]
    sign = np.sign(np.sum(phi @ direction))  # towards where the rows are
    direction[0] = 0.0  # the family's own constant
    order = np.argsort(-np.abs(direction))
    leading = [i for i in order if i and abs(direction[i]) > 0.5 * abs(direction[order[0]])]
    return tuple(dict.fromkeys(_in_words(names[i], bool(sign * direction[i] > 0)) for i in leading))[:most]


def _in_words(name: str, more: bool) -> str:
    """`more memory` for less that falls short of it."""
    name, short, _ = name.partition(" short of ")
    return f"{'more' if more != bool(short) else 'less'} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Candidates of one sort, and what of them was chosen."""

    name: str
    candidates: int
    chosen: int
    seconds: Seconds
    gain: float


def groups(design: Design) -> list[Group]:
    """The sorts of points, the most informative first."""
    every: dict[str, list[Any]] = {}
    for c in design.candidates:
        every.setdefault(c.group, [0, 0, 0.0, 0.0])[0] += 1
    for choice in design.choices:
        row = every[choice.candidate.group]
        row[1] += 1
        row[2] += choice.candidate.seconds
        row[3] += choice.gain
    found = [Group(name=n, candidates=a, chosen=b, seconds=s, gain=g) for n, (a, b, s, g) in every.items()]
    return sorted(found, key=lambda group: (-group.gain, group.name))


def measured_rows(op_sets: Iterable[OpSet]) -> Iterator[Row]:
    """Each distinct op once."""
    return iter({row.key: row for ops in op_sets for row in ops.rows}.values())
