"""`foretell.plan`: which cluster and which plan, for a deadline and a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import DEFAULT_MODEL
from foretell.forecasting.job import JobLength
from foretell.forecasting.question import on_cluster
from foretell.forecasting.trainer import same_trainer, trainer_settings
from foretell.graph import Graph
from foretell.hardware import Cluster, host_shared, on_hosts
from foretell.planner.candidates import candidates_of
from foretell.planner.choices import JobTerms
from foretell.planner.evaluate import PlanEvaluator
from foretell.planner.goal import Goal
from foretell.planner.outcome import OutcomeCache
from foretell.planner.pool import Processes
from foretell.planner.result import PlanResult
from foretell.planner.runs import measured
from foretell.planner.search import Search
from foretell.planner.session import Session
from foretell.planner.space import Space
from foretell.planner.steps import steps_of
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.sources.scripts import Script, script_of
from foretell.workload import Workload


def plan(
    workload: Workload | Graph | Script | str | Callable[..., Workload],
    on: str | Cluster | None = None,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
    goal: Goal | None = None,
    space: Space | None = None,
    search: Search | None = None,
    progress: Callable[[str], None] | None = None,
) -> PlanResult:
    """Search clusters, plans and micro-batches for a job.

    Args:
        workload: A Workload, a Graph, a Script, a SOURCE, or a function that takes `batch=`: its micro-batch is free.
        on: The one cluster to use; None: those of `space`.
        plan: Settings that are decided, like "tp=8,zero=1".
        settings: Parameters of a SOURCE.
        model: What prices operators: a shipped model, a folder of one that was fitted, or "roofline".
        profile: What makes forecasts fit one machine, cluster or trainer.
        conditions: What surrounds a step.
        job: How long it trains, as `JobLength.usual(tokens=1e9)`.
        goal: The deadline and the budget, and how sure they shall be.
        space: Devices, batches and prices to choose from.
        search: Where the search runs, and whether it may run plans.
        progress: Is given a line now and then.

    Returns:
        The best choice for the goal, the front that none beats, and why others were left out.

    Raises:
        InputError: No length of a job, no cluster to choose from, or a name that is not known.

    Examples:
        >>> job, goal = foretell.JobLength.usual(samples=1e6), foretell.Goal(deadline=86400.0)
        >>> foretell.plan("torchvision/resnet18", on="8xt4", job=job, goal=goal).recommended.devices
        8
    """
    began = time.monotonic()
    goal, space, search = goal or Goal(), space or Space(), search or Search()
    length = job or JobLength.usual()
    place = Cluster.parse(on) if isinstance(on, str) else on
    clusters = space.clusters(place)  # a slip in a name is an error at once, not after a long capture
    subject = script_of(workload)
    if isinstance(subject, Script):  # the step of one process, of which plans make many
        subject = on_cluster(subject, Cluster.parse(clusters[0].nodes[0].device.name), Plan())
    settings = trainer_settings(subject, settings, conditions)
    steps = steps_of(
        subject,
        settings or {},
        space.varied(settings or {}),
        batches=space.batches,
        cache=search.cache,
        progress=progress,
    )
    candidates = candidates_of(space, steps, place, plan)
    terms = JobTerms(length=length, goal=goal, terms=candidates.terms)
    named, listed = conditions.host if conditions else None, candidates.clusters
    candidates.clusters = on_hosts(listed, named)
    shared = host_shared(candidates.clusters, listed) if named is None else ""
    prices_by = load_model(model) if isinstance(model, str) else model
    keeps = search.cache and (prices_by.folder is not None or prices_by.name == ROOFLINE)  # one made here has no name
    evaluator = PlanEvaluator(
        steps=steps,
        clusters=candidates.clusters,
        model=prices_by,
        conditions=same_trainer(
            conditions or Conditions(), steps.variants[0].graph.facts, None, profiled=profile is not None
        ),
        profile=Profile.load(profile) if isinstance(profile, str | Path) else profile,
        outcomes=OutcomeCache() if keeps else None,
    )
    own = Processes(search.workers)
    try:
        session = Session(
            evaluator=evaluator, candidates=candidates, terms=terms, runner=search.runner or own,
            say=progress or (lambda text: None),
        )  # fmt: skip
        result = session.result(began)
        result = replace(result, caveats=(*result.caveats, shared)) if shared else result
    finally:
        own.close()
    return measured(result, evaluator, candidates.found, terms, search)
