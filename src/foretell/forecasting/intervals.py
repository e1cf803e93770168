"""How intervals are made: a forecast with its 90 % bounds, where the model's errors on steps it had not seen are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

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
from foretell.forecasting.several import Spread, jobs_of, network_error, spread
from foretell.hardware import Cluster
from foretell.program import Program
from foretell.units import Seconds

_HOST: Final = 0.3  # of a host's logarithm, where a model does not say
_UNSURE: Final = 0.1  # expected error beyond which a forecast says what it comes from
_NAMED: Final = 3  # operators that it names


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """None where nothing is known."""

    step: Range | None = None
    device: Range | None = None
    host: Range | None = None
    exposed: Range | None = None
    waiting: Callable[[Seconds], Range] | None = None  # of bubbles and stragglers, which follow the device


def intervals(
    program: Program, ran: Run, cluster: Cluster, model: CostModel, fixed: Seconds, added: Seconds
) -> Intervals:
    """Of one rank from the model's errors on steps, of several from its errors on jobs too. `fixed` seconds are sure, those
    that a trainer has `added` are not."""
    errors = _errors(ran.slowest, model)
    if errors is None:
        return Intervals()
    if program.ranks > 1:
        return _several(program, ran, cluster, model, errors, fixed, added)
    placed, period, fixed = ran.slowest, ran.timeline.period, fixed + added
    if isinstance(errors, Unmeasured):  # published steps do not separate a host from its device: it gets no interval
        kind = _kind(placed)
        step, device = (
            errors.step_range(seconds, placed.node.device, kind) for seconds in (period, placed.device_seconds)
        )
        return Intervals(step=_later(step, fixed), device=device, exposed=(0.0, 0.0), waiting=_none)
    sigma = _sigma(placed, errors)
    return Intervals(
        step=_later(errors.step_range(placed.curve(period), sigma), fixed),
        device=errors.device_range(placed.device_seconds, sigma),
        host=errors.host_range(placed.host_seconds),
        exposed=(0.0, 0.0),
        waiting=_none,
    )


def _several(
    program: Program,
    ran: Run,
    cluster: Cluster,
    model: CostModel,
    errors: Calibration | Unmeasured,
    fixed: Seconds,
    added: Seconds,
) -> Intervals:
    known = jobs_of(model)
    if known is None:
        return Intervals()
    device, network = _device(ran.slowest, errors), network_error(cluster)
    wide = spread_of(program, ran, cluster, model)
    assert wide is not None
    host = ran.slowest.host_seconds
    return Intervals(
        step=_later(known.range(ran.timeline.period + ran.stragglers + added, wide), fixed),
        device=_between(ran.slowest.device_seconds, device),
        host=errors.host_range(host) if isinstance(errors, Calibration) else None,
        exposed=_between(ran.exposed, network),
        waiting=lambda seconds: _between(seconds, device),
    )


def spread_of(program: Program, ran: Run, cluster: Cluster, model: CostModel) -> Spread | None:
    """How far a step of several ranks may be off for all that its parts say; None where the model's errors are not known."""
    errors, own = _errors(ran.slowest, model), _own_errors(ran.slowest, model)
    if errors is None:
        return None
    return spread(
        program,
        ran,
        device=_device(ran.slowest, errors),
        host=own.host if own else _HOST,
        network=network_error(cluster),
    )


def _device(placed: Placed, errors: Calibration | Unmeasured) -> float:
    """How far its time may be shorter or longer, as a logarithm."""
    if isinstance(errors, Calibration):
        return errors.device * _sigma(placed, errors)
    low, high = errors.step_range(1.0, placed.node.device, _kind(placed))
    return math.log(high / low) / 2  # to which side errors lean is what jobs say


def _sigma(placed: Placed, errors: Calibration) -> float:
    return errors.sigma(placed.spread, placed.unknown)


def why_no_interval(program: Program, placed: Placed, model: CostModel) -> str:
    """What keeps a forecast without intervals; "" where nothing does."""
    if _errors(placed, model) is None:
        if placed.node.device.name != model.device and calibration_of(model) is not None:
            return f"the model was validated against measurements on {model.device} alone"
        return "the model has not been calibrated against measurements"
    if program.ranks > 1 and jobs_of(model) is None:
        return "the model was validated against measurements of single devices alone"
    return ""


def interval_source(program: Program, placed: Placed, model: CostModel) -> str:
    """What an interval is made from, where it is not from measurements of the device; "" where it is, or there is none."""
    errors, device = _errors(placed, model), placed.node.device
    if program.ranks > 1 and (known := jobs_of(model)) is not None:
        jobs = sum(len(source.errors) for source in known.sources)
        return (
            f"The interval is from errors of operators, host and network, scaled by those of forecasts of {jobs} published "
            f"jobs of {len(known.sources)} sources."
        )
    if not isinstance(errors, Unmeasured):
        return ""
    others = {h.device for h in errors.held} - {device.name}
    text = f"The interval is from errors on published steps of {len(others)} devices, each predicted while left out"
    if errors.is_far(device, _in_half(placed)):
        text += f"; none of them is near {device.name} in its make and published numbers, so it is stretched"
    return f"{text}."


def uncertain_ops(placed: Placed, model: CostModel) -> tuple[str, float]:
    """What makes a forecast on the measured device uncertain, and its part of the device time; "" where little does."""
    doubts = placed.doubts if isinstance(_errors(placed, model), Calibration) else {}
    squares, busy = sum(doubts.values()), placed.device_seconds
    if math.sqrt(squares) < _UNSURE:
        return "", 0.0
    names = sorted(doubts, key=lambda name: -doubts[name])[:_NAMED]
    named = ", ".join(f"{name} ({doubts[name] / squares:.0%} of the doubt)" for name in names)
    calls = zip(placed.priced.calls.distinct, placed.of_calls, strict=True)
    share = sum(seconds for call, seconds in calls if call.signature.name in names) / busy
    off = math.expm1(math.sqrt(squares))
    return f"Device time may well be {off:.0%} off, as times of ops like these were while unseen: {named}.", share


def between(seconds: Seconds, bounds: Range | None) -> Duration:
    return Duration(seconds=seconds) if bounds is None else Duration(seconds=seconds, low=bounds[0], high=bounds[1])


def _between(seconds: Seconds, width: float) -> Range:
    return seconds * math.exp(-width), seconds * math.exp(width)


def _none(seconds: Seconds) -> Range:
    """Of what one rank has none of."""
    return seconds, seconds


def _later(bounds: Range, seconds: Seconds) -> Range:
    return bounds[0] + seconds, bounds[1] + seconds


def _errors(placed: Placed, model: CostModel) -> Calibration | Unmeasured | None:
    """Of the model on the device it was measured on, or on devices that it was not."""
    return _own_errors(placed, model) if placed.node.device.name == model.device else unmeasured_of(model)


def _own_errors(placed: Placed, model: CostModel) -> Calibration | None:
    found = calibration_of(model)
    return found and found.of_kind(placed.role.graph.training)


def _kind(placed: Placed) -> StepKind:
    return StepKind(
        half=_in_half(placed),
        trains=placed.role.graph.training,
        convolutions=convolutions(placed.families),
        unknown=placed.unknown,
        alike=placed.alike,
    )


def _in_half(placed: Placed) -> bool:
    return placed.role.graph.precision.endswith("16")
