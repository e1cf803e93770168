"""The search on one cluster: what must be simulated so that the simplest of equals is found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

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
    clusters: tuple[Cluster, ...] = field(default_factory=lambda: (Cluster.parse("8xh100-sxm"),))

    def first_memory(self, c: Candidate) -> int:
        return 2**30

    def memory(self, c: Candidate, replica: Replica) -> int:
        return 2**30

    def rough(self, c: Candidate) -> Replica:
        return Replica()

    replica = rough

    def first_bound(self, c: Candidate) -> float:
        return 0.9 * self.seconds[c.plan]

    def bound(self, c: Candidate, replica: Replica) -> float:
        return 0.999 * self.seconds[c.plan]

    def simulate(self, c: Candidate) -> Outcome:
        return replace(
            impossible(""), seconds=self.seconds[c.plan], fits=True, fit_probability=1.0, total=2**30, capacity=80 * 2**30
        )  # fmt: skip


def found(seconds: dict[str, float]) -> dict[str, Outcome]:
    plans = {Plan.parse(text): value for text, value in seconds.items()}
    evaluator = cast(Any, Priced(plans))
    result = search_cluster(cast(PlanEvaluator, evaluator), 0, [Candidate(0, 0, 2, plan) for plan in plans])
    return {str(c.plan): outcome for c, outcome in result.simulated}


def test_a_simpler_plan_that_takes_the_same_is_simulated() -> None:
    """DDP was left out where sharding was faster in the fourth digit, and then sharding was recommended."""
    both = found({"dp=8": 1.0004, "dp=8,zero=1": 1.0, "dp=8,zero=3": 1.0})
    assert {"dp=8", "dp=8,zero=1"} <= set(both)
    assert both["dp=8"].step.median == 1.0004, "no digit is lost on the way"
    assert set(found({"dp=8": 1.0, "dp=8,zero=1": 1.0004})) == {"dp=8"}, "nothing simpler is left"
