"""How sure a forecast is: a model's errors on families of networks, and on devices, that it had not seen.

Of a step's device time, each op is uncertain by the error that ops like it had when unseen, and what no model knows by much
more: a step made of well-known ops gets a narrow interval, one of strange ops a wide one. Device and host are drawn together, as
their errors occurred together, and pass through the simulator; a margin makes nine of ten unseen steps fall inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from foretell.cost.files import check_numbers
from foretell.cost.model import CostModel
from foretell.errors import ModelError
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.limits import read_json
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
FILE: Final = "calibration.json"
OTHER_DEVICES_FILE: Final = "elsewhere.json"
LEVEL: Final = 0.9
_WIDEST: Final = 20.0  # that an error can be, as a logarithm or in sigmas
_NUMBERS: Final = 5  # of `numbers_of`
_OTHERWISE: Final = 0.1  # what a step that trains says of one that does not, and the other way round
_STRANGE: Final = 2.0  # how many times wider an interval is on a make of which no device was left out
Range = tuple[Seconds, Seconds]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Errors on the device that a model was measured on, as logarithms."""

    floor: float  # sigma of what all steps share
    unknown: float  # for ops no model knows, by their part of the step
    device: float  # how many sigmas contain 90 % of steps
    pairs: Sequence[tuple[float, float]]  # errors of unseen steps: the device's in sigmas, the host's
    host: float  # contains 90 % of hosts
    margin: float  # added to a step's interval on either side
    inference: Calibration | None = None  # of steps without gradients, where enough of them were seen

    def __post_init__(self) -> None:
        widths = [self.floor, self.unknown, self.device, self.host]
        check_numbers("a width", widths, least=0, most=_WIDEST)
        check_numbers("margin", self.margin, dims=0, least=-_WIDEST, most=_WIDEST)
        check_numbers("pairs", self.pairs, dims=2 if len(self.pairs) else 1, least=-_WIDEST, most=_WIDEST)

    def of_kind(self, trains: bool) -> Calibration:
        """Without gradients a host issues ops faster, and errs otherwise."""
        return self if trains or self.inference is None else self.inference

    def sigma(self, spread: float, unknown: float) -> float:
        """Of a step's device time, from the error to expect for all that its ops say."""
        return self.floor + spread + self.unknown * unknown

    def device_range(self, seconds: Seconds, sigma: float) -> Range:
        return _around(seconds, self.device * sigma)

    def host_range(self, seconds: Seconds) -> Range:
        return _around(seconds, self.host)

    def step_range(self, curve: Sequence[tuple[float, Seconds]], sigma: float) -> Range:
        """From the step time at several speeds of the device, all else as predicted."""
        drawn = draw_steps(curve, np.array(self.pairs), sigma)
        low, high = (float(x) for x in np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
        middle = dict(curve)[1.0]
        return min(low, middle) * math.exp(-self.margin), max(high, middle) * math.exp(self.margin)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        calibration = read(path, cls.parse)
        for kind in (calibration, calibration.of_kind(False)):
            if np.ndim(kind.pairs) != 2 or np.shape(kind.pairs)[1] != 2:
                raise ModelError(f"{path}: pairs are not two errors each. Fit it with: foretell fit")
        return calibration

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Calibration:
        without = found.get("inference")
        return cls(**{**found, "inference": cls(**without) if without else None})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutDevice:
    """Errors on published steps of a device while nothing of it was in the fit."""

    device: str
    make: str  # who made it, and what kind it is
    half: bool  # products in 16 bits
    trains: bool
    numbers: Sequence[float]  # where the device lies among devices
    errors: Sequence[float]  # log(measured ÷ predicted) of steps, over their `spread`

    def __post_init__(self) -> None:
        check_numbers("numbers", self.numbers)
        check_numbers("errors", self.errors, least=-_WIDEST, most=_WIDEST)
        if len(self.numbers) != _NUMBERS or not len(self.errors):
            raise ValueError(f"a device is not {_NUMBERS} numbers with a list of errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """What of a step its error on another device goes by."""

    half: bool
    trains: bool
    convolutions: float  # their part of the device time
    unknown: float  # and that of ops no model knows
    alike: float = (
        0.0  # how likely two of its device's seconds are of one call: 1 where it is one product over and over
    )

    @property
    def spread(self) -> float:
        """Convolutions are run by algorithms that differ from device to device, products by much the same."""
        return 0.4 + self.convolutions


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Intervals on devices a model was not measured on, from its errors on devices left out (weighted conformal).

    Every device counts as one, the more the nearer it lies, and steps that train say little of steps that do not.
    """

    held: Sequence[HeldOutDevice]
    reach: float  # distance within which errors on one device are likely on another
    unknown: float  # added for ops no model knows, by their part of the step
    single: float = 0.0  # added for calls whose errors do not even out, by how much of a step is alike
    usual: float = 0.0  # how much of the held out steps is alike, which their errors count already
    measured: Device | None = None  # the model's own device: others of its architecture are near

    def __post_init__(self) -> None:
        check_numbers("reach", self.reach, dims=0, least=1e-3)
        check_numbers("a width", [self.unknown, self.single], least=0, most=_WIDEST)
        check_numbers("a part", self.usual, dims=0, least=0, most=1)
        if not self.held:
            raise ValueError("errors of no device")

    def step_range(self, seconds: Seconds, device: Device, kind: StepKind) -> Range:
        low, high = self.errors(device, kind)
        more = self.unknown * kind.unknown + self.single * max(0.0, kind.alike - self.usual)
        return seconds * math.exp(low * kind.spread - more), seconds * math.exp(high * kind.spread + more)

    def errors(self, device: Device, kind: StepKind) -> tuple[float, float]:
        """Quantiles of the errors on other devices, stretched where none of them is near."""
        away = self._away(device, kind.half)
        weights = np.exp(-0.5 * (away / self.reach) ** 2)
        weights *= [1.0 if h.trains == kind.trains else _OTHERWISE for h in self.held]
        weights = np.maximum(weights, 1e-9)  # far from all of them, each says as little
        each = [np.full(len(h.errors), w / len(h.errors)) for h, w in zip(self.held, weights, strict=True)]
        values, weight = np.concatenate([h.errors for h in self.held]), np.concatenate(each)
        order = np.argsort(values)
        reached = np.cumsum(weight[order]) / weight.sum()
        tail = (1 - LEVEL) / 2
        low, high = (float(values[order][np.searchsorted(reached, q)]) for q in (tail, 1 - tail))
        stretch = self._stretch(device, kind.half)
        return min(low, 0.0) * stretch, max(high, 0.0) * stretch

    def is_far(self, device: Device, half: bool) -> bool:
        return self._stretch(device, half) > 1.0

    def _away(self, device: Device, half: bool) -> Floats:
        place = numbers_of(device, half)
        return np.array([math.dist(place, h.numbers) for h in self.held])

    def _stretch(self, device: Device, half: bool) -> float:
        nearest = float(self._away(device, half).min())
        if self.measured is not None and self.measured.architecture == device.architecture:
            nearest = min(nearest, math.dist(numbers_of(device, half), numbers_of(self.measured, half)))
        strange = make_of(device) not in {h.make for h in self.held}
        return max(_STRANGE if strange else 1.0, nearest / self.reach)

    @classmethod
    def load(cls, path: Path) -> Unmeasured:
        return read(path, lambda found: cls(**found | {"held": [HeldOutDevice(**h) for h in found["held"]]}))


def calibration_of(model: CostModel) -> Calibration | None:
    """A model's errors on its own device; None where they are not known."""
    return beside(model, FILE, Calibration.load)


def unmeasured_of(model: CostModel) -> Unmeasured | None:
    """And on other devices than its own."""
    found = beside(model, OTHER_DEVICES_FILE, Unmeasured.load)
    return found and replace(found, measured=known_device(model.device) if model.device else None)


def beside(model: CostModel, name: str, load: Callable[[Path], T]) -> T | None:
    """What a file in a model's folder says, read once; None where there is none."""
    path = model.folder / name if model.folder else None
    if path is None or not path.is_file():
        return None
    found: T = _cached(load, path, path.stat().st_mtime_ns)
    return found


@lru_cache(maxsize=16)
def _cached(load: Callable[[Path], Any], path: Path, changed: int) -> Any:
    return load(path)


def read(path: Path, make: Callable[[dict[str, Any]], T]) -> T:
    try:
        return make(read_json(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path} is no file of a model's errors ({error}). Fit it with: foretell fit") from error


def convolutions(families: Mapping[str, Seconds]) -> float:
    """Their part of a step, of the device time of each family of its ops."""
    convolved = sum(families.get(name, 0.0) for name in ("convolution", "convolution_backward"))
    return convolved / (sum(families.values()) or 1.0)


def make_of(device: Device) -> str:
    return f"{device.vendor} {device.kind}"


def numbers_of(device: Device, half: bool) -> tuple[float, ...]:
    """Where a device lies among devices: doublings of its rates, its size, and how it balances them."""
    rate = device.peak("fp16") if half else device.vector_peak("fp32")
    amounts = (device.bandwidth / 1e12, rate / 1e13, device.compute_units / 100, device.l2_bytes / 2**23)
    return (*(round(math.log2(amount), 3) for amount in amounts), 2.0 * half)


def draw_steps(curve: Sequence[tuple[float, Seconds]], pairs: Floats, sigma: float) -> Floats:
    """When all durations are doubled so is the step: its time depends on the device's speed over the host's alone."""
    device, host = np.exp(pairs[:, 0] * sigma), np.exp(pairs[:, 1])
    factors, seconds = (np.log(column) for column in zip(*curve, strict=True))
    slopes = np.diff(seconds) / np.diff(factors)
    ratio = np.log(device / host)
    piece = np.clip(np.searchsorted(factors, ratio) - 1, 0, len(slopes) - 1)
    return np.asarray(host * np.exp(seconds[piece] + slopes[piece] * (ratio - factors[piece])), dtype=np.float64)


def _around(seconds: Seconds, width: float) -> Range:
    return seconds * math.exp(-width), seconds * math.exp(width)
