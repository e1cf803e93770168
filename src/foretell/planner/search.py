"""The search: on every cluster the best plans first by what they take at least, simulated until no other can be better.

A candidate's bound is refined step by step: work at the device's peak, then its replica priced alone, then the simulator.
Whatever has the lowest bound is refined next, so that the first simulated plan that is below all other bounds is the best.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from foretell.cost.model import CostModel
from foretell.errors import ForetellError
from foretell.forecasting.assemble import forecast
from foretell.forecasting.conditions import Conditions
from foretell.hardware import Cluster
from foretell.planner import bounds
from foretell.planner.bounds import Facts, Replica
from foretell.planner.outcome import Kept, Outcome, impossible, key_of, outcome_of
from foretell.planner.space import Candidate
from foretell.planner.steps import Steps
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.units import Seconds

NEAR: Final = 0.98  # a plan whose bound is this near to the best is not worth a simulation
SURE: Final = 0.99  # probability of fitting from which memory is no concern
_MOST: Final = 24  # simulations on one cluster


@dataclass(slots=True, kw_only=True)
class Engine:
    """What answers for a candidate, with what it has priced so far. It travels to other processes without that."""

    steps: Steps
    model: CostModel
    conditions: Conditions
    profile: Profile | None
    kept: Kept | None
    _facts: dict[tuple[int, int], Facts] = field(default_factory=dict)
    _replicas: dict[tuple[object, ...], Replica] = field(default_factory=dict)

    def facts(self, c: Candidate) -> Facts:
        key = c.variant, c.batch
        if key not in self._facts:
            self._facts[key] = bounds.facts_of(self.steps.graph(*key))
        return self._facts[key]

    def replica(self, c: Candidate, cluster: Cluster, *, exact: bool) -> Replica:
        """Of the candidate's own checkpointing, or, cheaper, a bound on it from the replica that recomputes nothing."""
        if not exact and c.plan.checkpointing != "none":
            plain = c._replace(plan=_without_checkpointing(c.plan))
            return bounds.recomputing(self.replica(plain, cluster, exact=True), c.plan)
        key = (
            c.variant,
            c.batch,
            c.plan.tp,
            c.plan.cp,
            c.plan.checkpointing,
            c.plan.sequence_parallel,
            *_place(cluster),
        )
        if key not in self._replicas:
            graph = self.steps.graph(c.variant, c.batch)
            self._replicas[key] = bounds.price_replica(
                graph, cluster, c.plan, self.model, self.conditions, self.profile
            )
        return self._replicas[key]

    def simulate(self, c: Candidate, cluster: Cluster) -> Outcome:
        key = key_of(
            self.steps.digest(c.variant, c.batch), cluster, c.plan, self.model.name, self.model.folder, self.conditions,
            self.profile,
        ) if self.kept else ""  # fmt: skip
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


def _without_checkpointing(plan: Plan) -> Plan:
    return Plan(tp=plan.tp, cp=plan.cp, sequence_parallel=plan.sequence_parallel, overlap_tp=plan.overlap_tp)


def _place(cluster: Cluster) -> tuple[object, ...]:
    node = cluster.nodes[0]
    return node.device.name, node.host.name, node.inside.name, node.count if len(cluster.nodes) > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was simulated on a cluster, and why the rest was not."""

    cluster: int
    simulated: tuple[tuple[Candidate, Outcome], ...]
    pruned: Counter[str]


def search_cluster(engine: Engine, cluster: Cluster, number: int, candidates: Sequence[Candidate]) -> Found:
    """The fastest plans per sample on one cluster: simulated until one that surely fits is below all other bounds."""
    device, pruned = cluster.nodes[0].device, Counter[str]()
    room = min(node.device.usable_bytes - node.device.context_bytes for node in cluster.nodes)
    heap: list[tuple[Seconds, int, int, Candidate]] = []
    for order, c in enumerate(candidates):
        facts = engine.facts(c)
        if bounds.arithmetic_memory(facts, c.plan) > room:
            pruned["the model's state alone does not fit"] += 1
            continue
        heap.append((bounds.arithmetic_step(facts, c.plan, device) / _work(c), order, 0, c))
    heapq.heapify(heap)
    simulated: list[tuple[Candidate, Outcome]] = []
    best = float("inf")
    while heap:
        bound, order, level, c = heapq.heappop(heap)
        if bound >= NEAR * best or len(simulated) >= _MOST:
            pruned[
                "others are faster: "
                + ("its bound is not below theirs" if bound >= NEAR * best else "the search ended")
            ] += len(heap) + 1
            break
        if level < 2:
            replica = engine.replica(c, cluster, exact=level == 1)
            if replica.why:
                pruned[replica.why] += 1
            elif bounds.memory_bound(replica, c.plan) > room:
                pruned["state and activations do not fit"] += 1
            else:
                plain = c.plan.checkpointing == "none"
                refined = bounds.step_bound(
                    replica, c.plan, cluster, engine.facts(c).precision, engine.conditions.slowdown
                ) / _work(c)
                heapq.heappush(heap, (max(refined, bound), order, 2 if plain else level + 1, c))
            continue
        outcome = engine.simulate(c, cluster)
        if outcome.why:
            pruned[outcome.why] += 1
        elif not outcome.fits:
            pruned["it does not fit when simulated"] += 1
            simulated.append((c, outcome))
        else:
            simulated.append((c, outcome))
            if outcome.fit_probability >= SURE:
                best = min(best, outcome.seconds / _work(c))
    return Found(cluster=number, simulated=tuple(simulated), pruned=pruned)


def _work(c: Candidate) -> int:
    """What a step processes, by which steps are comparable."""
    return c.batch * c.plan.dp * (c.plan.grad_accumulation or 1)
