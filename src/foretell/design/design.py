"""Which points to measure next, under a budget of seconds.

A point's ops are rows φ of a linear model of log(time), one model a family of operators. What rows say of the model is
its information matrix M = I + Σ φφᵀ: I for the prior, in which each standardised direction may matter, and φφᵀ for every
distinct op that was measured. D-optimal points make log det M large, which is the information they give about all
coefficients at once; A-optimal ones make the trace of M⁻¹ small, the mean variance of a coefficient.

An op counts once, however often it is measured: what a model does not know of it is its form, not the clock's noise.
It counts by the square root of the time it should take, as it does in the fit, for a forecast adds up seconds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from foretell.design.information import FLOOR, Candidate, Lesson, Row, features
from foretell.errors import InputError, did_you_mean
from foretell.hardware import Device
from foretell.units import Seconds

Method = Literal["d-optimal", "a-optimal", "random"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
_FARTHEST: Final = 4.0  # deviations; one odd shape is not to outweigh a hundred usual ones
_NARROWEST: Final = 0.5  # the deviation of a column that hardly varies
_WEAKEST, _STRONGEST = 16, 64  # points tried in an exchange, to leave and to come
_SWEEPS: Final = 4

Array = npt.NDArray[np.float64]
Rows = Mapping[int, npt.NDArray[np.int64]]  # family → rows of it


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
    known: tuple[Lesson, ...]
    choices: tuple[Choice, ...]  # in the order to measure them: the best for its seconds first
    information: float  # log det of M after, over that before
    all_information: float  # the same if everything were measured
    swaps: int  # by exchange

    @property
    def seconds(self) -> Seconds:
        return sum(choice.candidate.seconds for choice in self.choices)


def design(
    candidates: Sequence[Candidate], device: Device, budget: Seconds, *, method: Method = "d-optimal",
    known: Iterable[Lesson] = (), seed: int = 0, exchange: bool = True,
) -> Design:  # fmt: skip
    """Choose candidates for at most `budget` seconds; `known` is what was measured before."""
    method = method_named(method)
    if not budget > 0:
        raise InputError(f"the budget must be more than 0 seconds, got {budget!r}. Give one like 10min.")
    known = tuple(known)
    space = _Space([c.lesson for c in candidates], known, device)
    costs = [c.seconds for c in candidates]
    swaps = 0
    if method == "random":
        chosen = _drawn(costs, budget, seed)
    else:
        state = _State(space, method)
        chosen = _greedy(state, costs, budget)
        if exchange:
            chosen, swaps = _exchanged(state, chosen, costs, budget)
    choices, information = _told(space, chosen, costs, method, candidates)
    return Design(
        method=method, device=device, budget=budget, candidates=tuple(candidates), known=known, choices=choices,
        information=information, all_information=_information(space), swaps=swaps,
    )  # fmt: skip


def method_named(name: str) -> Method:
    for method in METHODS:
        if method == name:
            return method
    raise InputError(f"no method {name!r} of design. {did_you_mean(name, METHODS)}Allowed: {', '.join(METHODS)}.")


# The space: φ of every op, standardised, family by family.


class _Space:
    def __init__(self, lessons: Sequence[Lesson], known: Sequence[Lesson], device: Device) -> None:
        self.families: list[str] = []
        self.names: list[tuple[str, ...]] = []  # of the columns, by family
        self.phi: list[Array] = []  # weighted rows, by family
        place: dict[str, tuple[int, int]] = {}
        by_family: dict[str, dict[str, Row]] = {}
        for lesson in (*lessons, *known):
            for row in lesson.rows:
                by_family.setdefault(row.family, {}).setdefault(row.key, row)
        for number, (family, rows) in enumerate(by_family.items()):
            names, values = _table([features(row, device) for row in rows.values()])
            weights = np.array([(row.seconds(device) / FLOOR) ** 0.25 for row in rows.values()])
            self.families.append(family)
            self.names.append(names)
            self.phi.append(standardised(values) * weights[:, None])
            place |= {key: (number, i) for i, key in enumerate(rows)}
        self.rows = [self._rows(lesson, place) for lesson in lessons]
        self.known = self._rows(Lesson(tuple(r for lesson in known for r in lesson.rows), 0), place)

    @staticmethod
    def _rows(lesson: Lesson, place: Mapping[str, tuple[int, int]]) -> Rows:
        found: dict[int, set[int]] = {}
        for row in lesson.rows:
            family, i = place[row.key]
            found.setdefault(family, set()).add(i)
        return {family: np.array(sorted(those)) for family, those in found.items()}


def _table(described: Sequence[Mapping[str, float]]) -> tuple[tuple[str, ...], Array]:
    """Ops of a family may be described differently, as a product and a plain one are: what one lacks is zero."""
    names = tuple(dict.fromkeys(name for values in described for name in values))
    return names, np.array([[values.get(name, 0.0) for name in names] for values in described])


def standardised(values: Array) -> Array:
    """Columns with mean 0 and deviation 1; the first, which is one everywhere, stays."""
    rest = values[:, 1:]
    scaled = (rest - rest.mean(axis=0)) / np.maximum(rest.std(axis=0), _NARROWEST)
    return np.hstack([values[:, :1], np.clip(scaled, -_FARTHEST, _FARTHEST)])


# The state: what is known once some candidates are measured.


class _State:
    """M of every family and its inverse, as candidates come and go."""

    def __init__(self, space: _Space, method: str) -> None:
        self.space = space
        self.matrix: list[Array] = [np.eye(phi.shape[1]) for phi in space.phi]
        self.variance: list[Array] = [matrix.copy() for matrix in self.matrix]
        self.count = [np.zeros(len(phi), dtype=np.int64) for phi in space.phi]  # of those measured that have the op
        self._gain = _log_det_gain if method != "a-optimal" else _trace_gain
        self._change(space.known, 1)

    def gain(self, candidate: int) -> float:
        return sum(self.gains(candidate).values())

    def gains(self, candidate: int) -> dict[int, float]:
        """By family."""
        new = self.new(candidate).items()
        return {family: self._gain(phi, self.matrix[family], self.variance[family]) for family, phi in new}

    def new(self, candidate: int) -> dict[int, Array]:
        """The rows that nothing measured has, by family."""
        rows = self.space.rows[candidate].items()
        return {f: self.space.phi[f][new] for f, those in rows if len(new := those[self.count[f][those] == 0])}

    def add(self, candidate: int) -> None:
        self._change(self.space.rows[candidate], 1)

    def remove(self, candidate: int) -> None:
        self._change(self.space.rows[candidate], -1)

    def _change(self, rows: Rows, by: int) -> None:
        for family, those in rows.items():
            changed = those[self.count[family][those] == (0 if by > 0 else 1)]
            self.count[family][those] += by
            if len(changed):
                phi = self.space.phi[family][changed]
                # Anew: a step brings more rows than a family has columns, and taking rows out by Woodbury's formula
                # loses all digits where they are most of what is known.
                self.matrix[family] = self.matrix[family] + by * phi.T @ phi
                self.variance[family] = np.asarray(np.linalg.inv(self.matrix[family]), dtype=np.float64)


def _log_det_gain(phi: Array, matrix: Array, variance: Array) -> float:
    """log det(M + φᵀφ) − log det M, by the determinant lemma on the smaller side; for one row log(1 + φᵀM⁻¹φ)."""
    if len(phi) <= len(matrix):
        return float(np.linalg.slogdet(np.eye(len(phi)) + phi @ variance @ phi.T)[1])
    return float(np.linalg.slogdet(matrix + phi.T @ phi)[1] + np.linalg.slogdet(variance)[1])


def _trace_gain(phi: Array, matrix: Array, variance: Array) -> float:
    """trace M⁻¹ − trace (M + φᵀφ)⁻¹, by Woodbury's formula for a few rows; for one it is Sherman and Morrison's."""
    if len(phi) <= len(matrix):
        across = variance @ phi.T
        return float(np.sum(across * np.linalg.solve(np.eye(len(phi)) + phi @ across, across.T).T))
    return float(np.trace(variance) - np.trace(np.linalg.inv(matrix + phi.T @ phi)))


def _information(space: _Space) -> float:
    """Of all candidates together, beyond what is known."""
    total = 0.0
    known = {f: np.eye(phi.shape[1]) for f, phi in enumerate(space.phi)}
    for family, rows in space.known.items():
        known[family] += space.phi[family][rows].T @ space.phi[family][rows]
    for family, phi in enumerate(space.phi):
        every = np.eye(phi.shape[1]) + phi.T @ phi
        total += float(np.linalg.slogdet(every)[1] - np.linalg.slogdet(known[family])[1])
    return total


# Choosing.


def _greedy(state: _State, costs: Sequence[Seconds], budget: Seconds) -> list[int]:
    """Most gain a second, one by one.

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


def _exchanged(
    state: _State, chosen: list[int], costs: Sequence[Seconds], budget: Seconds
) -> tuple[list[int], int]:  # fmt: skip
    """Fedorov's exchange of chosen for others while information rises; of each, the most likely few are tried."""
    swaps, left = 0, budget - sum(costs[i] for i in chosen)
    for _ in range(_SWEEPS):
        before = swaps
        outside = _best(state, set(range(len(costs))) - set(chosen), costs)
        for i in _weakest(state, chosen, costs):
            state.remove(i)
            room = left + costs[i]
            lost = state.gain(i)
            gains = {j: state.gain(j) for j in outside if costs[j] <= room}
            j = max(gains, key=lambda j: gains[j], default=i)
            if gains.get(j, 0.0) > lost * (1 + 1e-9):
                outside[outside.index(j)] = i
                chosen[chosen.index(i)] = j
                left, swaps = room - costs[j], swaps + 1
            else:
                j = i
            state.add(j)
        if swaps == before:
            break
    return chosen, swaps


def _best(state: _State, among: set[int], costs: Sequence[Seconds]) -> list[int]:
    ranked = sorted(among, key=lambda i: (-state.gain(i) / costs[i], i))
    return ranked[:_STRONGEST]


def _weakest(state: _State, chosen: Sequence[int], costs: Sequence[Seconds]) -> list[int]:
    lost = {}
    for i in chosen:
        state.remove(i)
        lost[i] = state.gain(i) / costs[i]
        state.add(i)
    return sorted(chosen, key=lambda i: (lost[i], i))[:_WEAKEST]


def _drawn(costs: Sequence[Seconds], budget: Seconds, seed: int) -> list[int]:
    order = list(range(len(costs)))
    random.Random(seed).shuffle(order)
    chosen = []
    for i in order:
        if costs[i] <= budget:
            chosen.append(i)
            budget -= costs[i]
    return chosen


def _told(
    space: _Space, chosen: Sequence[int], costs: Sequence[Seconds], method: str, candidates: Sequence[Candidate]
) -> tuple[tuple[Choice, ...], float]:
    """The chosen in the order in which they help most, each with why."""
    state, information = _State(space, method), 0.0
    among = _ordered(state, chosen, costs) if method != "random" else list(chosen)
    state, told = _State(space, method), _State(space, "d-optimal")
    choices = []
    for i in among:
        gains = state.gains(i)
        information += told.gain(i)
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
        choices.append(
            Choice(
                candidate=candidates[i],
                gain=sum(gains.values()),
                new=sum(map(len, new.values())),
                openings=openings,
            )
        )
        state.add(i)
        told.add(i)
    return tuple(choices), information


def _ordered(state: _State, chosen: Sequence[int], costs: Sequence[Seconds]) -> list[int]:
    mine = [costs[i] if i in set(chosen) else math.inf for i in range(len(costs))]
    ordered = _greedy(state, mine, math.fsum(costs[i] for i in chosen) * (1 + 1e-9))
    return ordered + [i for i in chosen if i not in set(ordered)]


def _directions(phi: Array, variance: Array, names: Sequence[str], most: int = 2) -> tuple[str, ...]:
    """The features in which the strongest direction of the new rows lies."""
    _, vectors = np.linalg.eigh(phi @ variance @ phi.T)
    direction = variance @ phi.T @ vectors[:, -1]
    sign = np.sign(np.sum(phi @ direction))  # towards where the rows are
    direction[0] = 0.0  # the family's own constant
    order = np.argsort(-np.abs(direction))
    leading = [i for i in order if i and abs(direction[i]) > 0.5 * abs(direction[order[0]])]
    return tuple(dict.fromkeys(_said(names[i], bool(sign * direction[i] > 0)) for i in leading))[:most]


def _said(name: str, more: bool) -> str:
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


def measured_rows(lessons: Iterable[Lesson]) -> Iterator[Row]:
    """Each distinct op once."""
    return iter({row.key: row for lesson in lessons for row in lesson.rows}.values())
