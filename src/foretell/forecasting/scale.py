"""One workload on more and more devices of a kind: how throughput grows, and what eats the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError, PlanError
from foretell.forecasting.assemble import forecast
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.plan import Plan
from foretell.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A number of devices, the forecast there, and throughput a device relative to the smallest."""

    devices: int
    efficiency: float
    forecast: Forecast

    def to_dict(self) -> dict[str, Any]:
        return {"devices": self.devices, "efficiency": self.efficiency, "forecast": self.forecast.to_dict()}


def scale(
    graph: Graph,
    device: str,
    up_to: int,
    plan: Plan | str | None = None,
    *,
    model: str | CostModel = DEFAULT,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Point, ...]:
    """Forecast a step on 1, 2, 4, … devices up to `up_to`; `plan` says all but dp, which grows."""
    if isinstance(plan, str):
        plan = Plan.parse(plan)
    plan = plan or Plan()
    tell = progress or (lambda text: None)
    points: list[Point] = []
    for devices in _counts(plan, up_to):
        tell(f"forecasting {graph.name} on {devices} × {device}")
        dp = devices * plan.dp // plan.devices
        spread = replace(plan, dp=dp)
        answer = forecast(
            graph, on=f"{devices}x{device}", plan=spread, model=model, profile=profile, conditions=conditions
        )
        each = _rate(answer) / devices
        first = _rate(points[0].forecast) / points[0].devices if points else each
        points.append(Point(devices=devices, efficiency=each / first, forecast=answer))
    return tuple(points)


def _counts(plan: Plan, up_to: int) -> Iterator[int]:
    """Doubling from the fewest devices that the plan allows."""
    if plan.dp > 1:
        raise PlanError(f"dp={plan.dp} is what grows here. Leave dp out, and give the rest of the plan.")
    if up_to < plan.devices:
        raise InputError(
            f"--up-to {up_to} is less than one replica takes: tp × pp × cp = {plan.tp} × {plan.pp} × {plan.cp} = "
            f"{plan.devices}. Give at least that many."
        )
    devices = plan.devices
    while devices < up_to:
        yield devices
        devices *= 2
    yield up_to // plan.devices * plan.devices


def _rate(answer: Forecast) -> float:
    """Samples a second; steps a second of all replicas where samples are not known."""
    return answer.throughput.samples_per_second or Plan.parse(answer.plan).dp / answer.step_time.seconds
