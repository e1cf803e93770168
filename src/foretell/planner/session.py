"""One search from beginning to end: replicas are priced, clusters searched in turn, and choices made of what was simulated."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from foretell.forecasting.garbage import no_garbage_collection
from foretell.planner.bounds.replica import Replica
from foretell.planner.candidates import SURE, Candidate, Candidates, own_settings
from foretell.planner.choices import JobTerms
from foretell.planner.cluster_search import ClusterResult, search_cluster
from foretell.planner.evaluate import PlanEvaluator, ReplicaKey
from foretell.planner.goal import Goal
from foretell.planner.pool import Runner
from foretell.planner.result import Choice, PlanResult, Pruned
from foretell.planner.verdict import choose, front, is_tight
from foretell.units import Dollars, Seconds

_NEARER: Final = 4  # clusters that are looked at although their bounds say that they cannot do
_DEFERRED: Final = "by its bound it would miss the deadline or the budget"


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    candidates: Sequence[Candidate]
    known: Mapping[ReplicaKey, Replica]  # that others have priced
    sure: float  # probability of fitting that is looked for
    wanted: float  # the least that is chosen


@dataclass(slots=True, kw_only=True)
class Session:
    """Clusters one after another, the most promising first; what an earlier one beats for certain is left out."""

    evaluator: PlanEvaluator
    candidates: Candidates
    terms: JobTerms
    runner: Runner
    say: Callable[[str], None]
    choices: list[Choice] = field(default_factory=list)
    simulated: int = 0
    _by_cluster: dict[int, list[Candidate]] = field(default_factory=lambda: defaultdict(list))
    _pruned: Counter[str] = field(default_factory=Counter)
    _deferred: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pruned.update(self.candidates.left_out)
        for candidate in self.candidates.found:
            self._by_cluster[candidate.cluster].append(candidate)

    def result(self, began: float) -> PlanResult:
        self._price()
        self._search(self._promising())
        verdict = choose(self.choices, self.terms.goal)
        if verdict.recommended is None and self._deferred:
            near = [number for _, number in sorted(self._deferred)[:_NEARER]]
            for number in near:
                self._pruned[_DEFERRED] -= len(self._by_cluster[number])
            self._search(iter(near))
            verdict = choose(self.choices, self.terms.goal)
        return PlanResult(
            workload=self.evaluator.steps.name,
            model=self.evaluator.model.name,
            profile=self.evaluator.profile.name if self.evaluator.profile else None,
            deadline=self.terms.goal.deadline,
            budget=self.terms.goal.budget,
            confidence=self.terms.goal.confidence,
            recommended=verdict.recommended,
            reason=verdict.reason,
            nearest=verdict.nearest,
            front=front(self.choices),
            pruned=tuple(
                Pruned(reason=reason, count=count) for reason, count in self._pruned.most_common() if count > 0
            ),
            candidates=self.candidates.considered,
            simulated=self.simulated,
            seconds=time.monotonic() - began,
            caveats=self._caveats(),
            choices=tuple(sorted(self.choices, key=lambda c: c.time.median)),
        )

    def _search(self, numbers: Iterator[int]) -> None:
        wanted = self.terms.goal.confidence
        tasks = (
            _Task(number, self._by_cluster[number], dict(self.evaluator.replicas), max(SURE, wanted), wanted)
            for number in numbers
        )
        for result in self.runner.each(_search, self.evaluator, tasks):
            self._take(result)

    def _take(self, result: ClusterResult) -> None:
        evaluator = self.evaluator
        self._pruned.update(result.pruned)
        evaluator.replicas.update(result.priced)
        self.simulated += len(result.simulated)
        self.choices += [
            self.terms.choice(evaluator.clusters[c.cluster], evaluator.steps.variants[c.variant], c, o)
            for c, o in result.simulated
            if o.fits and not o.why
        ]
        self.say(f"{self.simulated} plans simulated, {len(self.choices)} fit")

    def _promising(self) -> Iterator[int]:
        """Clusters in the order of their bounds' products of time and cost."""
        order = sorted((self._least(number), number) for number in self._by_cluster)
        for least, number in sorted(order, key=lambda entry: entry[0].product):
            if least.seconds > (self.terms.goal.deadline or math.inf) or least.dollars > (
                self.terms.goal.budget or math.inf
            ):
                self._pruned[_DEFERRED] += len(self._by_cluster[number])
                self._deferred.append((least.over(self.terms.goal), number))
            elif any(
                c.time.median <= least.seconds and (c.cost.median if c.cost else math.inf) <= least.dollars
                for c in self.choices
                if not self.terms.goal.missed_by(c) and not is_tight(c)
            ):
                self._pruned["another cluster is faster and cheaper for certain"] += len(self._by_cluster[number])
            else:
                yield number

    def _least(self, number: int) -> _Least:
        """What the job takes at least on a cluster."""
        evaluator = self.evaluator
        rate, per_unit = math.inf, 0.0
        for c in self._by_cluster[number]:
            replica = evaluator.rough(c)
            if not replica.why and (each := evaluator.bound(c, replica) / c.work) < rate:
                rate, per_unit = each, self._units(c)
        if math.isinf(rate):
            return _Least(seconds=0.0, dollars=0.0)  # whatever the reason, the search will say it
        seconds = (self.terms.length.samples or self.terms.length.tokens or 0.0) / per_unit * rate if per_unit else 0.0
        price = evaluator.clusters[number].dollars_per_hour
        return _Least(seconds=seconds, dollars=0.0 if price is None else seconds / 3600 * price)

    def _price(self) -> None:
        """The replicas that bounds start from, side by side."""
        tasks: dict[ReplicaKey, list[Candidate]] = defaultdict(list)
        seen = set()
        for c in self.candidates.found:
            if c.plan.checkpointing != "none":
                continue
            for batch in self.evaluator.basis(c):
                basis = c._replace(batch=batch)
                key = self.evaluator.key(basis)
                if key not in seen:
                    seen.add(key)
                    tasks[c.variant, batch, c.plan.tp, c.plan.cp].append(basis)
        for priced in self.runner.each(_price, self.evaluator, iter(tasks.values())):
            self.evaluator.replicas.update(priced)
            self.say(f"{len(self.evaluator.replicas)} replicas priced")

    def _units(self, c: Candidate) -> float:
        """Samples, or tokens, that a batch of one has."""
        variant = self.evaluator.steps.variants[c.variant]
        batch, graph = next(iter(variant.captured.items()))
        return ((graph.samples if self.terms.length.samples is not None else graph.tokens) or 0) / batch

    def _caveats(self) -> tuple[str, ...]:
        texts = []
        template = self.evaluator.steps.variants[0].graph.facts.plan
        if own := own_settings(self.evaluator.steps):
            written = ",".join(f"{name}={value}" for name, value in own.items())
            texts.append(
                f"{template.source if template else ''} decides {written}: that was kept, and the rest searched."
            )
        if (trainer := self.evaluator.trainer).fraction and self.choices:
            texts.append(f"{trainer.caveat(0.0).text} All plans have it, or some would win by it.")
        if any(not c.calibrated for c in self.choices):
            texts.append(
                "Intervals of several devices are not validated: they are the usual spread of forecasts of published jobs."
            )
        if bare := sorted({c.cluster for c in self.choices if c.cost is None}):
            texts.append(
                f"Nobody is known to rent {', '.join(bare)} as simulated; they are compared by time and number."
            )
        return tuple(texts)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Least:
    seconds: Seconds
    dollars: Dollars

    @property
    def product(self) -> float:
        return self.seconds * (self.dollars or self.seconds)

    def over(self, goal: Goal) -> float:
        late = math.log(self.seconds / goal.deadline) if goal.deadline else 0.0
        dear = math.log(self.dollars / goal.budget) if goal.budget and self.dollars else 0.0
        return max(late, 0.0) + max(dear, 0.0)


def _search(evaluator: PlanEvaluator, task: _Task) -> ClusterResult:
    evaluator.replicas.update(task.known)
    with no_garbage_collection():
        result = search_cluster(evaluator, task.number, task.candidates, task.sure, task.wanted)
    return replace(result, priced={key: r for key, r in evaluator.replicas.items() if key not in task.known})


def _price(evaluator: PlanEvaluator, candidates: Sequence[Candidate]) -> dict[ReplicaKey, Replica]:
    with no_garbage_collection():
        return {evaluator.key(c): evaluator.replica(c) for c in candidates}
