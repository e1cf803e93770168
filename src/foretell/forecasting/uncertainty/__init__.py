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

from foretell.cost.model import CostModel
from foretell.distribution import Z90, Distribution, LogNormal, interval
from foretell.forecasting.profile_purpose import profile_of_other_devices
from foretell.forecasting.run import Placed, Run
from foretell.forecasting.uncertainty.jobs import PartsError, jobs_of, network_error, parts_error
from foretell.forecasting.uncertainty.operators import expected_error, uncertain_operators
from foretell.forecasting.uncertainty.other_devices import OtherDevices, StepKind, other_devices_of
from foretell.forecasting.uncertainty.own_device import Calibration, calibration_of
from foretell.graph import Caveat
from foretell.hardware import Cluster
from foretell.profile import Profile, network_of
from foretell.program import Program
from foretell.units import Seconds

_HOST: Final = 0.3  # of a host's logarithm, where a model does not say


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
) -> StepDistribution:
    """Of a run: `fixed` seconds are sure; those that a trainer has `added` make it as unsure as trainers of a kind `spread`."""
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
    errors, own = _errors(ran.slowest, model), _own_errors(ran.slowest, model)
    if errors is None:
        return None
    device, host = _device(ran.slowest, errors).above, own.host if own else _HOST
    return parts_error(program, ran, device=device, host=host, network=network_error(cluster))


def _by_model(
    program: Program, ran: Run, cluster: Cluster, model: CostModel, fixed: Seconds, added: Seconds, spread: float
) -> StepDistribution:
    errors = _errors(ran.slowest, model)
    if errors is None:
        return _unknown(_why_not_known(ran.slowest, model))
    if program.ranks > 1:
        return _several(program, ran, cluster, model, errors, fixed, added, spread)
    placed, period = ran.slowest, ran.timeline.period
    if isinstance(errors, OtherDevices):  # published steps do not separate a host from its device: it gets no interval
        device, kind = placed.node.device, StepKind.of(placed)
        known = StepDistribution(
            step=errors.step_time(period, device, kind),
            device=errors.step_time(placed.device_seconds, device, kind),
            caveats=(Caveat("calibrated-elsewhere", errors.source(device, kind.half)),),
        )
    else:
        sigma = _sigma(placed, errors)
        known = StepDistribution(
            step=errors.step_time(placed.curve(period), sigma),
            device=errors.device_time(placed.device_seconds, sigma),
            host=errors.host_time(placed.host_seconds),
            caveats=tuple(_uncertain(placed)),
        )
    assert known.step is not None
    sure = LogNormal.symmetric(ran.exposed, 0.0)  # one rank waits for none
    step = known.step.scaled(1 + added / period) if period else known.step
    return replace(known, step=_wider(step, spread if added else 0.0).shifted(fixed), exposed=sure, waiting=0.0)


def _wider(step: Distribution, spread: float) -> Distribution:
    """A step of one device with what its trainer may add, in proportion."""
    if not spread:
        return step
    median, (low, high) = step.quantile(0.5), interval(step)
    below, above = (math.hypot(math.log(side), Z90 * spread) for side in (median / low, high / median))
    return LogNormal(median=median, below=below, above=above)


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
    parts = error_of_parts(program, ran, cluster, model)
    assert parts is not None
    own = errors if isinstance(errors, Calibration) else None
    device = _device(ran.slowest, errors)
    return StepDistribution(
        step=jobs.step_time(ran.timeline.period + ran.stragglers + added, parts, spread).shifted(fixed),
        device=device,
        host=own.host_time(ran.slowest.host_seconds) if own else None,
        exposed=LogNormal.symmetric(ran.exposed, network_error(cluster)),
        waiting=device.above,
        caveats=(Caveat("calibrated-by-jobs", jobs.source), *(_uncertain(ran.slowest) if own else ())),
    )


def _device(placed: Placed, errors: Calibration | OtherDevices) -> LogNormal:
    """Of the device time among several ranks: to which side errors lean is what jobs say."""
    seconds = placed.device_seconds
    if isinstance(errors, Calibration):
        return errors.device_time(seconds, _sigma(placed, errors))
    one = errors.step_time(1.0, placed.node.device, StepKind.of(placed))
    return LogNormal.from_interval(seconds, *interval(one))


def _sigma(placed: Placed, errors: Calibration) -> float:
    return errors.sigma(expected_error(placed), placed.unknown)


def _errors(placed: Placed, model: CostModel) -> Calibration | OtherDevices | None:
    """Of the model on the device it was measured on, or on devices that it was not."""
    return _own_errors(placed, model) if placed.node.device.name == model.device else other_devices_of(model)


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
