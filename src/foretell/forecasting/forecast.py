"""The composition: a workload goes in, what its step will cost comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import CostModel, load_model
from foretell.errors import InputError
from foretell.forecasting.assembly import Assembly
from foretell.forecasting.budget import program_of, within_budget
from foretell.forecasting.caveats import caveats
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.garbage import no_garbage_collection
from foretell.forecasting.invariants import possible
from foretell.forecasting.job import JobLength
from foretell.forecasting.profile_response import ProfileResponse
from foretell.forecasting.question import Question, Subject, decide
from foretell.forecasting.result import Forecast
from foretell.forecasting.run import run
from foretell.forecasting.trainer import trainer_overhead, trainer_settings
from foretell.forecasting.uncertainty import error_of_parts
from foretell.forecasting.uncertainty.jobs import PartsError
from foretell.hardware import Cluster, catalog_as_it_is, on_hosts
from foretell.plans import Plan
from foretell.profile import Operators, Profile
from foretell.program import Program
from foretell.software import Software
from foretell.units import Seconds

__all__ = ["DEFAULT_MODEL", "answer_to", "forecast", "load_model"]


def forecast(
    workload: Subject,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
) -> Forecast:
    """Forecast one steady-state step on a cluster: time, memory, whether it fits, and cost.

    Args:
        workload: A Workload, a captured Graph, a Script or a SOURCE.
        on: The cluster, like `8xh100-sxm`.
        plan: How the step is parallelized; without one, what the source says, else data-parallel over all devices.
        settings: Parameters of a SOURCE, like {"batch": 64}.
        model: What prices operators: one that is shipped, the folder of one you fitted, or `roofline`.
        profile: Makes the forecast fit one machine, cluster or trainer.
        conditions: The data loader, the jitter of ranks, the routing of experts, what a trainer adds.
        job: How long a job trains, to learn what all of it takes and costs.

    Returns:
        The forecast; `to_json` is what `foretell predict --json` prints.

    Raises:
        InputError: The question cannot be answered; the message says what to change.

    Examples:
        >>> f = foretell.forecast("torchvision/resnet18", on="8xh100-sxm", plan="dp=8")
        >>> f.memory.fits, f.step_time.low < f.step_time.seconds < f.step_time.high
        (True, True)
    """
    prices_by, fitted = _loaded(model, profile)  # a slip in a name is said before a capture
    question = decide(workload, on, plan, settings=trainer_settings(workload, settings, conditions))
    return answer_to(question, model=prices_by, profile=fitted, conditions=conditions, job=job)


def answer_to(
    question: Question,
    *,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
) -> Forecast:
    """The forecast of a question that is decided; one that cannot be is refused."""
    conditions = conditions or Conditions()
    prices_by, fitted = _loaded(model, profile)
    conditions = _under_software(conditions, fitted)
    question = replace(question, cluster=on_hosts([question.cluster], conditions.host)[0])
    with no_garbage_collection(), catalog_as_it_is():
        question = within_budget(question, prices_by)
        program = program_of(question, prices_by)
        trainer = trainer_overhead(
            conditions,
            prices_by,
            program.whole.facts,
            question.plan,
            training=program.whole.training,
            profiled=fitted is not None,
        )
        goes_on = trainer.trainer is not None and fitted is None  # a profile's steps were those of jobs that did
        made = Assembly(
            program=program,
            cluster=question.cluster,
            plan=question.plan,
            ran=run(program, question.cluster, prices_by, conditions, fitted, goes_on=goes_on),
            model=prices_by,
            profile=fitted,
            loading=_loading(program, conditions),
            trainer=trainer,
            software=None if conditions.software is None else Software.parse(conditions.software),
        )
        return possible(made.forecast(job, caveats(made)))


def profile_response(
    workload: Subject,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    timed: Operators | None = None,
    software: str | None = None,
) -> ProfileResponse:
    """How the step that `forecast` would answer for answers to profiles; all of them with these times of ops, if any."""
    question = decide(workload, on, plan, settings=settings)
    prices_by = load_model(model) if isinstance(model, str) else model
    with no_garbage_collection():
        program = program_of(within_budget(question, prices_by), prices_by)
        return ProfileResponse(program, question.cluster, prices_by, timed, software)


def step_error(
    workload: Subject,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
) -> PartsError | None:
    """How far the step that `forecast` would answer for may be off by its parts, before errors on jobs scale it."""
    question = decide(workload, on, plan, settings=settings)
    prices_by = load_model(model) if isinstance(model, str) else model
    with no_garbage_collection():
        program = program_of(within_budget(question, prices_by), prices_by)
        ran = run(program, question.cluster, prices_by, Conditions())
        return error_of_parts(program, ran, question.cluster, prices_by)


def _loaded(model: str | CostModel, profile: Profile | str | Path | None) -> tuple[CostModel, Profile | None]:
    prices_by = load_model(model) if isinstance(model, str) else model
    return prices_by, Profile.load(profile) if isinstance(profile, str | Path) else profile


def _under_software(conditions: Conditions, profile: Profile | None) -> Conditions:
    """A profile's factors are on top of the software that its steps were said to run under."""
    if profile is None:
        return conditions
    if conditions.software not in (None, profile.purpose.software):
        own = profile.purpose.software or "software of their own, which is in its factors"
        raise InputError(
            f"software {conditions.software} and profile {profile.name!r} were given, but the steps of that profile ran "
            f"under {own}. Give one of them."
        )
    return replace(conditions, software=profile.purpose.software or None)


def _loading(program: Program, conditions: Conditions) -> Seconds:
    """What a replica's data loader takes for a step; it works ahead, so the longer of the two sets the pace."""
    if conditions.loader is None:
        return 0.0
    if not program.whole.samples:
        raise InputError(
            f"a data loader of {conditions.loader:g} samples/s was given, but the samples of a step of "
            f"{program.whole.name!r} are not known. Set Workload(samples=…)."
        )
    return program.whole.samples * program.micro_steps / conditions.loader
