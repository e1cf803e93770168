"""How sure a forecast is: spreads found on families of networks that a model had not seen.

Of a step's device time, each family of ops is uncertain by what it was off by when unseen, and what no model knows by much
more: a step made of well-known ops gets a narrow interval, one of strange ops a wide one. Device and host are drawn
together, as they were off together, and pass through the simulator; a margin makes nine of ten unseen steps fall inside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.model import CostModel
from foretell.errors import ModelError
from foretell.hardware import Device
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
FILE: Final = "calibration.json"
ELSEWHERE_FILE: Final = "elsewhere.json"
LEVEL: Final = 0.9
Range = tuple[Seconds, Seconds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    families: Mapping[str, float] = field(hash=False)  # spread of the log error of a family's part of a step
    other: float  # of a family that is not among them
    floor: float  # and of what all share
    unknown: float  # for ops no model knows, by their part of the step
    device: float  # how many spreads hold 90 % of steps
    pairs: Sequence[tuple[float, float]]  # errors of unseen steps: the device's in spreads, the host's as a logarithm
    host: float  # logarithm that holds 90 % of hosts
    margin: float  # added to the logarithm of a step's interval on either side

    def spread(self, parts: Mapping[str, Seconds], unknown: float) -> float:
        """Of the log of a step's device time, from the time of each family of its ops.

        They are taken to be off together: as if by chance, steps of few kinds of ops were held too often, others too seldom.
        """
        whole = sum(parts.values()) or 1.0
        return (
            self.floor
            + sum(self.families.get(f, self.other) * s / whole for f, s in parts.items())
            + self.unknown * unknown
        )

    def device_range(self, seconds: Seconds, spread: float) -> Range:
        return _around(seconds, self.device * spread)

    def host_range(self, seconds: Seconds) -> Range:
        return _around(seconds, self.host)

    def step_range(self, curve: Sequence[tuple[float, Seconds]], spread: float) -> Range:
        """From the step time at several speeds of the device, all else as foretold."""
        low, high = _quantiles(self.drawn(curve, spread))
        middle = dict(curve)[1.0]
        return min(low, middle) * math.exp(-self.margin), max(high, middle) * math.exp(self.margin)

    def drawn(self, curve: Sequence[tuple[float, Seconds]], spread: float) -> Floats:
        """Step times as they would be were this step off as unseen ones were."""
        return draw_steps(curve, np.array(self.pairs), spread)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{path} holds no calibration ({error}). Fit it with: foretell fit") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """How far off published steps of a device were while nothing of it was in the fit."""

    device: str
    half: bool  # products in 16 bits
    numbers: Sequence[float]  # where the device lies among devices
    errors: Sequence[float]  # log(measured ÷ said) of steps, the same number of times for every architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Intervals on devices a model was not measured on: every device counts as one, the more the nearer it lies."""

    held: Sequence[HeldDevice]
    reach: float  # distance within which a device says much of another
    unknown: float  # added for ops no model knows, by their part of the step

    def step_range(self, seconds: Seconds, device: Device, half: bool, unknown: float) -> Range:
        """Quantiles of the errors elsewhere, stretched where no device that was held is near."""
        low, high = self.errors(numbers_of(device, half))
        more = self.unknown * unknown
        return seconds * math.exp(low - more), seconds * math.exp(high + more)

    def errors(self, place: Sequence[float]) -> tuple[float, float]:
        away = np.array([distance(place, h.numbers) for h in self.held])
        weights = np.exp(-0.5 * (away / self.reach) ** 2)
        each = [np.full(len(h.errors), w / len(h.errors)) for h, w in zip(self.held, weights, strict=True)]
        values, weight = np.concatenate([h.errors for h in self.held]), np.concatenate(each)
        order = np.argsort(values)
        reached = np.cumsum(weight[order]) / weight.sum()
        level = min(LEVEL * (1 + 1 / weights.sum()), 1.0)  # one more device counted, which nobody has seen
        tail = (1 - level) / 2
        low = float(values[order][np.searchsorted(reached, tail)])
        high = float(values[order][min(int(np.searchsorted(reached, 1 - tail)), len(values) - 1)])
        stretch = max(1.0, float(away.min()) / self.reach)
        return min(low, 0.0) * stretch, max(high, 0.0) * stretch

    def is_far(self, device: Device, half: bool) -> bool:
        place = numbers_of(device, half)
        return min(distance(place, h.numbers) for h in self.held) > self.reach

    @classmethod
    def load(cls, path: Path) -> Unmeasured:
        try:
            found = json.loads(path.read_text())
            return cls(**found | {"held": [HeldDevice(**h) for h in found["held"]]})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"{path} holds no errors on other devices ({error}). Fit them with: foretell fit"
            ) from error


def calibration_of(model: CostModel) -> Calibration | None:
    """How far off a model is on its own device; None where nobody has found out."""
    path = model.folder / FILE if model.folder else None
    return _calibration(path, path.stat().st_mtime_ns) if path and path.is_file() else None


def unmeasured_of(model: CostModel) -> Unmeasured | None:
    """The same for other devices than its own."""
    path = model.folder / ELSEWHERE_FILE if model.folder else None
    return _unmeasured(path, path.stat().st_mtime_ns) if path and path.is_file() else None


@lru_cache(maxsize=8)
def _calibration(path: Path, changed: int) -> Calibration:
    return Calibration.load(path)


@lru_cache(maxsize=8)
def _unmeasured(path: Path, changed: int) -> Unmeasured:
    return Unmeasured.load(path)


def numbers_of(device: Device, half: bool) -> tuple[float, ...]:
    """Where a device lies among devices: doublings of its rates, its size, and how it balances them."""
    rate = device.peak("fp16") if half else device.vector_peak("fp32")
    amounts = (device.bandwidth / 1e12, rate / 1e13, device.compute_units / 100, device.l2_bytes / 2**23)
    return (*(round(math.log2(amount), 3) for amount in amounts), 2.0 * half)


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    return math.dist(one, other)


def draw_steps(curve: Sequence[tuple[float, Seconds]], pairs: Floats, spread: float) -> Floats:
    """When all durations are doubled so is the step: its time depends on the device's speed over the host's alone."""
    device, host = np.exp(pairs[:, 0] * spread), np.exp(pairs[:, 1])
    factors, seconds = (np.log(column) for column in zip(*curve, strict=True))
    slopes = np.diff(seconds) / np.diff(factors)
    ratio = np.log(device / host)
    piece = np.clip(np.searchsorted(factors, ratio) - 1, 0, len(slopes) - 1)
    return np.asarray(host * np.exp(seconds[piece] + slopes[piece] * (ratio - factors[piece])), dtype=np.float64)


def _quantiles(drawn: Floats) -> Range:
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def _around(seconds: Seconds, width: float) -> Range:
    return seconds * math.exp(-width), seconds * math.exp(width)
