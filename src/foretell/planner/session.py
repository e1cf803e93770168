"""One search from beginning to end: clusters in turn, choices of what was simulated, and runs where they are allowed."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foretell.forecasting.energy import cluster_watts
from foretell.forecasting.garbage import no_garbage_collection
from foretell.forecasting.job import Job, JobLength, Pause
from foretell.forecasting.memory import probability_of_fitting
from foretell.hardware import Cluster
from foretell.planner.bounds import Replica, memory_bound
from foretell.planner.choose import Goal, choose, describe, front, probability_below, spread
from foretell.planner.measured import NOISE, MeasuredRun, Option, Run, search
from foretell.planner.outcome import Z90, Outcome
from foretell.planner.pool import Runner
from foretell.planner.result import Choice, PlanResult, Pruned, Range
from foretell.planner.search import Engine, Found, search_cluster, work
from foretell.planner.space import Candidate, Enumerated
from foretell.planner.steps import Steps
from foretell.units import Dollars, Seconds

# What a job is taken to be where nothing is said (docs/guide/planning.md).
SAVED_EVERY: Final[Seconds] = 3600.0
SAVING: Final[Seconds] = 30.0
_NEARER: Final = 4  # clusters that are looked at although their bounds say that they cannot do


def choices_of(
    engine: Engine,
    clusters: Sequence[Cluster],
    found: Sequence[tuple[Candidate, Outcome]],
    length: JobLength,
    goal: Goal,
) -> list[Choice]:
    """What the job takes with each candidate that fits."""
    return [_choice(engine.steps, clusters[c.cluster], c, o, length, goal) for c, o in found if o.fits and not o.why]


def _choice(steps: Steps, cluster: Cluster, c: Candidate, o: Outcome, length: JobLength, goal: Goal) -> Choice:
    step = spread(o.seconds, o.low, o.high, o.sigma, Z90)
    if length.checkpoint is None and length.interruptions is not None:
        often = _saved_every(length.interruptions.rate(cluster.devices, len(cluster.nodes)))
        length = replace(length, checkpoint=Pause(every=max(1, math.ceil(often / o.seconds)), seconds=SAVING))
    job = length.cost(
        step=o.seconds,
        within=(step.low, step.high),
        devices=cluster.devices,
        nodes=len(cluster.nodes),
        samples=o.samples,
        tokens=o.tokens,
        dollars_per_hour=cluster.dollars_per_hour,
        watts=o.watts,
        idle_watts=cluster_watts(cluster, 0.0),
    )
    duration = spread(job.seconds, job.low, job.high, o.sigma, Z90)
    cost = None if job.dollars is None else duration.times(job.dollars / job.seconds)
    sigma = max(math.log(duration.high / duration.low) / (2 * Z90), 1e-9)
    return Choice(
        cluster=str(cluster),
        devices=cluster.devices,
        plan=str(c.plan),
        batch=c.batch,
        global_batch=o.samples,
        settings={
            **steps.variants[c.variant].settings,
            **({"batch": str(c.batch)} if steps.variants[c.variant].free else {}),
        },
        step=step,
        time=duration,
        cost=cost,
        price=cluster.price_source if cost else None,
        term=goal.term,
        goodput=_goodput(job, step),
        kwh=duration.times(job.joules / 3.6e6 / job.seconds),
        job=job,
        memory=o.total,
        capacity=o.capacity,
        headroom=o.headroom,
        fit_probability=o.fit_probability,
        deadline_probability=None
        if goal.deadline is None
        else probability_below(goal.deadline, duration.median, sigma),
        budget_probability=None
        if goal.budget is None or cost is None
        else probability_below(goal.budget, cost.median, sigma),
        mfu=o.mfu,
        exposed_communication=o.exposed,
        bubble=o.bubble,
        calibrated=o.low is not None,
    )


def _saved_every(rate: float) -> Seconds:
    """Young's interval between checkpoints (CACM 17, 1974), √(2 × saving / rate of interruptions), or an hour."""
    return min(SAVED_EVERY, math.sqrt(2 * SAVING / rate)) if rate else SAVED_EVERY


def _goodput(job: Job, step: Range) -> Range:
    """Steps that count, as a part of the job, with steps as short and as long as the interval has them."""
    ends = [job.steps * each / whole for each, whole in ((step.low, job.low), (step.high, job.high)) if whole]
    return Range(median=job.goodput, low=min([job.goodput, *ends]), high=max([job.goodput, *ends]))


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    candidates: Sequence[Candidate]
    known: Mapping[tuple[object, ...], Replica]  # that others have priced


class Search:
    """Clusters one after another, the most promising first; what an earlier one beats for certain is left out."""

    def __init__(
        self,
        engine: Engine,
        space: Enumerated,
        length: JobLength,
        goal: Goal,
        runner: Runner,
        say: Callable[[str], None],
    ) -> None:
        self.engine, self.space, self.length, self.goal, self.runner, self.say = (
            engine,
            space,
            length,
            goal,
            runner,
            say,
        )
        self.by_cluster: dict[int, list[Candidate]] = defaultdict(list)
        for candidate in space.candidates:
            self.by_cluster[candidate.cluster].append(candidate)
        self.pruned = Counter(space.left_out)
        self.choices: list[Choice] = []
        self.simulated = 0
        self._shared = engine, space.clusters
        self.deferred: list[tuple[float, int]] = []

    def result(self, began: float) -> PlanResult:
        self._price()
        self._search(self._promising())
        verdict = choose(self.choices, self.goal)
        if verdict.recommended is None and self.deferred:
            near = [number for _, number in sorted(self.deferred)[:_NEARER]]
            for number in near:
                self.pruned[_DEFERRED] -= len(self.by_cluster[number])
            self._search(iter(near))
            verdict = choose(self.choices, self.goal)
        return PlanResult(
            workload=self.engine.steps.name,
            model=self.engine.model.name,
            profile=self.engine.profile.name if self.engine.profile else None,
            deadline=self.goal.deadline,
            budget=self.goal.budget,
            confidence=self.goal.confidence,
            recommended=verdict.recommended,
            reason=verdict.reason,
            nearest=verdict.nearest,
            front=front(self.choices),
            pruned=tuple(
                Pruned(reason=reason, count=count) for reason, count in self.pruned.most_common() if count > 0
            ),
            candidates=self.space.considered,
            simulated=self.simulated,
            seconds=time.monotonic() - began,
            caveats=self._caveats(),
            choices=tuple(sorted(self.choices, key=lambda c: c.time.median)),
        )

    def _search(self, numbers: Iterator[int]) -> None:
        tasks = (_Task(number, self.by_cluster[number], dict(self.engine.replicas)) for number in numbers)
        for found in self.runner.each(_work, self._shared, tasks):
            self._take(found)

    def _take(self, found: Found) -> None:
        self.pruned.update(found.pruned)
        self.engine.replicas.update(found.priced)
        self.simulated += len(found.simulated)
        self.choices += choices_of(self.engine, self.space.clusters, found.simulated, self.length, self.goal)
        self.say(f"{self.simulated} plans simulated, {len(self.choices)} fit")

    def _promising(self) -> Iterator[int]:
        """Clusters in the order of their bounds' products of time and cost."""
        order = sorted((self._least(number), number) for number in self.by_cluster)
        for least, number in sorted(order, key=lambda entry: entry[0].product):
            if least.seconds > (self.goal.deadline or math.inf) or least.dollars > (self.goal.budget or math.inf):
                self.pruned[_DEFERRED] += len(self.by_cluster[number])
                self.deferred.append((least.over(self.goal), number))
            elif any(
                c.time.median <= least.seconds and (c.cost.median if c.cost else math.inf) <= least.dollars
                for c in self.choices
            ):
                self.pruned["another cluster is faster and cheaper for certain"] += len(self.by_cluster[number])
            else:
                yield number

    def _least(self, number: int) -> _Least:
        """What the job takes at least on a cluster."""
        cluster, engine = self.space.clusters[number], self.engine
        rate, per_unit = math.inf, 0.0
        for c in self.by_cluster[number]:
            replica = engine.rough(c, cluster)
            if not replica.why and (each := engine.bound(c, cluster, replica) / work(c)) < rate:
                rate, per_unit = each, self._units(c)
        if math.isinf(rate):
            return _Least(seconds=0.0, dollars=0.0)  # whatever the reason, the search will say it
        seconds = (self.length.samples or self.length.tokens or 0.0) / per_unit * rate if per_unit else 0.0
        price = cluster.dollars_per_hour
        return _Least(seconds=seconds, dollars=0.0 if price is None else seconds / 3600 * price)

    def _price(self) -> None:
        """The replicas that bounds start from, side by side."""
        tasks: dict[tuple[object, ...], list[tuple[Candidate, int]]] = defaultdict(list)
        seen = set()
        for c in self.space.candidates:
            if c.plan.checkpointing != "none":
                continue
            for batch in self.engine.basis(c):
                asked = c._replace(batch=batch)
                key = self.engine.key(asked, self.space.clusters[c.cluster])
                if key not in seen:
                    seen.add(key)
                    tasks[c.variant, batch, c.plan.tp, c.plan.cp].append((asked, c.cluster))
        for priced in self.runner.each(_price, self._shared, iter(tasks.values())):
            self.engine.replicas.update(priced)
            self.say(f"{len(self.engine.replicas)} replicas priced")

    def _units(self, c: Candidate) -> float:
        """Samples, or tokens, that a batch of one has."""
        variant = self.engine.steps.variants[c.variant]
        batch, graph = next(iter(variant.captured.items()))
        return ((graph.samples if self.length.samples is not None else graph.tokens) or 0) / batch

    def measured(self, result: PlanResult, run: Run, most: int, gain: float) -> PlanResult:
        """Try plans of the recommended cluster, and recommend the best that ran."""
        start = result.recommended or result.nearest
        if start is None:
            return result
        number = next(i for i, cluster in enumerate(self.space.clusters) if str(cluster) == start.cluster)
        options = self._options(number)
        chosen = [i for i, o in enumerate(options) if (str(o.plan), o.batch) == (start.plan, start.batch)]
        tried = search(
            options, run, most=most, confidence=self.goal.confidence, gain=gain, first=next(iter(chosen), None),
            sharpen=lambda option: self._sharp(number, option),
        )  # fmt: skip
        runs = tuple(
            MeasuredRun(plan=str(o.plan), batch=o.batch, forecast=o.seconds, seconds=seconds) for o, seconds in tried
        )
        ran = [(o, seconds) for o, seconds in tried if seconds is not None]
        if not ran:
            return replace(
                result, runs=runs, recommended=None, reason=f"None of {len(tried)} plans ran on {start.cluster}."
            )
        best, seconds = min(ran, key=lambda entry: entry[1] / entry[0].work)
        choice = self._as_run(number, best, seconds)
        reason = f"{describe(choice)} is the best of {len(tried)} plans that were run on {start.cluster}."
        return replace(result, runs=runs, recommended=choice, reason=reason)

    def _options(self, number: int) -> list[Option]:
        """Plans of a cluster that may fit, with their bounds for forecasts."""
        cluster = self.space.clusters[number]
        device = cluster.nodes[0].device
        options = []
        for c in self.by_cluster[number]:
            replica = self.engine.rough(c, cluster)
            if replica.why:
                continue
            needed = memory_bound(replica, c.plan) + device.context_bytes
            sure = probability_of_fitting(needed, device.usable_bytes, cluster.devices)
            seconds = self.engine.bound(c, cluster, replica)
            options.append(
                Option(plan=c.plan, batch=c.batch, seconds=seconds, work=work(c), needed=needed, fit_probability=sure)
            )
        return options

    def _sharp(self, number: int, option: Option) -> Option:
        """As it is simulated; one that cannot be is never run."""
        c = self._candidate(number, option)
        o = self.engine.simulate(c, self.space.clusters[number])
        return replace(option, seconds=o.seconds, needed=o.total, fit_probability=o.fit_probability)

    def _candidate(self, number: int, option: Option) -> Candidate:
        return next(c for c in self.by_cluster[number] if c.plan == option.plan and c.batch == option.batch)

    def _as_run(self, number: int, option: Option, seconds: Seconds) -> Choice:
        """What the job takes with a step that was measured: it fits, and is as sure as measured steps are."""
        c = self._candidate(number, option)
        o = self.engine.simulate(c, self.space.clusters[number])
        near = math.exp(Z90 * NOISE)
        ran = replace(
            o, seconds=seconds, low=seconds / near, high=seconds * near, fits=True, fit_probability=1.0,
            mfu=None if o.mfu is None else o.mfu * o.seconds / seconds,
        )  # fmt: skip
        [choice] = choices_of(self.engine, self.space.clusters, [(c, ran)], self.length, self.goal)
        return choice

    def _caveats(self) -> tuple[str, ...]:
        texts = []
        if any(not c.calibrated for c in self.choices):
            texts.append(
                "Intervals of several devices are not validated: they are the usual spread of forecasts of published jobs."
            )
        if any(c.cost is None for c in self.choices):
            texts.append("Some devices have no price in the catalog; they are compared by time and number.")
        return tuple(texts)


_DEFERRED: Final = "by its bound it would miss the deadline or the budget"


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


def _work(shared: tuple[Engine, Sequence[Cluster]], task: _Task) -> Found:
    engine, clusters = shared
    engine.replicas.update(task.known)
    with no_garbage_collection():
        found = search_cluster(engine, clusters[task.number], task.number, task.candidates)
    return replace(found, priced={key: r for key, r in engine.replicas.items() if key not in task.known})


def _price(
    shared: tuple[Engine, Sequence[Cluster]], asked: Sequence[tuple[Candidate, int]]
) -> dict[tuple[object, ...], Replica]:
    engine, clusters = shared
    with no_garbage_collection():
        return {engine.key(c, clusters[number]): engine.replica(c, clusters[number]) for c, number in asked}
