"""Steps of one device that a model was measured on: its errors on families of networks that it had not seen.

Of a step's device time, each op is uncertain by the error that ops like it had when unseen, and what no model knows by much
more: a step made of well-known ops gets a narrow interval, one of strange ops a wide one. Device and host are drawn together, as
their errors occurred together, and pass through the simulator; a margin makes nine of ten unseen steps fall inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.cost.files import check_numbers
from foretell.cost.folder import read_errors, read_once
from foretell.cost.model import CostModel
from foretell.distribution import Empirical, Floats, LogNormal
from foretell.errors import ModelError
from foretell.units import Seconds

FILE: Final = "calibration.json"
_WIDEST: Final = 20.0  # that an error can be, as a logarithm or in sigmas
Curve = Sequence[tuple[float, Seconds]]  # how many times slower the device is, and the step's time there


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

    def sigma(self, operators: float, unknown: float) -> float:
        """Of a step's device time, from the error to expect of its operators and the part that no model knows."""
        return self.floor + operators + self.unknown * unknown

    def device_time(self, seconds: Seconds, sigma: float) -> LogNormal:
        return LogNormal.symmetric(seconds, self.device * sigma)

    def host_time(self, seconds: Seconds) -> LogNormal:
        return LogNormal.symmetric(seconds, self.host)

    def step_time(self, curve: Curve, sigma: float) -> Empirical:
        """From the step time at several speeds of the device, all else as predicted."""
        drawn = draw_steps(curve, np.array(self.pairs), sigma)
        return Empirical(median=dict(curve)[1.0], values=drawn, margin=self.margin)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        calibration = read_errors(path, cls.parse)
        for kind in (calibration, calibration.of_kind(False)):
            if np.ndim(kind.pairs) != 2 or np.shape(kind.pairs)[1] != 2:
                raise ModelError(f"{path}: pairs are not two errors each. Fit it with: foretell fit")
        return calibration

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Calibration:
        without = content.get("inference")
        return cls(**{**content, "inference": cls(**without) if without else None})


def calibration_of(model: CostModel) -> Calibration | None:
    """A model's errors on its own device; None where they are not known."""
    return read_once(model.folder, Calibration.load, FILE)


def draw_steps(curve: Curve, pairs: Floats, sigma: float) -> Floats:
    """When all durations are doubled so is the step: its time depends on the device's speed over the host's alone."""
    device, host = np.exp(pairs[:, 0] * sigma), np.exp(pairs[:, 1])
    factors, seconds = (np.log(column) for column in zip(*curve, strict=True))
    slopes = np.diff(seconds) / np.diff(factors)
    ratio = np.log(device / host)
    piece = np.clip(np.searchsorted(factors, ratio) - 1, 0, len(slopes) - 1)
    return np.asarray(host * np.exp(seconds[piece] + slopes[piece] * (ratio - factors[piece])), dtype=np.float64)
