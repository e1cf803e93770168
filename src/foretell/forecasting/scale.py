"""One workload on more and more devices of a kind: how throughput grows, and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.capture import capture
from foretell.cost.model import CostModel, load_model
from foretell.errors import InputError, PlanError, check_count
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import DEFAULT_MODEL, answer_to
from foretell.forecasting.job import JobLength
from foretell.forecasting.question import Subject, decide
from foretell.forecasting.result import Forecast
from foretell.forecasting.trainer import same_trainer, trainer_settings
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.sources.scripts import Script, script_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """A number of devices, the forecast there, and throughput per device relative to the smallest.

    Attributes:
        devices: How many.
        efficiency: Throughput per device over that of the smallest number.
        forecast: The forecast of the step on so many.

    Examples:
        >>> foretell.scale("torchvision/resnet18", on="h200", up_to=2)[0].efficiency
        1.0
    """

    devices: int
    efficiency: float
    forecast: Forecast

    def to_dict(self) -> dict[str, Any]:
        return {"devices": self.devices, "efficiency": self.efficiency, "forecast": self.forecast.to_dict()}


def scale(
    workload: Subject,
    on: str,
    plan: Plan | str | None = None,
    *,
    up_to: int,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> tuple[ScalePoint, ...]:
    """Forecast a step on 1, 2, 4, … devices.

    Args:
        workload: A Workload, a captured Graph, a Script or a SOURCE.
        on: One device, with its links where they are not the usual: `h100-sxm`, `h100-sxm@eth-100g`.
        plan: All but dp, which grows.
        up_to: The largest number of devices.
        settings: Parameters of the SOURCE; `model`, `profile`, `conditions` and `job` are as in `forecast`.
        cache: Whether captured graphs are kept on disk.
        progress: Is called with a line for each number.

    Returns:
        A point for each number of devices.

    Raises:
        InputError: The question cannot be answered.

    Examples:
        >>> [point.devices for point in foretell.scale("torchvision/resnet18", on="h200", up_to=4)]
        [1, 2, 4]
    """
    if not isinstance(on, str) or Cluster.parse(on).devices != 1:
        raise InputError(
            f"scale takes the name of one device, got {on!r}. Write it like h100-sxm or h100-sxm@eth-100g."
        )
    check_count("up_to", up_to, InputError)
    given = Plan.parse(plan) if isinstance(plan, str) else plan
    list(_counts(given or Plan(), up_to))  # what is wrong with them is said before a capture
    prices_by = load_model(model) if isinstance(model, str) else model
    subject = script_of(workload)
    if not isinstance(subject, Script):  # which is run anew on every number of devices
        settings = trainer_settings(subject, settings, conditions)
        subject = capture(subject, settings, progress=progress, cache=cache)
        settings = None
    conditions = conditions or Conditions()
    template = None
    if not isinstance(subject, Script):
        template = subject.facts.plan
        conditions = same_trainer(conditions, subject.facts, given or Plan(), profiled=profile is not None)
    replica = given or (template.replica if template else Plan())
    report = progress or (lambda text: None)
    points: list[ScalePoint] = []
    for devices in _counts(replica, up_to):
        report(f"forecasting {subject.name} on {devices} × {on}")
        cluster = Cluster.parse(f"{devices}x{on}")
        grown = replace(given, dp=devices // given.devices) if given else None
        question = decide(subject, cluster, grown, settings=settings, cache=cache)
        answer = answer_to(question, model=prices_by, profile=profile, conditions=conditions, job=job)
        each = _rate(answer) / devices
        first = _rate(points[0].forecast) / points[0].devices if points else each
        points.append(ScalePoint(devices=devices, efficiency=each / first, forecast=answer))
    return tuple(points)


def _counts(plan: Plan, up_to: int) -> Iterator[int]:
    """Doubling from the fewest devices that the plan allows."""
    if plan.dp > 1:
        raise PlanError(f"dp={plan.dp} is what grows here. Leave dp out, and give the rest of the plan.")
    if up_to < plan.devices:
        raise InputError(
            f"{up_to} devices are fewer than one replica takes: tp × pp × cp = {plan.tp} × {plan.pp} × {plan.cp} = "
            f"{plan.devices}. Give at least that many."
        )
    devices = plan.devices
    while devices < up_to:
        yield devices
        devices *= 2
    yield up_to // plan.devices * plan.devices


def _rate(answer: Forecast) -> float:
    """Samples per second; steps per second of all replicas where samples are not known."""
    return answer.throughput.samples_per_second or Plan.parse(answer.plan).dp / answer.step_time.seconds
