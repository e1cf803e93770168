"""Intervals of a forecast, where the model knows how far off it was on steps it had not seen."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.cost.model import CostModel
from foretell.forecasting.calibration import Range, calibration_of, unmeasured_of
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
    calibration, placed = calibration_of(model), ran.slowest
    if why_none(program, placed, model):
        return Intervals()
    if placed.node.device.name != model.device:
        return _elsewhere(ran, model, fixed)
    assert calibration is not None
    spread = calibration.spread(placed.families, placed.unknown)
    return Intervals(
        step=_later(calibration.step_range(placed.curve(ran.timeline.period), spread), fixed),
        device=calibration.device_range(placed.device_seconds, spread),
        host=calibration.host_range(placed.host_seconds),
        others=(0.0, 0.0),
    )


def _elsewhere(ran: Run, model: CostModel, fixed: Seconds) -> Intervals:
    """From published steps of other devices. They tell no host from its device, so a host gets no interval."""
    placed, unknown = ran.slowest, ran.slowest.unknown
    unmeasured, device, half = unmeasured_of(model), placed.node.device, computes_in_half(placed)
    assert unmeasured is not None
    return Intervals(
        step=_later(unmeasured.step_range(ran.timeline.period, device, half, unknown), fixed),
        device=unmeasured.step_range(placed.device_seconds, device, half, unknown),
        others=(0.0, 0.0),
    )


def _later(bounds: Range, seconds: Seconds) -> Range:
    return bounds[0] + seconds, bounds[1] + seconds


def computes_in_half(placed: Placed) -> bool:
    return placed.role.graph.precision.endswith("16")


def why_none(program: Program, placed: Placed, model: CostModel) -> str:
    """What keeps a forecast without intervals; "" where nothing does."""
    elsewhere = placed.node.device.name != model.device
    if (unmeasured_of(model) if elsewhere else calibration_of(model)) is None:
        if elsewhere and calibration_of(model) is not None:
            return f"the model was held against measurements on {model.device} alone"
        return "the model has not been calibrated against measurements"
    if program.ranks > 1:
        return "the model was held against measurements of single devices alone"
    return ""


def how_held(placed: Placed, model: CostModel) -> str:
    """What an interval on a device that was not measured rests on; "" where it was, or where there is none."""
    device, unmeasured = placed.node.device, unmeasured_of(model)
    if unmeasured is None or device.name == model.device:
        return ""
    held = sorted({h.device for h in unmeasured.held} - {device.name})
    text = f"The interval is from errors on published steps of {len(held)} devices, each foretold while left out"
    if unmeasured.is_far(device, computes_in_half(placed)):
        text += f"; none of them is near {device.name} in its published numbers, so it is stretched"
    return f"{text}."


def between(seconds: Seconds, bounds: Range | None) -> Duration:
    return Duration(seconds=seconds) if bounds is None else Duration(seconds=seconds, low=bounds[0], high=bounds[1])
