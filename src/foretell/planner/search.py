"""The search: on every cluster the best plans first by what they take at least, simulated until no other can be better.

A candidate's bound is refined step by step: work at the device's peak, then its replica priced alone, then the simulator.
Whatever has the lowest bound is refined next, so that the first simulated plan that is below all other bounds is the best.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from foretell.cost.model import CostModel
from foretell.engine import digest, folder_digest
from foretell.errors import ForetellError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import forecast
from foretell.hardware import Cluster
from foretell.planner import bounds
from foretell.planner.bounds import Facts, Replica
from foretell.planner.outcome import Outcome, OutcomeCache, impossible, outcome_of
from foretell.planner.space import Candidate
from foretell.planner.steps import Steps
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.units import Seconds

NEAR: Final = 0.98  # a plan whose bound is this near to the best is not worth a simulation
SURE: Final = 0.9  # probability of fitting from which memory is no concern
SLOWER: Final = "others are faster: its bound is not below theirs"
ENDED: Final = "many were simulated, and its bound is above theirs"
ALIKE: Final = 0.05  # of a job's time: less than forecasts are off
CLASS: Final = 0.05  # of the memory: headroom is compared in such steps
_MOST: Final = 24  # simulations on one cluster


@dataclass(slots=True, kw_only=True)
class Engine:
    """What answers for a candidate, with what it has priced so far. It travels to other processes without that."""

    steps: Steps
    model: CostModel
    conditions: Conditions
    profile: Profile | None
    kept: OutcomeCache | None
    _facts: dict[tuple[int, int], Facts] = field(default_factory=dict)
    replicas: dict[tuple[object, ...], Replica] = field(default_factory=dict)
    _rough: dict[tuple[object, ...], Replica] = field(default_factory=dict)

    def facts(self, c: Candidate) -> Facts:
        key = c.variant, c.batch
        if key not in self._facts:
            self._facts[key] = bounds.facts_of(self.steps.graph(*key))
        return self._facts[key]

    def replica(self, c: Candidate, cluster: Cluster) -> Replica:
        """The candidate's replica, priced."""
        key = self.key(c, cluster)
        if key not in self.replicas:
            graph = self.steps.graph(c.variant, c.batch)
            self.replicas[key] = bounds.price_replica(graph, cluster, c.plan, self.model, self.conditions, self.profile)
        return self.replicas[key]

    def rough(self, c: Candidate, cluster: Cluster) -> Replica:
        """A bound on it from replicas that recompute nothing, at the batches that were captured."""
        key = self.key(c, cluster)
        if key not in self._rough:
            plain = c._replace(plan=_without_checkpointing(c.plan))
            self._rough[key] = bounds.recomputing(self._at(plain, cluster), c.plan)
        return self._rough[key]

    def _at(self, c: Candidate, cluster: Cluster) -> Replica:
        """One that recomputes nothing; at other batches than those captured, continued."""
        sizes = self.basis(c)
        if len(sizes) == 1 or c.batch in sizes:
            return self.replica(c, cluster)
        small, large = (self.replica(c._replace(batch=size), cluster) for size in sizes)
        return small if small.why else bounds.continued((sizes[0], sizes[1]), (small, large), c.batch)

    def basis(self, c: Candidate) -> tuple[int, ...]:
        """The batches from which others are continued."""
        return tuple(self.steps.variants[c.variant].captured)

    def key(self, c: Candidate, cluster: Cluster) -> tuple[object, ...]:
        shared = c.plan.tp, c.plan.cp, c.plan.checkpointing, c.plan.sequence_parallel, c.plan.overlap_tp
        return c.variant, c.batch, *shared, *_place(cluster, c.plan.tp * c.plan.cp)

    def first_bound(self, c: Candidate, cluster: Cluster) -> Seconds:
        """By arithmetic alone."""
        return self._trainer * bounds.arithmetic_step(self.facts(c), c.plan, cluster.nodes[0].device)

    def bound(self, c: Candidate, cluster: Cluster, replica: Replica) -> Seconds:
        step = bounds.step_bound(replica, c.plan, cluster, self.facts(c).precision, self.conditions.slowdown)
        return self._trainer * step

    @property
    def _trainer(self) -> float:
        """What its trainer makes of a step: in forecasts, so in their bounds."""
        return 1 + (self.conditions.trainer or 0.0)

    def simulate(self, c: Candidate, cluster: Cluster) -> Outcome:
        key = self._key_of_outcome(c, cluster) if self.kept else ""
        if self.kept and (known := self.kept.get(key)) is not None:
            return known
        graph = self.steps.graph(c.variant, c.batch)
        try:
            outcome = outcome_of(
                forecast(graph, cluster, c.plan, model=self.model, profile=self.profile, conditions=self.conditions)
            )
        except ForetellError as error:
            outcome = impossible(str(error))
        if self.kept:
            self.kept.put(key, outcome)
        return outcome

    def _key_of_outcome(self, c: Candidate, cluster: Cluster) -> str:
        """Name what simulating comes to by all that it rests on; prices are no part of it."""
        nodes = tuple(replace(node, dollars_per_hour=None, rented_as="", terms="") for node in cluster.nodes)
        folder = self.model.folder
        model = self.model.name, None if folder is None else folder_digest(folder)
        step = self.steps.digest(c.variant, c.batch)
        return digest(step, replace(cluster, nodes=nodes), c.plan, model, self.conditions, self.profile)


def _without_checkpointing(plan: Plan) -> Plan:
    return Plan(tp=plan.tp, cp=plan.cp, sequence_parallel=plan.sequence_parallel, overlap_tp=plan.overlap_tp)


def _place(cluster: Cluster, devices: int) -> tuple[object, ...]:
    """What of a cluster the first devices of it see."""
    node = cluster.nodes[0]
    inside = node.device.name, node.host.name, node.inside.name
    return inside if devices <= node.count else (*inside, node.count, cluster.between, cluster.oversubscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was simulated on a cluster, and why the rest was not."""

    cluster: int
    simulated: tuple[tuple[Candidate, Outcome], ...]
    pruned: Counter[str]
    priced: Mapping[tuple[object, ...], Replica] = field(default_factory=dict)  # for searches of other clusters


def search_cluster(engine: Engine, cluster: Cluster, number: int, candidates: Sequence[Candidate]) -> Found:
    """The fastest plans per sample on one cluster, and those about as fast that take less memory.

    Simulated until one that surely fits is below all other bounds.
    """
    device, pruned = cluster.nodes[0].device, Counter[str]()
    room = min(node.device.usable_bytes - node.device.context_bytes for node in cluster.nodes)
    heap: list[tuple[Seconds, int, int, Candidate]] = []
    for order, c in enumerate(candidates):
        facts = engine.facts(c)
        if bounds.arithmetic_memory(facts, c.plan) > room:
            pruned["the model's state alone does not fit"] += 1
            continue
        heap.append((engine.first_bound(c, cluster) / work(c), order, 0, c))
    heapq.heapify(heap)
    simulated: list[tuple[Candidate, Outcome]] = []
    best = _Best()
    while heap:
        bound, order, level, c = heapq.heappop(heap)
        if bound >= (1 + ALIKE) * best.rate or len(simulated) >= _MOST:
            pruned[SLOWER if bound >= (1 + ALIKE) * best.rate else ENDED] += len(heap) + 1
            break
        if level < 2:
            replica = engine.replica(c, cluster) if level else engine.rough(c, cluster)
            needed = 0 if replica.why else bounds.memory_bound(replica, c.plan)
            if replica.why:
                pruned[replica.why] += 1
            elif needed > room:
                pruned["state and activations do not fit"] += 1
            elif bound >= NEAR * best.rate and needed + device.context_bytes > best.lighter:
                pruned[SLOWER] += 1
            else:
                heapq.heappush(heap, (max(engine.bound(c, cluster, replica) / work(c), bound), order, level + 1, c))
            continue
        outcome = engine.simulate(c, cluster)
        if outcome.why:
            pruned[outcome.why] += 1
            continue
        simulated.append((c, outcome))
        if not outcome.fits:
            pruned["it does not fit when simulated"] += 1
        elif outcome.fit_probability >= SURE:
            best = best.or_(outcome, work(c))
    return Found(cluster=number, simulated=tuple(simulated), pruned=pruned)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The fastest that surely fits, and with how much memory another as fast would be the safer one."""

    rate: Seconds = float("inf")  # of a sample
    lighter: float = float("inf")

    def or_(self, outcome: Outcome, work: int) -> _Best:
        if outcome.seconds / work >= self.rate:
            return self
        return _Best(rate=outcome.seconds / work, lighter=outcome.total - CLASS * outcome.capacity)


def work(c: Candidate) -> int:
    """What a step processes, by which steps are comparable."""
    return c.batch * c.plan.dp * (c.plan.grad_accumulation or 1)
