"""Where a row of blocks is cut into the chunks of a pipeline, so that it takes as little time as can be.

Rounds of chunks go over the stages in the order of the schedule. With one chunk per stage, the stage with most to do sets the
pace. With several it has what all its chunks have: blocks are dealt to stages, and within each to its chunks, as if all were
alike, in a few ways; where blocks differ, rounds of chunks are cut again around what their stages have in the others. Of these cuts the
one is taken with which a few micro-batches are through first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.parallel.schedules import last_end, stage_actions, stages_of_chunks
from foretell.plans import V_SHAPED, Plan

_Floats = npt.NDArray[np.float64]
_ROUNDING: Final = 1 + 1e-9
_TRIAL: Final = 2  # micro-batches per stage that cuts are compared with


def balanced(cost: Sequence[float], stages: int) -> list[int]:
    """The stage of each item of a row; none is empty, the fullest has least and, of such cuts, the most even is taken."""
    return _owners(_cut(cost, [0.0] * stages))


def interleaved(cost: Sequence[float], plan: Plan, *, ends: tuple[bool, bool]) -> list[int]:
    """The chunk of each item of a row, with a plan's rounds of chunks; none is empty.

    Args:
        cost: Of each item, in the order in which they run.
        plan: Has the stages, and how often and in which order chunks go over them.
        ends: Whether the first item is what comes before all blocks, and the last what comes after.
    """
    stages, rounds = plan.pp, plan.virtual_stages
    row = _Row(cost, stages_of_chunks(plan), stages, rounds, *ends)
    found = [row.dealt(*order) for order in product((True, False), repeat=2)]
    found += [row.cut_again(counts) for counts in found]
    schedule = plan.schedule if plan.schedule in V_SHAPED else "interleaved"
    trial = Plan(pp=stages, schedule=schedule, virtual_stages=rounds)
    actions = stage_actions(trial, _TRIAL * stages, training=True)
    return _owners(min(found, key=lambda counts: last_end(actions, _loads(cost, counts))))


def _owners(counts: Sequence[int]) -> list[int]:
    return [owner for owner, count in enumerate(counts) for _ in range(count)]


def _loads(cost: Sequence[float], counts: Sequence[int]) -> list[float]:
    return [sum(cost[begin:end]) for begin, end in pairwise([0, *accumulate(counts)])]


@dataclass(frozen=True, slots=True)
class _Row:
    """Blocks, with what comes before and after them."""

    cost: Sequence[float]
    stage_of: Sequence[int]  # of each chunk
    stages: int
    rounds: int
    first: bool  # whether something comes before
    last: bool

    def dealt(self, early_stages: bool, early_chunks: bool) -> list[int]:
        """Items of each chunk, if all blocks cost the same: each goes to the stage, and there to the chunk, with least;
        of equal ones to an early one or to a late one."""
        cost, first, last = self.cost, self.first, self.last
        blocks = len(cost) - first - last
        each = (sum(cost) - first * cost[0] - last * cost[-1]) / blocks
        begun = [[0.0] * self.rounds for _ in range(self.stages)]  # what chunks have before any block
        least = [[1] * self.rounds for _ in range(self.stages)]  # blocks that chunks cannot do without
        if first:
            begun[0][0], least[0][0] = cost[0], 0
        if last:
            begun[self.stage_of[-1]][-1], least[self.stage_of[-1]][-1] = cost[-1], 0
        of_stages = _filled([sum(own) for own in begun], [sum(own) for own in least], (blocks, each), early_stages)
        of_chunks = [
            _filled(load, needed, (count, each), early_chunks)
            for load, needed, count in zip(begun, least, of_stages, strict=True)
        ]
        counts = [of_chunks[stage][chunk // self.stages] for chunk, stage in enumerate(self.stage_of)]
        counts[0] += first
        counts[-1] += last
        return counts

    def cut_again(self, counts: Sequence[int]) -> list[int]:
        """Every round of chunks cut anew, with what its stages have in the other rounds."""
        counts, edges, stages = list(counts), [0, *accumulate(counts)], self.stages
        for first in range(0, len(counts), stages):
            loads = _loads(self.cost, counts)
            of_stages = [sum(loads[c] for c in range(len(loads)) if self.stage_of[c] == s) for s in range(stages)]
            others = [of_stages[self.stage_of[c]] - loads[c] for c in range(first, first + stages)]
            counts[first : first + stages] = _cut(self.cost[edges[first] : edges[first + stages]], others)
        return counts


def _filled(begun: Sequence[float], least: Sequence[int], dealt: tuple[int, float], early: bool) -> list[int]:
    """So many equal items dealt to places that have something: the next goes where least is."""
    (count, each), sign = dealt, 1 if early else -1
    counts = list(least)
    places = [(load + each * own, sign * place) for place, (load, own) in enumerate(zip(begun, counts, strict=True))]
    heapq.heapify(places)
    for _ in range(count - sum(counts)):
        load, place = places[0]
        counts[abs(place)] += 1
        heapq.heapreplace(places, (load + each, place))
    return counts


def _cut(cost: Sequence[float], others: Sequence[float]) -> list[int]:
    """How many items each part takes, where part p has `others[p]` besides: the fullest has least and, of such cuts, the
    squares of what the parts take sum to least."""
    count, sums = len(cost), np.array([0.0, *accumulate(cost)])
    own: _Floats = np.where(np.tri(count + 1, dtype=bool), np.inf, sums[None, :] - sums[:, None])  # [begin, end]
    fullest: _Floats = np.where(np.arange(count + 1) == 0, -np.inf, np.inf)
    for load in others:
        fullest = np.maximum(fullest[:, None], own + load).min(axis=0)
    squares: _Floats = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    begins = []
    for load in others:
        allowed = np.where(own + load <= fullest[-1] * _ROUNDING, own * own, np.inf)
        together = squares[:, None] + allowed
        begins.append(together.argmin(axis=0))
        squares = together.min(axis=0)
    edges = [count]
    for begin in reversed(begins):
        edges.append(int(begin[edges[-1]]))
    return [end - begin for begin, end in pairwise(reversed(edges))]
