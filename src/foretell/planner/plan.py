"""`foretell.plan`: which cluster and which plan, for a deadline and a budget."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from foretell.cost.model import CostModel, load_model
from foretell.errors import InputError, check_number
from foretell.forecasting.assemble import DEFAULT_MODEL
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.energy import cluster_watts
from foretell.forecasting.job import Interruptions, JobLength, Pause
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.planner.bounds import Replica
from foretell.planner.choose import Goal, choose, front, probability_below, spread
from foretell.planner.outcome import Z90, Kept, Outcome
from foretell.planner.pool import Processes, Runner
from foretell.planner.result import Choice, PlanResult, Pruned
from foretell.planner.search import Engine, Found, search_cluster, work
from foretell.planner.space import Candidate, Enumerated, Space, decided, enumerate_space, given_plans
from foretell.planner.steps import Steps, steps_of
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.units import Dollars, Seconds
from foretell.workload import Workload

# What a job is taken to be where nothing is said (docs/guide/planning.md).
STARTUP: Final[Seconds] = 300.0
SAVED_EVERY: Final[Seconds] = 3600.0
SAVING: Final[Seconds] = 30.0
_NEARER: Final = 4  # clusters that are looked at although their bounds say that they cannot do


def plan(
    workload: Workload | Graph | str | Callable[..., Workload],
    on: str | Cluster | None = None,
    plan: Plan | str | None = None,
    *,
    samples: float | None = None,
    tokens: float | None = None,
    epochs: float | None = None,
    dataset: float | None = None,
    deadline: Seconds | None = None,
    budget: Dollars | None = None,
    confidence: float = 0.9,
    gpus: Sequence[str] = (),
    max_devices: int = 64,
    global_batch: int | None = None,
    batches: Sequence[int] | None = None,
    among: Sequence[tuple[Plan | str, int]] | None = None,
    vary: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
    cache: bool = True,
    workers: int = 1,
    runner: Runner | None = None,
    progress: Callable[[str], None] | None = None,
) -> PlanResult:
    """Search clusters, plans and micro-batches for a job of so many samples, tokens or epochs of a `dataset`.

    `on` is the one cluster to use; else `gpus` (devices or instances) in numbers up to `max_devices`. `plan` has settings
    that are decided; `among` has the plans to choose from, each with its micro-batch, on the one cluster. `global_batch`
    is kept by gradient accumulation; without it, it follows from the micro-batch. `vary` has settings of the SOURCE to
    try in turn, like {"precision": ["bf16", "fp32"]}.
    """
    began = time.monotonic()
    goal = Goal(deadline=deadline, budget=budget, confidence=confidence)
    length = job_length(samples, tokens, epochs, dataset, job)
    place = Cluster.parse(on) if isinstance(on, str) else on
    if place is not None and gpus:
        raise InputError(
            f"on={place} is the one cluster, so gpus={','.join(gpus)} cannot be tried too. Give one of them."
        )
    space = Space(
        gpus=tuple(gpus), max_devices=max_devices, global_batch=global_batch,
        batches=None if batches is None else tuple(batches), on=place, fixed=decided(plan),
    )  # fmt: skip
    space.clusters()  # a slip in a name is an error at once, not after a long capture
    engine = Engine(
        steps=steps_of(workload, settings or {}, vary or {}, cache=cache, progress=progress),
        model=load_model(model) if isinstance(model, str) else model,
        conditions=conditions or Conditions(),
        profile=Profile.load(profile) if isinstance(profile, str | Path) else profile,
        kept=Kept() if cache else None,
    )
    say = progress or (lambda text: None)
    found = enumerate_space(space, engine.steps) if among is None else given_plans(place, among, engine.steps)
    search = _Search(engine, found, length, goal, runner or Processes(workers), say)
    return search.result(began)


def job_length(
    samples: float | None, tokens: float | None, epochs: float | None, dataset: float | None, job: JobLength | None
) -> JobLength:
    """How long the job is; where pauses and interruptions are not said, usual ones."""
    if job is not None:
        if any(x is not None for x in (samples, tokens, epochs, dataset)):
            raise InputError("a job has its length already. Give job, or samples, tokens or epochs.")
        return job
    if (epochs is None) != (dataset is None):
        raise InputError(
            "epochs are counted in samples of a dataset: give both epochs and dataset, like 90 and 1281167."
        )
    if epochs is not None and dataset is not None:
        check_number("epochs", epochs, "more than 0", InputError, least=1e-9)
        if samples is not None:
            raise InputError("a job is as long as its samples or its epochs. Give one of them.")
        samples = epochs * dataset
    return JobLength(samples=samples, tokens=tokens, startup=STARTUP, interruptions=Interruptions())


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
        length = replace(length, checkpoint=Pause(every=max(1, math.ceil(SAVED_EVERY / o.seconds)), seconds=SAVING))
    job = length.cost(
        step=o.seconds,
        within=(step.low, step.high),
        devices=cluster.devices,
        samples=o.samples,
        tokens=o.tokens,
        dollars_per_hour=o.dollars_per_hour,
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


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    candidates: Sequence[Candidate]


class _Search:
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
        tasks = (_Task(number, self.by_cluster[number]) for number in numbers)
        shared = self.engine, self.space.clusters
        for found in self.runner.each(_work, shared, tasks):
            self._take(found)

    def _take(self, found: Found) -> None:
        self.pruned.update(found.pruned)
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
        for priced in self.runner.each(_price, (self.engine, self.space.clusters), iter(tasks.values())):
            self.engine.replicas.update(priced)
            self.say(f"{len(self.engine.replicas)} replicas priced")

    def _units(self, c: Candidate) -> float:
        """Samples, or tokens, that a batch of one has."""
        variant = self.engine.steps.variants[c.variant]
        batch, graph = next(iter(variant.captured.items()))
        return ((graph.samples if self.length.samples is not None else graph.tokens) or 0) / batch

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
    return search_cluster(engine, clusters[task.number], task.number, task.candidates)


def _price(
    shared: tuple[Engine, Sequence[Cluster]], asked: Sequence[tuple[Candidate, int]]
) -> dict[tuple[object, ...], Replica]:
    engine, clusters = shared
    return {engine.key(c, clusters[number]): engine.replica(c, clusters[number]) for c, number in asked}
