"""Steps of one device that a model was not measured on: its errors on published steps of devices that were left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.cost.files import check_numbers
from foretell.cost.folder import read_errors, read_once
from foretell.cost.model import CostModel
from foretell.distribution import TAILS, Floats, LogNormal
from foretell.forecasting.step import RoleStep
from foretell.forecasting.uncertainty.operators import repetition
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.units import Seconds

FILE: Final = "other_devices.json"
_OLD_FILE, _OLD_KEY = "elsewhere.json", "held"  # of models up to h200-2026.11
_WIDEST: Final = 20.0  # that an error can be, as a logarithm or over a step's scale
_NUMBERS: Final = 5  # of `numbers_of`
_OTHERWISE: Final = 0.1  # what a step that trains says of one that does not, and the other way round
_STRANGE: Final = 2.0  # how many times wider an interval is on a make of which no device was left out


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutDevice:
    """Errors on published steps of a device while nothing of it was in the fit."""

    device: str
    make: str  # who made it, and what kind it is
    half: bool  # products in 16 bits
    trains: bool
    numbers: Sequence[float]  # where the device lies among devices
    errors: Sequence[float]  # log(measured ÷ predicted) of steps, over their `scale`

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
    alike: float = 0.0  # its `repetition`: 1 where it is one product over and over

    @property
    def scale(self) -> float:
        """Convolutions are run by algorithms that differ from device to device, products by much the same."""
        return 0.4 + self.convolutions

    @classmethod
    def of(cls, step: RoleStep) -> StepKind:
        return cls(
            half=step.role.graph.precision.is_half,
            trains=step.role.graph.training,
            convolutions=convolutions(step.families),
            unknown=step.unknown,
            alike=repetition(step),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDevices:
    """Intervals on devices a model was not measured on, from its errors on devices left out (weighted conformal).

    Every device counts as one, the more the nearer it lies, and steps that train say little of steps that do not.
    """

    devices: Sequence[LeftOutDevice]
    reach: float  # distance within which errors on one device are likely on another
    unknown: float  # added for ops no model knows, by their part of the step
    single: float = 0.0  # added for calls whose errors do not even out, by how much of a step is alike
    usual: float = 0.0  # how much of the steps left out is alike, which their errors count already
    measured: Device | None = None  # the model's own device: others of its architecture are near

    def __post_init__(self) -> None:
        check_numbers("reach", self.reach, dims=0, least=1e-3)
        check_numbers("a width", [self.unknown, self.single], least=0, most=_WIDEST)
        check_numbers("a part", self.usual, dims=0, least=0, most=1)
        if not self.devices:
            raise ValueError("errors of no device")

    def step_time(self, seconds: Seconds, device: Device, kind: StepKind) -> LogNormal:
        low, high = self.errors(device, kind)
        more = self.unknown * kind.unknown + self.single * max(0.0, kind.alike - self.usual)
        return LogNormal(median=seconds, below=-(low * kind.scale - more), above=high * kind.scale + more)

    def errors(self, device: Device, kind: StepKind) -> tuple[float, float]:
        """Quantiles of the errors on other devices, stretched where none of them is near."""
        away = self._away(device, kind.half)
        weights = np.exp(-0.5 * (away / self.reach) ** 2)
        weights *= [1.0 if d.trains == kind.trains else _OTHERWISE for d in self.devices]
        weights = np.maximum(weights, 1e-9)  # far from all of them, each says as little
        each = [np.full(len(d.errors), w / len(d.errors)) for d, w in zip(self.devices, weights, strict=True)]
        values, weight = np.concatenate([d.errors for d in self.devices]), np.concatenate(each)
        order = np.argsort(values)
        reached = np.cumsum(weight[order]) / weight.sum()
        low, high = (float(values[order][np.searchsorted(reached, tail)]) for tail in (TAILS[0], 1 - TAILS[0]))
        stretch = self._stretch(device, kind.half)
        return min(low, 0.0) * stretch, max(high, 0.0) * stretch

    def source(self, device: Device, half: bool) -> str:
        """What an interval on a device is made from, in words."""
        others = {d.device for d in self.devices} - {device.name}
        text = f"The interval is from errors on published steps of {len(others)} devices, each predicted while left out"
        if self.is_far(device, half):
            text += f"; none of them is near {device.name} in its make and published numbers, so it is stretched"
        return f"{text}."

    def is_far(self, device: Device, half: bool) -> bool:
        return self._stretch(device, half) > 1.0

    def _away(self, device: Device, half: bool) -> Floats:
        place = numbers_of(device, half)
        return np.array([math.dist(place, d.numbers) for d in self.devices])

    def _stretch(self, device: Device, half: bool) -> float:
        nearest = float(self._away(device, half).min())
        if self.measured is not None and self.measured.architecture == device.architecture:
            nearest = min(nearest, math.dist(numbers_of(device, half), numbers_of(self.measured, half)))
        strange = make_of(device) not in {d.make for d in self.devices}
        return max(_STRANGE if strange else 1.0, nearest / self.reach)

    @classmethod
    def load(cls, path: Path) -> OtherDevices:
        return read_errors(path, cls.parse)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> OtherDevices:
        rest = dict(content)
        devices = rest.pop("devices" if "devices" in rest else _OLD_KEY)
        return cls(devices=[LeftOutDevice(**d) for d in devices], **rest)


def other_devices_of(model: CostModel) -> OtherDevices | None:
    """A model's errors on other devices than its own; None where they are not known."""
    errors = read_once(model.folder, OtherDevices.load, FILE, _OLD_FILE)
    return errors and replace(errors, measured=known_device(model.device) if model.device else None)


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
