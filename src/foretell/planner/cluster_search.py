"""The search on one cluster: the best plans first by what they take at least, simulated until no other can be better.

A candidate's bound is refined step by step: work at the device's peak, then its replica priced alone, then the simulator.
Whatever has the lowest bound is refined next, so that the first simulated plan that is below all other bounds is the best.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from foretell.forecasting.memory import probability_of_fitting
from foretell.planner.bounds.replica import Replica
from foretell.planner.candidates import SURE, Candidate, complexity
from foretell.planner.evaluate import PlanEvaluator, ReplicaKey
from foretell.planner.outcome import Outcome
from foretell.units import Bytes, Seconds

NEAR: Final = 0.98  # a plan whose bound is this near to the best is not worth a simulation
SLOWER: Final = "others are faster: its bound is not below theirs"
ENDED: Final = "many were simulated, and its bound is above theirs"
UNSURE: Final = "by its memory it fits less surely than is wanted"
IDLE: Final = "recomputing frees no memory"
ALIKE: Final = 0.05  # of a job's time: less than forecasts are off
CLASS: Final = 0.05  # of the memory: headroom is compared in such steps
ROOMY: Final = 0.20  # of the memory free: more is no better
_MAX_SIMULATIONS: Final = 24  # on one cluster
_UNTIL_ONE_FITS: Final = 96  # where none of them surely fits
_Entry = tuple[Seconds, int, int, Candidate]  # the bound of a sample, its place among candidates, how far it is refined


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """What was simulated on a cluster, and why the rest was not."""

    simulated: tuple[tuple[Candidate, Outcome], ...]
    pruned: Counter[str]
    priced: Mapping[ReplicaKey, Replica] = field(default_factory=dict)  # for searches of other clusters


def search_cluster(
    evaluator: PlanEvaluator,
    number: int,
    candidates: Sequence[Candidate],
    sure: float = SURE,
    wanted: float = 0.0,
) -> ClusterResult:
    """The fastest plans per sample on one cluster, and those about as fast that take less memory.

    Simulated until one that fits with a probability of `sure` is below all other bounds. What fits with less than is `wanted`,
    as its memory's bound shows already, is never chosen: where something is, the first of it is simulated to be named beside.
    """
    search = _Search(evaluator, number, candidates, sure=sure, wanted=wanted)
    search.refine()
    search.look_at_unsure()
    return ClusterResult(simulated=tuple(search.simulated), pruned=search.pruned)


class _Search:
    """Candidates of a cluster in the order of their bounds, and what was found of them."""

    def __init__(
        self, evaluator: PlanEvaluator, number: int, candidates: Sequence[Candidate], *, sure: float, wanted: float
    ) -> None:
        self.evaluator, self.cluster = evaluator, evaluator.clusters[number]
        self.sure, self.wanted = sure, wanted
        self.context_bytes = self.cluster.nodes[0].device.context_bytes
        self.room = min(node.device.usable_bytes - node.device.context_bytes for node in self.cluster.kinds)
        self.capacity = max(node.device.usable_bytes for node in self.cluster.kinds)
        self.offered = frozenset(candidates)
        self.pruned, self.best = Counter[str](), _Best()
        self.simulated: list[tuple[Candidate, Outcome]] = []
        self.heap: list[_Entry] = []
        self.unsure: list[_Entry] = []
        for order, c in enumerate(candidates):
            if evaluator.first_memory(c) > self.room:
                self.pruned["the model's state alone does not fit"] += 1
            else:
                self.heap.append((evaluator.first_bound(c) / c.work, order, 0, c))
        heapq.heapify(self.heap)

    def refine(self, most: int = _UNTIL_ONE_FITS, otherwise: str = ENDED) -> None:
        """Refine what has the lowest bound, until no other can be better or enough are simulated."""
        while self.heap:
            bound, _, level, c = entry = heapq.heappop(self.heap)
            if bound >= self.best.limit or len(self.simulated) >= min(self.best.simulations, most):
                self.pruned[SLOWER if bound >= self.best.limit else otherwise] += len(self.heap) + 1
                break
            if level < 2:
                self._sharpen(entry)
            else:
                self._simulate(c)

    def look_at_unsure(self) -> None:
        """All of it where nothing surely fits, so that the nearest is found; else the one with the lowest bound."""
        self.heap, self.unsure, self.wanted = self.unsure, [], 0.0
        heapq.heapify(self.heap)
        if self.best.known:
            self.refine(len(self.simulated) + 1, UNSURE)
        else:
            self.refine()

    def _sharpen(self, entry: _Entry) -> None:
        bound, order, level, c = entry
        if level and self._recomputes_for_nothing(c):
            self.pruned[IDLE] += 1
            return
        replica = self.evaluator.replica(c) if level else self.evaluator.rough(c)
        needed = 0 if replica.why else self.evaluator.memory(c, replica)
        if replica.why:
            self.pruned[replica.why] += 1
        elif needed > self.room:
            self.pruned["state and activations do not fit"] += 1
        elif bound >= NEAR * self.best.rate and not self.best.may_yield_to(c, needed + self.context_bytes):
            self.pruned[SLOWER] += 1
        else:
            better = max(self.evaluator.bound(c, replica) / c.work, bound), order, level + 1, c
            heapq.heappush(self.unsure if self._odds(needed) < self.wanted else self.heap, better)

    def _odds(self, needed: Bytes) -> float:
        """Of fitting, at most."""
        return probability_of_fitting(needed + self.context_bytes, self.capacity, self.cluster.devices)

    def _recomputes_for_nothing(self, c: Candidate) -> bool:
        """Whether its twin that recomputes nothing is offered, and keeps as little: then recomputing only takes time."""
        twin = c._replace(plan=replace(c.plan, checkpointing="none"))
        return twin != c and twin in self.offered and not self.evaluator.frees_memory(c)

    def _simulate(self, c: Candidate) -> None:
        outcome = self.evaluator.simulate(c)
        if outcome.why:
            self.pruned[outcome.why] += 1
            return
        self.simulated.append((c, outcome))
        if not outcome.fits:
            self.pruned["it does not fit when simulated"] += 1
        elif outcome.fit_probability >= self.sure:
            self.best = self.best.or_(outcome, c)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The fastest that surely fits, and with how much memory another as fast would be the safer one."""

    rate: Seconds = float("inf")  # of a sample
    lighter: float = float("inf")
    complexity: int = 0

    roomy: bool = False  # so that more memory free is no better

    @property
    def known(self) -> bool:
        return self.rate < float("inf")

    @property
    def limit(self) -> Seconds:
        """The bound of a sample from which a plan is no better: neither faster nor, about as fast, simpler or safer."""
        return self.rate * (1 + ALIKE if not self.roomy else 1.0 if self.complexity else NEAR)

    @property
    def simulations(self) -> int:
        """How many are enough."""
        return _MAX_SIMULATIONS if self.known else _UNTIL_ONE_FITS

    def may_yield_to(self, c: Candidate, needed: Bytes) -> bool:
        """Whether a plan that may be as fast would be taken instead: as the safer or the simpler one."""
        return needed <= self.lighter or complexity(c.plan) < self.complexity

    def or_(self, outcome: Outcome, c: Candidate) -> _Best:
        if outcome.seconds / c.work >= self.rate:
            return self
        lighter, roomy = outcome.total - CLASS * outcome.capacity, outcome.headroom >= ROOMY
        return _Best(rate=outcome.seconds / c.work, lighter=lighter, complexity=complexity(c.plan), roomy=roomy)
