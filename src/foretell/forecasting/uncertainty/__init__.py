"""How sure a forecast is: the distributions of a step's times, from a model's errors on what it had not seen.

One device that was measured, one that was not, and several ranks each have errors of their own (`own_device`, `other_devices`,
`jobs`); those of single operators (`operators`) go into all of them. A profile that was validated on steps left out of its
fit has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretell.cost.model import CostModel
from foretell.distribution import Z90, Distribution, LogNormal, interval
from foretell.forecasting.communication_copies import with_copies
from foretell.forecasting.profile_purpose import profile_of_other_devices
from foretell.forecasting.run import Placed, Run
from foretell.forecasting.step import RoleStep
from foretell.forecasting.uncertainty.device_classes import class_of
from foretell.forecasting.uncertainty.jobs import PartsError, jobs_of, network_error, parts_error
from foretell.forecasting.uncertainty.operators import expected_error, uncertain_operators
from foretell.forecasting.uncertainty.other_devices import OtherDevices, StepKind, other_devices_of
from foretell.forecasting.uncertainty.own_device import Calibration, calibration_of
from foretell.graph import Caveat
from foretell.hardware import Cluster, Device
from foretell.profile import Profile, network_of
from foretell.program import Program
from foretell.units import Seconds

_HOST: Final = 0.3  # of a host's logarithm, where a model does not say
WIDE_INTERVAL: Final = "wide-interval"  # the caveat that says why one is
WIDEST: Final = 2.2  # times its low end that the high end is where nothing needs to be explained
_UNEVEN: Final = 2.5  # times as long as the other that a side of an interval is at most, as a logarithm
_PACE: Final = 0.7  # of the device's seconds that make a host count
_MANY: Final = 0.3  # part of a step
_ROUNDING: Final = 1e-9
# CUDA 13 ends support of Maxwell, Pascal and Volta (its release notes); the steps are of `foretell bench intervals`.
_OLDER_SOFTWARE: Final = (
    "CUDA 13 has no code for boards before Turing, and the interval is for torch 2: published convolutions under torch 1 took "
    "longer than forecast, those in groups up to four times as long."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDistribution:
    """Of a step and its parts, None where nothing is known, and what they rest on."""

    step: Distribution | None = None
    device: Distribution | None = None
    host: Distribution | None = None
    exposed: Distribution | None = None
    waiting: float | None = None  # the width of bubbles and stragglers, which follow the device
    caveats: tuple[Caveat, ...] = ()

    def wait(self, seconds: Seconds) -> Distribution | None:
        """Of seconds in which the device waits."""
        return None if self.waiting is None else LogNormal.symmetric(seconds, self.waiting)


def step_distribution(
    program: Program,
    ran: Run,
    cluster: Cluster,
    model: CostModel,
    *,
    profile: Profile | None = None,
    fixed: Seconds = 0.0,
    added: Seconds = 0.0,
    spread: float = 0.0,
    software: float = 0.0,
) -> StepDistribution:
    """Of a run: `fixed` seconds are sure; those that a trainer has `added` make it as unsure as trainers of a kind `spread`.

    `software`: How far steps under another time's differ, as a logarithm.
    """
    spread = math.hypot(spread if added or program.ranks > 1 else 0.0, software)
    known = _by_model(program, ran, cluster, model, fixed, added, spread)
    if profile is None:
        return known
    step = ran.timeline.period + ran.stragglers + added + fixed
    if (other := profile_of_other_devices(profile, cluster)) is not None:
        return replace(known, caveats=(*known.caveats, other))
    if (own := profile.step_time(step, network_of(program.whole))) is not None:
        text = f"The interval is from errors of profile {profile.name!r} on steps left out of its fit."
        return replace(known, step=own, caveats=(Caveat("calibrated-by-profile", text),))
    if known.step is None:
        return known
    text = f"Times follow profile {profile.name!r}; the interval is the model's, from errors without a profile."
    return replace(known, caveats=(*known.caveats, Caveat("profile-not-calibrated", text)))


def error_of_parts(program: Program, ran: Run, cluster: Cluster, model: CostModel) -> PartsError | None:
    """How far a step of several ranks may be off for all that its parts say; None where the model's errors are not known."""
    errors = _errors(ran.slowest, model)
    return None if errors is None else _parts(program, ran, cluster, model, _device(ran.slowest, errors))


def _parts(program: Program, ran: Run, cluster: Cluster, model: CostModel, device: LogNormal) -> PartsError:
    own = _own_errors(ran.slowest, model)
    host = own.host if own else _HOST
    return parts_error(program, ran, device=device.above, host=host, network=network_error(cluster))


def _by_model(
    program: Program, ran: Run, cluster: Cluster, model: CostModel, fixed: Seconds, added: Seconds, spread: float
) -> StepDistribution:
    errors = _errors(ran.slowest, model)
    if errors is None:
        return _unknown(_why_not_known(ran.slowest, model))
    if program.ranks > 1:
        return _several(program, ran, cluster, model, errors, fixed, added, spread)
    placed, period = ran.slowest, ran.timeline.period
    step = _alone(placed, placed.node.device, errors, period)
    known = StepDistribution(
        step=step,
        device=_within(_device(placed, errors), step),
        host=None if isinstance(errors, OtherDevices) else errors.host_time(placed.host_seconds),
        caveats=tuple(_grounds(placed, errors, step)),
    )
    sure = LogNormal.symmetric(ran.exposed, 0.0)  # one rank waits for none
    step = step.scaled(1 + added / period) if period else step
    return replace(known, step=_wider(step, spread).shifted(fixed), exposed=sure, waiting=0.0)


def _alone(
    placed: RoleStep, device: Device, errors: Calibration | OtherDevices, period: Seconds | None = None
) -> LogNormal:
    """Of a step that no other rank takes part in: no side is much longer than the other, or it would deny its own median."""
    curve = placed.curve(period)
    median = dict(curve)[1.0]
    if not median:
        return LogNormal.symmetric(0.0, 0.0)
    if isinstance(errors, OtherDevices):
        found: Distribution = errors.step_time(curve, device, StepKind.of(placed))
    else:
        found = errors.step_time(curve, _sigma(placed, errors))
    low, high = interval(found)
    below, above = math.log(median / low), math.log(high / median)
    return LogNormal(median=median, below=max(below, above / _UNEVEN), above=max(above, below / _UNEVEN))


def _within(device: LogNormal, step: LogNormal) -> LogNormal:
    """A device takes no longer than its step, whichever is uncertain."""
    low, high = interval(step)
    if not device.median or not low:
        return device
    below, above = math.log(device.median / low), math.log(high / device.median)
    return replace(device, below=max(device.below, below), above=max(min(device.above, above), 0.0))


def _wider(step: LogNormal, spread: float) -> LogNormal:
    """A step of one device with what its trainer may add, in proportion."""
    return replace(step, below=math.hypot(step.below, Z90 * spread), above=math.hypot(step.above, Z90 * spread))


def _several(
    program: Program,
    ran: Run,
    cluster: Cluster,
    model: CostModel,
    errors: Calibration | OtherDevices,
    fixed: Seconds,
    added: Seconds,
    spread: float,
) -> StepDistribution:
    jobs = jobs_of(model)
    if jobs is None:
        return _unknown("the model was validated against measurements of single devices alone")
    device = _device(ran.slowest, errors)
    parts = _parts(program, ran, cluster, model, device)
    own = errors if isinstance(errors, Calibration) else None
    by_jobs = jobs.step_time(ran.timeline.period + ran.stragglers + added, parts, spread)
    alone = _alone(_without_others(ran.slowest, model), ran.slowest.node.device, errors)
    step = _no_surer(by_jobs, _wider(alone, spread)).shifted(fixed)
    device = _within(device, step)
    grounds = Caveat("calibrated-by-jobs", jobs.source)
    return StepDistribution(
        step=step,
        device=device,
        host=own.host_time(ran.slowest.host_seconds) if own else None,
        exposed=LogNormal.symmetric(ran.exposed, network_error(cluster)),
        waiting=max(device.below, device.above),
        caveats=(grounds, *(_uncertain(ran.slowest) if own else ()), *_wide(ran.slowest, errors, step)),
    )


def _without_others(placed: Placed, model: CostModel) -> RoleStep:
    """The ops of a rank, had it nobody to wait for, nor to copy anything for."""
    taken = placed.durations.device
    copies = with_copies(placed.role, np.zeros_like(taken), model, placed.node.device)
    own = np.where(taken - copies > _ROUNDING * taken, taken - copies, 0.0)
    durations = replace(placed.durations, device=own, collectives=[])
    role = placed.role.found.setdefault("alone", replace(placed.role, collectives=()))
    return RoleStep(role=role, priced=placed.priced, durations=durations)


def _no_surer(step: LogNormal, alone: LogNormal) -> LogNormal:
    """Several devices are as uncertain as one of them, and more."""
    return replace(step, below=max(step.below, alone.below), above=max(step.above, alone.above))


def _device(placed: Placed, errors: Calibration | OtherDevices) -> LogNormal:
    if isinstance(errors, Calibration):
        return errors.device_time(placed.device_seconds, _sigma(placed, errors))
    return errors.device_time(placed.device_seconds, placed.node.device, StepKind.of(placed))


def _grounds(placed: Placed, errors: Calibration | OtherDevices, step: LogNormal) -> Iterator[Caveat]:
    """What an interval rests on, and why it is wide where it is."""
    if isinstance(errors, OtherDevices):
        device, kind = placed.node.device, StepKind.of(placed)
        yield Caveat("calibrated-elsewhere", errors.source(device, kind))
        if class_of(device) == "older" and kind.convolutions > _MANY:
            yield Caveat("older-software", _OLDER_SOFTWARE, kind.convolutions)
    else:
        yield from _uncertain(placed)
    yield from _wide(placed, errors, step)


def _wide(placed: Placed, errors: Calibration | OtherDevices, step: LogNormal) -> Iterator[Caveat]:
    low, high = interval(step)
    if low > 0 and high > WIDEST * low:
        why = _why_wide(placed, errors, StepKind.of(placed))
        yield Caveat(WIDE_INTERVAL, f"The interval is {high / low:.1f} times wide: {why}.")


def _why_wide(placed: Placed, errors: Calibration | OtherDevices, kind: StepKind) -> str:
    if placed.host_seconds > _PACE * placed.device_seconds:
        return "its host sets much of the pace, and hosts differ; --host and a profile say which it is"
    if kind.unknown > _MANY:
        return "no model knows many of its ops"
    if isinstance(errors, Calibration):
        return "ops like these were far off while unseen"
    if errors.is_strange(placed.node.device, kind):
        return "no step like it was published for a device like this one; foretell adapt makes it narrow"
    if kind.convolutions > _MANY:
        return "which algorithm runs a convolution differs from device to device; foretell adapt makes it narrow"
    return "published steps of such devices were as far off; foretell adapt makes it narrow"


def _sigma(placed: RoleStep, errors: Calibration) -> float:
    return errors.sigma(expected_error(placed), placed.unknown)


def _errors(placed: Placed, model: CostModel) -> Calibration | OtherDevices | None:
    """Of the model on the device it was measured on, or on devices that it was not, whose hosts are no better known."""
    own, others = _own_errors(placed, model), other_devices_of(model)
    if placed.node.device.name == model.device:
        return own
    return replace(others, host=max(others.host, own.host)) if others and own else others


def _own_errors(placed: Placed, model: CostModel) -> Calibration | None:
    calibration = calibration_of(model)
    return calibration and calibration.of_kind(placed.role.graph.training)


def _why_not_known(placed: Placed, model: CostModel) -> str:
    if placed.node.device.name != model.device and calibration_of(model) is not None:
        return f"the model was validated against measurements on {model.device} alone"
    return "the model has not been calibrated against measurements"


def _unknown(why: str) -> StepDistribution:
    return StepDistribution(caveats=(Caveat("not-calibrated", f"No interval is given: {why}."),))


def _uncertain(placed: Placed) -> Iterator[Caveat]:
    text, share = uncertain_operators(placed)
    if text:
        yield Caveat("uncertain-ops", text, share)
