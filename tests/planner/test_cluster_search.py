"""The search on one cluster: what must be simulated so that the simplest of equals is found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from foretell.forecasting.memory import probability_of_fitting
from foretell.hardware import Cluster
from foretell.planner.bounds.replica import Replica
from foretell.planner.candidates import Candidate
from foretell.planner.cluster_search import search_cluster
from foretell.planner.evaluate import PlanEvaluator
from foretell.planner.outcome import Outcome, impossible
from foretell.plans import Plan


@dataclass
class Priced:
    """An evaluator of plans whose seconds are given: the step's, with bounds just below."""

    seconds: dict[Plan, float]
    needed: dict[str, int] = field(default_factory=dict)  # GiB, of plans that have this in their text; else 1
    freeing: bool = False  # whether recomputing frees memory
    clusters: tuple[Cluster, ...] = field(default_factory=lambda: (Cluster.parse("8xh100-sxm"),))

    def first_memory(self, c: Candidate) -> int:
        return 2**30

    def memory(self, c: Candidate, replica: Replica) -> int:
        return 2**30 * next((gib for text, gib in self.needed.items() if text in str(c.plan)), 1)

    def frees_memory(self, c: Candidate) -> bool:
        return self.freeing

    def rough(self, c: Candidate) -> Replica:
        return Replica()

    replica = rough

    def first_bound(self, c: Candidate) -> float:
        return 0.9 * self.seconds[c.plan]

    def bound(self, c: Candidate, replica: Replica) -> float:
        return 0.999 * self.seconds[c.plan]

    def simulate(self, c: Candidate) -> Outcome:
        total, capacity = self.memory(c, Replica()), self.clusters[0].nodes[0].device.usable_bytes
        odds = probability_of_fitting(total, capacity, 8)
        return replace(
            impossible(""), seconds=self.seconds[c.plan], fits=True, fit_probability=odds, total=total, capacity=capacity
        )  # fmt: skip


def found(seconds: dict[str, float], **others: Any) -> dict[str, Outcome]:
    plans = {Plan.parse(text): value for text, value in seconds.items()}
    evaluator = cast(PlanEvaluator, cast(Any, Priced(plans, **others)))
    result = search_cluster(evaluator, 0, [Candidate(0, 0, 2, plan) for plan in plans], wanted=0.9)
    return {str(c.plan): outcome for c, outcome in result.simulated}


def test_a_simpler_plan_that_takes_the_same_is_simulated() -> None:
    """DDP was left out where sharding was faster in the fourth digit, and then sharding was recommended."""
    both = found({"dp=8": 1.0004, "dp=8,zero=1": 1.0, "dp=8,zero=3": 1.0})
    assert {"dp=8", "dp=8,zero=1"} <= set(both)
    assert both["dp=8"].step.median == 1.0004, "no digit is lost on the way"
    assert set(found({"dp=8": 1.0, "dp=8,zero=1": 1.0004})) == {"dp=8"}, "nothing simpler is left"


def test_recomputing_that_frees_no_memory_is_not_simulated() -> None:
    """Selective checkpointing repeats attention, of which fused kernels keep nothing: a third of what was simulated."""
    plans = {"dp=8": 1.0, "dp=8,checkpointing=selective": 0.99}
    assert set(found(plans)) == {"dp=8"}
    assert set(found(plans, freeing=True)) == {"dp=8,checkpointing=selective"}, "bounds below all others come first"
    assert len(found({"dp=8,checkpointing=selective": 1.0})) == 1, "it is all that is offered"


def test_of_what_cannot_be_chosen_one_is_simulated_to_be_named() -> None:
    """Fast plans that fit by chance were simulated first, one after another, though none could be recommended."""
    plans = {"dp=8": 1.0, "dp=8,zero=1": 1.1, "dp=8,zero=2": 1.2, "dp=8,zero=3": 1.3}
    full = {"zero=1": 70, "zero=2": 71, "zero=3": 10, "dp=8": 75}
    assert set(found(plans, needed=full)) == {"dp=8,zero=3", "dp=8"}
    assert set(found(plans, needed={"dp": 75})) == set(plans), "nothing surely fits: which is nearest?"
