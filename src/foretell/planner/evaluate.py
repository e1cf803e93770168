"""What answers for a candidate: bounds that are refined step by step, then the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from foretell.cost.folder import content_of
from foretell.cost.model import CostModel
from foretell.errors import ForetellError
from foretell.forecasting.answer_key import answer_key, hardware_key
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import forecast
from foretell.forecasting.trainer import TrainerOverhead, trainer_overhead
from foretell.hardware import Cluster
from foretell.planner.bounds.memory import arithmetic_memory, memory_bound
from foretell.planner.bounds.replica import (
    Replica,
    StepTotals,
    at_batch,
    price_replica,
    recomputing,
    totals_at,
    totals_of,
)
from foretell.planner.bounds.time import StepBounds, arithmetic_step
from foretell.planner.candidates import Candidate
from foretell.planner.outcome import Outcome, OutcomeCache, impossible, outcome_of
from foretell.planner.steps import Steps
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.recomputing import Recomputing
from foretell.units import Bytes, Seconds

LITTLE: Final = 0.01  # of the activations: whoever recomputes frees more
ReplicaKey = tuple[object, ...]  # all that a replica's price depends on


@dataclass(slots=True, kw_only=True)
class PlanEvaluator:
    """Evaluates the candidates of one search, and remembers what it has priced as long as the search lasts."""

    steps: Steps
    clusters: tuple[Cluster, ...]
    model: CostModel
    conditions: Conditions
    profile: Profile | None
    outcomes: OutcomeCache | None
    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)
    _totals: dict[tuple[int, int], StepTotals] = field(default_factory=dict)
    _rough: dict[ReplicaKey, Replica] = field(default_factory=dict)
    _bounds: dict[int, StepBounds] = field(default_factory=dict)  # by cluster
    _hardware: dict[int, str] = field(default_factory=dict)  # by cluster, without its prices

    def replica(self, c: Candidate) -> Replica:
        """The candidate's replica, priced; where what it recomputes hangs on its memory, a bound on it."""
        key = self.key(c)
        if Recomputing.parse(c.plan.checkpointing).kind in ("cheapest", "budget"):
            return self.rough(c)
        if key not in self.replicas:
            self.replicas[key] = price_replica(
                self.steps.graph(c.variant, c.batch), self.clusters[c.cluster], c.plan, self.model, self.conditions,
                self.profile,
            )  # fmt: skip
        return self.replicas[key]

    def rough(self, c: Candidate) -> Replica:
        """A bound on its replica from those that recompute nothing, at the batches that were captured."""
        key = self.key(c)
        if key not in self._rough:
            self._rough[key] = recomputing(self._at(c._replace(plan=_without_checkpointing(c.plan))), c.plan)
        return self._rough[key]

    def _at(self, c: Candidate) -> Replica:
        """A replica that recomputes nothing; at other batches than those captured, continued."""
        sizes = self.basis(c)
        if len(sizes) == 1 or c.batch in sizes:
            return self.replica(c)
        small, large = (self.replica(c._replace(batch=size)) for size in sizes)
        return small if small.why else at_batch((sizes[0], sizes[1]), (small, large), c.batch)

    def basis(self, c: Candidate) -> tuple[int, ...]:
        """The batches from which others are continued."""
        return tuple(self.steps.variants[c.variant].captured)

    def frees_memory(self, c: Candidate) -> bool:
        """Whether recomputing keeps less for the backward pass than its twin does: fused attention keeps nothing to repeat."""
        if Recomputing.parse(c.plan.checkpointing).kind in ("cheapest", "budget"):
            return True  # it depends on its memory
        basis = c._replace(batch=self.basis(c)[0])
        twin = basis._replace(plan=_without_checkpointing(c.plan))
        kept, whole = self.replica(basis), self.replica(twin)
        return bool(kept.why or whole.why) or kept.activations < (1 - LITTLE) * whole.activations

    def key(self, c: Candidate) -> ReplicaKey:
        """What the price of a candidate's replica depends on: its step, its sharing, and the devices that share it."""
        node, cluster = self.clusters[c.cluster].nodes[0], self.clusters[c.cluster]
        plan = c.plan
        shared = (
            plan.tp,
            plan.cp,
            plan.ulysses,
            plan.cp_gather,
            plan.checkpointing,
            plan.sequence_parallel,
            plan.overlap_tp,
        )
        place: ReplicaKey = node.device.name, node.host, node.inside.name
        if c.plan.tp * c.plan.cp > node.count:
            place = *place, node.count, cluster.between, cluster.oversubscription
        return c.variant, c.batch, *shared, *place

    def first_bound(self, c: Candidate) -> Seconds:
        """The step's seconds by arithmetic alone."""
        device = self.clusters[c.cluster].nodes[0].device
        return self.trainer.factor * arithmetic_step(self._totals_of(c), c.plan, device)

    def bound(self, c: Candidate, replica: Replica) -> Seconds:
        """The step's seconds, at least, with this replica."""
        if c.cluster not in self._bounds:
            cluster = self.clusters[c.cluster]
            self._bounds[c.cluster] = StepBounds(cluster=cluster, slowdown=self.conditions.slowdown)
        return self.trainer.factor * self._bounds[c.cluster].step(replica, c.plan, self._totals_of(c).precision)

    def first_memory(self, c: Candidate) -> Bytes:
        """The memory of the model's state alone."""
        return arithmetic_memory(self._totals_of(c), c.plan)

    def memory(self, c: Candidate, replica: Replica) -> Bytes:
        """The memory, at least, with this replica."""
        return memory_bound(replica, c.plan, self._totals_of(c).precision)

    def _totals_of(self, c: Candidate) -> StepTotals:
        """At other batches than those captured, along the line through them: no graph is made for a bound."""
        key, captured = (c.variant, c.batch), self.steps.variants[c.variant].captured
        if key not in self._totals:
            for size, graph in captured.items():
                if (c.variant, size) not in self._totals:
                    self._totals[c.variant, size] = totals_of(graph)
            self._totals[key] = totals_at([(size, self._totals[c.variant, size]) for size in captured], c.batch)
        return self._totals[key]

    @property
    def trainer(self) -> TrainerOverhead:
        """What its trainer adds to every step: in forecasts, so in their bounds."""
        graph, profiled = self.steps.variants[0].graph, self.profile is not None
        return trainer_overhead(
            self.conditions, self.model, graph.facts, Plan(), training=graph.training, profiled=profiled
        )

    def simulate(self, c: Candidate) -> Outcome:
        key = self._key_of_outcome(c) if self.outcomes else ""
        if self.outcomes and (known := self.outcomes.get(key)) is not None:
            return known
        graph, cluster = self.steps.graph(c.variant, c.batch), self.clusters[c.cluster]
        try:
            outcome = outcome_of(
                forecast(graph, cluster, c.plan, model=self.model, profile=self.profile, conditions=self.conditions)
            )
        except ForetellError as error:
            outcome = impossible(str(error))
        if self.outcomes:
            self.outcomes.put(key, outcome)
        return outcome

    def _key_of_outcome(self, c: Candidate) -> str:
        """Name what simulating comes to by all that it rests on; prices are no part of it."""
        if c.cluster not in self._hardware:
            unpriced = self.clusters[c.cluster].with_nodes(
                lambda node: replace(node, dollars_per_hour=None, instance="", rented_as="", terms="")
            )
            self._hardware[c.cluster] = hardware_key(unpriced)
        step, model = self.steps.digest(c.variant, c.batch), (self.model.name, content_of(self.model.folder))
        profile, conditions = self.profile, self.conditions
        return answer_key(step, self._hardware[c.cluster], c.plan, model=model, profile=profile, conditions=conditions)


def _without_checkpointing(plan: Plan) -> Plan:
    return Plan(
        tp=plan.tp, cp=plan.cp, ulysses=plan.ulysses, cp_gather=plan.cp_gather, sequence_parallel=plan.sequence_parallel,
        overlap_tp=plan.overlap_tp,
    )  # fmt: skip
