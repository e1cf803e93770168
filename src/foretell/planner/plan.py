"""`foretell.plan`: which cluster and which plan, for a deadline and a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.errors import InputError, check_number
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import DEFAULT_MODEL
from foretell.forecasting.job import USUAL_PREEMPTIONS, Interruptions, JobLength
from foretell.forecasting.trainer import same_trainer
from foretell.graph import Graph
from foretell.hardware import Cluster, Term
from foretell.planner.choose import Goal
from foretell.planner.measured import GAIN, Run
from foretell.planner.outcome import OutcomeCache
from foretell.planner.pool import Processes, Runner
from foretell.planner.result import PlanResult
from foretell.planner.search import Engine
from foretell.planner.session import Search
from foretell.planner.space import Space, decided, enumerate_space, given_plans
from foretell.planner.steps import steps_of
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.units import Dollars, Seconds
from foretell.workload import Workload

# Until the first step, where nothing is said (docs/guide/planning.md).
STARTUP: Final[Seconds] = 300.0


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
    vary: Mapping[str, Sequence[Any]] | None = None,
    prices: Mapping[str, Dollars] | None = None,
    term: Term = "on-demand",
    region: str | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
    cache: bool = True,
    measure: Run | None = None,
    runs: int = 10,
    gain: float = GAIN,
    workers: int = 1,
    runner: Runner | None = None,
    progress: Callable[[str], None] | None = None,
) -> PlanResult:
    """Search clusters, plans and micro-batches for a job of so many samples, tokens or epochs of a `dataset`.

    `on` is the one cluster to use; else `gpus` (devices or instances) in numbers up to `max_devices`. `plan` has settings
    that are decided; `among` has the plans to choose from, each with its micro-batch, on the one cluster. `global_batch`
    is kept by gradient accumulation; without it, it follows from the micro-batch. `vary` has settings of the SOURCE to
    try in turn, like {"precision": ["bf16", "fp32"]}; `prices` are dollars per device and hour instead of the catalog's,
    which are of a `term` (on-demand, reserved, spot) and a `region`, or wherever it is cheapest.
    `measure(plan, batch)` runs a few steps and returns the seconds of one, or None where it fails: at most `runs` of the
    plans on the recommended cluster are tried, until none promises to be better by `gain`, and the best is recommended.
    """
    began = time.monotonic()
    check_number("gain", gain, "a part of a step's time from 0 to 1, like 0.03", InputError, most=1.0)
    goal = Goal(deadline=deadline, budget=budget, confidence=confidence, term=term)
    length = job_length(samples, tokens, epochs, dataset, job, term)
    place = Cluster.parse(on) if isinstance(on, str) else on
    if place is not None and gpus:
        raise InputError(
            f"on={place} is the one cluster, so gpus={','.join(gpus)} cannot be tried too. Give one of them."
        )
    space = Space(
        gpus=tuple(gpus), max_devices=max_devices, global_batch=global_batch,
        batches=None if batches is None else tuple(batches), on=place, fixed=decided(plan), prices=prices,
        term=term, region=region,
    )  # fmt: skip
    space.clusters()  # a slip in a name is an error at once, not after a long capture
    steps = steps_of(workload, settings or {}, vary or {}, cache=cache, progress=progress)
    prices_by = load_model(model) if isinstance(model, str) else model
    trains = all(variant.graph.training for variant in steps.variants)
    engine = Engine(
        steps=steps,
        model=prices_by,
        conditions=same_trainer(conditions or Conditions(), prices_by, training=trains, profiled=profile is not None),
        profile=Profile.load(profile) if isinstance(profile, str | Path) else profile,
        kept=OutcomeCache() if cache and (prices_by.folder or prices_by.name == ROOFLINE) else None,
    )
    say = progress or (lambda text: None)
    found = enumerate_space(space, engine.steps) if among is None else given_plans(place, among, engine.steps)
    own = Processes(workers)
    try:
        asked = Search(engine, found, length, goal, runner or own, say)
        result = asked.result(began)
    finally:
        own.close()
    return result if measure is None else asked.measured(result, measure, runs, gain)


def job_length(
    samples: float | None,
    tokens: float | None,
    epochs: float | None,
    dataset: float | None,
    job: JobLength | None = None,
    term: Term = "on-demand",
) -> JobLength:
    """How long the job is; where pauses and interruptions are not said, usual ones; spot nodes are taken back."""
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
    taken_back = USUAL_PREEMPTIONS if term == "spot" else 0.0
    return JobLength(
        samples=samples, tokens=tokens, startup=STARTUP, interruptions=Interruptions(per_node_hour=taken_back)
    )
