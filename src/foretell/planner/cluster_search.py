"""The search on one cluster: the best plans first by what they take at least, simulated until no other can be better.

A candidate's bound is refined step by step: work at the device's peak, then its replica priced alone, then the simulator.
Whatever has the lowest bound is refined next, so that the first simulated plan that is below all other bounds is the best.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from foretell.planner.bounds.replica import Replica
from foretell.planner.candidates import SURE, Candidate, complexity
from foretell.planner.evaluate import PlanEvaluator, ReplicaKey
from foretell.planner.outcome import Outcome
from foretell.units import Bytes, Seconds

NEAR: Final = 0.98  # a plan whose bound is this near to the best is not worth a simulation
SLOWER: Final = "others are faster: its bound is not below theirs"
ENDED: Final = "many were simulated, and its bound is above theirs"
ALIKE: Final = 0.05  # of a job's time: less than forecasts are off
CLASS: Final = 0.05  # of the memory: headroom is compared in such steps
ROOMY: Final = 0.20  # of the memory free: more is no better
_MAX_SIMULATIONS: Final = 24  # on one cluster
_UNTIL_ONE_FITS: Final = 96  # where none of them surely fits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """What was simulated on a cluster, and why the rest was not."""

    simulated: tuple[tuple[Candidate, Outcome], ...]
    pruned: Counter[str]
    priced: Mapping[ReplicaKey, Replica] = field(default_factory=dict)  # for searches of other clusters


def search_cluster(
    evaluator: PlanEvaluator, number: int, candidates: Sequence[Candidate], sure: float = SURE
) -> ClusterResult:
    """The fastest plans per sample on one cluster, and those about as fast that take less memory.

    Simulated until one that fits with a probability of `sure` is below all other bounds.
    """
    cluster, pruned = evaluator.clusters[number], Counter[str]()
    context_bytes = cluster.nodes[0].device.context_bytes
    room = min(node.device.usable_bytes - node.device.context_bytes for node in cluster.kinds)
    heap: list[tuple[Seconds, int, int, Candidate]] = []
    for order, c in enumerate(candidates):
        if evaluator.first_memory(c) > room:
            pruned["the model's state alone does not fit"] += 1
            continue
        heap.append((evaluator.first_bound(c) / c.work, order, 0, c))
    heapq.heapify(heap)
    simulated: list[tuple[Candidate, Outcome]] = []
    best = _Best()
    while heap:
        bound, order, level, c = heapq.heappop(heap)
        if bound >= best.limit or len(simulated) >= best.simulations:
            pruned[SLOWER if bound >= best.limit else ENDED] += len(heap) + 1
            break
        if level < 2:
            replica = evaluator.replica(c) if level else evaluator.rough(c)
            needed = 0 if replica.why else evaluator.memory(c, replica)
            if replica.why:
                pruned[replica.why] += 1
            elif needed > room:
                pruned["state and activations do not fit"] += 1
            elif bound >= NEAR * best.rate and not best.may_yield_to(c, needed + context_bytes):
                pruned[SLOWER] += 1
            else:
                heapq.heappush(heap, (max(evaluator.bound(c, replica) / c.work, bound), order, level + 1, c))
            continue
        outcome = evaluator.simulate(c)
        if outcome.why:
            pruned[outcome.why] += 1
            continue
        simulated.append((c, outcome))
        if not outcome.fits:
            pruned["it does not fit when simulated"] += 1
        elif outcome.fit_probability >= sure:
            best = best.or_(outcome, c)
    return ClusterResult(simulated=tuple(simulated), pruned=pruned)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The fastest that surely fits, and with how much memory another as fast would be the safer one."""

    rate: Seconds = float("inf")  # of a sample
    lighter: float = float("inf")
    complexity: int = 0

    roomy: bool = False  # so that more memory free is no better

    @property
    def limit(self) -> Seconds:
        """The bound of a sample from which a plan is no better: neither faster nor, about as fast, simpler or safer."""
        return self.rate * (1 + ALIKE if not self.roomy else 1.0 if self.complexity else NEAR)

    @property
    def simulations(self) -> int:
        """How many are enough."""
        return _UNTIL_ONE_FITS if self.rate == float("inf") else _MAX_SIMULATIONS

    def may_yield_to(self, c: Candidate, needed: Bytes) -> bool:
        """Whether a plan that may be as fast would be taken instead: as the safer or the simpler one."""
        return needed <= self.lighter or complexity(c.plan) < self.complexity

    def or_(self, outcome: Outcome, c: Candidate) -> _Best:
        if outcome.seconds / c.work >= self.rate:
            return self
        lighter, roomy = outcome.total - CLASS * outcome.capacity, outcome.headroom >= ROOMY
        return _Best(rate=outcome.seconds / c.work, lighter=lighter, complexity=complexity(c.plan), roomy=roomy)
