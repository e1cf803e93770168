"""Steps predicted while their family was left out → how wide intervals must be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from foretell.distribution import LEVEL, TAILS, Floats
from foretell.forecasting.uncertainty.own_device import Calibration, draw_steps
from foretell.learn.uncertainty.left_out import LeftOutStep

_FLOOR: Final = 0.01
_FARTHEST: Final = 15.0  # sigmas, or logarithms, beyond which an error says no more
_FEWEST: Final = 30  # architectures without gradients, for errors of their own
_UNKNOWN: Final = 0.5  # the error of an op no model knows, about; too few were measured to say more


def calibrate(steps: Sequence[LeftOutStep]) -> Calibration:
    """Steps with and without gradients each by themselves, where there are enough of both."""
    training, inference = ([s for s in steps if s.trains == trains] for trains in (True, False))
    if min(len({s.source for s in kind}) for kind in (training, inference)) < _FEWEST:
        return _calibrated(steps)
    return replace(_calibrated(training), inference=_calibrated(inference))


def _calibrated(steps: Sequence[LeftOutStep]) -> Calibration:
    """Every architecture counts the same, however often it was measured."""
    often = Counter(s.source for s in steps)
    weights = np.array([1 / often[s.source] for s in steps])
    found = Calibration(floor=_FLOOR, unknown=_UNKNOWN, device=1.0, pairs=(), host=0.0, margin=0.0)  # what sigma needs
    sigmas = np.array([sigma(found, s) for s in steps])
    device = np.array([math.log(s.device / s.device_predicted) for s in steps]) / sigmas
    host = np.array([math.log(s.host / s.host_predicted) for s in steps])
    pairs = np.clip(np.c_[device, host], -_FARTHEST, _FARTHEST)
    margins = [_margin(s, draw_steps(s.curve, pairs, one)) for s, one in zip(steps, sigmas.tolist(), strict=True)]
    return replace(
        found,
        device=_quantile(np.abs(device), weights),
        pairs=[(round(a, 4), round(b, 4)) for a, b in pairs.tolist()],
        host=_quantile(np.abs(host), weights),
        margin=_quantile(np.array(margins), weights),
    )


def sigma(calibration: Calibration, step: LeftOutStep) -> float:
    """Of the logarithm of a step's device time."""
    return calibration.sigma(step.expected_error, step.unknown)


def _margin(step: LeftOutStep, drawn: Floats) -> float:
    """How far the measured step lies outside the quantiles of what was drawn."""
    low, high = np.quantile(drawn, TAILS)
    low, high = min(low, step.step_predicted), max(high, step.step_predicted)
    return max(math.log(low / step.step), math.log(step.step / high))


def _quantile(values: Floats, weights: Floats) -> float:
    """The value below which LEVEL of the weight lies, one more unseen architecture counted."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    wanted = LEVEL * (reached[-1] + 1)
    return float(values[order][min(int(np.searchsorted(reached, wanted)), len(values) - 1)])
