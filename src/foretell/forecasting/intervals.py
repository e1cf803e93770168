"""How intervals are made: a forecast with its 90 % bounds, where the model's errors on steps it had not seen are known."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.cost.model import CostModel
from foretell.forecasting.calibration import (
    Calibration,
    Range,
    StepKind,
    Unmeasured,
    calibration_of,
    convolutions,
    unmeasured_of,
)
from foretell.forecasting.result import Duration
from foretell.forecasting.run import Placed, Run
from foretell.program import Program
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """None where nothing is known."""

    step: Range | None = None
    device: Range | None = None
    host: Range | None = None
    others: Range | None = None  # communication and bubble, which one rank has none of


def intervals(program: Program, ran: Run, model: CostModel, fixed: Seconds = 0.0) -> Intervals:
    """For one rank; several were not validated against measurements. `fixed` seconds of a step are sure."""
    errors = _errors(ran.slowest, model)
    if errors is None or program.ranks > 1:
        return Intervals()
    placed, period = ran.slowest, ran.timeline.period
    if isinstance(errors, Unmeasured):  # published steps do not separate a host from its device: it gets no interval
        kind = _kind(placed)
        step, device = (
            errors.step_range(seconds, placed.node.device, kind) for seconds in (period, placed.device_seconds)
        )
        return Intervals(step=_later(step, fixed), device=device, others=(0.0, 0.0))
    sigma = errors.sigma(placed.families, placed.unknown)
    return Intervals(
        step=_later(errors.step_range(placed.curve(period), sigma), fixed),
        device=errors.device_range(placed.device_seconds, sigma),
        host=errors.host_range(placed.host_seconds),
        others=(0.0, 0.0),
    )


def why_no_interval(program: Program, placed: Placed, model: CostModel) -> str:
    """What keeps a forecast without intervals; "" where nothing does."""
    if _errors(placed, model) is None:
        if placed.node.device.name != model.device and calibration_of(model) is not None:
            return f"the model was validated against measurements on {model.device} alone"
        return "the model has not been calibrated against measurements"
    if program.ranks > 1:
        return "the model was validated against measurements of single devices alone"
    return ""


def interval_source(placed: Placed, model: CostModel) -> str:
    """What an interval on a device that was not measured is made from; "" where it was, or where there is none."""
    errors, device = _errors(placed, model), placed.node.device
    if not isinstance(errors, Unmeasured):
        return ""
    others = {h.device for h in errors.held} - {device.name}
    text = f"The interval is from errors on published steps of {len(others)} devices, each predicted while left out"
    if errors.is_far(device, _in_half(placed)):
        text += f"; none of them is near {device.name} in its make and published numbers, so it is stretched"
    return f"{text}."


def between(seconds: Seconds, bounds: Range | None) -> Duration:
    return Duration(seconds=seconds) if bounds is None else Duration(seconds=seconds, low=bounds[0], high=bounds[1])


def _later(bounds: Range, seconds: Seconds) -> Range:
    return bounds[0] + seconds, bounds[1] + seconds


def _errors(placed: Placed, model: CostModel) -> Calibration | Unmeasured | None:
    """Of the model on the device it was measured on, or on devices that it was not."""
    return calibration_of(model) if placed.node.device.name == model.device else unmeasured_of(model)


def _kind(placed: Placed) -> StepKind:
    return StepKind(
        half=_in_half(placed),
        trains=placed.role.graph.training,
        convolutions=convolutions(placed.families),
        unknown=placed.unknown,
    )


def _in_half(placed: Placed) -> bool:
    return placed.role.graph.precision.endswith("16")
