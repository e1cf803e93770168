"""Fits the numbers of a Profile to measured steps, by asking `forecast` with trial profiles.

Robust Gauss-Newton on the logarithms of predicted over measured seconds. A pull towards a profile that changes nothing
decides what the steps do not: a factor that none of them shows stays at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError
from foretell.forecasting.assemble import forecast
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.profile import Card, Profile, Purpose
from foretell.units import Seconds
from foretell.workload import Workload

Trial = Callable[[Profile], Sequence[Seconds]]  # what each measured step is predicted to take with a profile

MOST_STEPS: Final = 16  # every trial forecasts them all, and a handful of numbers needs no more
_FACTORS: Final = 3  # device, host, communication: the numbers before fixed seconds
_NOISE: Final = 0.1  # by which ratios of predicted to measured usually scatter; further ones count less and less
_WIDTH: Final = 0.5  # of a log factor before anything was measured
_FIXED_WIDTH: Final = 0.1  # of fixed seconds, to the median step
_PULL: Final = _NOISE / np.array([_WIDTH] * _FACTORS + [_FIXED_WIDTH])
_FAR: Final = 3.0  # a factor stays within e^3, twenty times, of 1
_STEP: Final = 0.05  # of a log factor, to see what it changes: steps have corners, and less would miss them
_ROUNDS: Final = 4
_NEAR: Final = 0.02  # a round that changes no number by more is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measured step, asked about as `forecast` is."""

    workload: Workload | Graph | str
    on: str | Cluster
    plan: Plan | str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    seconds: Seconds

    def predicted(self, profile: Profile, model: str | CostModel = DEFAULT) -> Seconds:
        settings = None if isinstance(self.workload, Graph) else self.settings
        return forecast(
            self.workload, self.on, self.plan, settings=settings, model=model, profile=profile
        ).step_time.seconds


def fit_profile(
    steps: Sequence[Step], *, name: str, purpose: Purpose | None = None, sources: Sequence[str] = (),
    model: str | CostModel = DEFAULT,
) -> Profile:  # fmt: skip
    """A profile for these steps; of many, some are taken that differ in plan and length."""
    chosen = [steps[i] for i in well_spread([(str(step.plan), step.seconds) for step in steps])]
    fitted = fit_numbers(
        [step.seconds for step in chosen],
        lambda profile: [step.predicted(profile, model) for step in chosen],
        name=name,
    )
    return replace(
        fitted, purpose=purpose or Purpose(), card=replace(fitted.card, sources=tuple(sources))
    )  # fmt: skip


def well_spread(keys: Sequence[tuple[str, float]], most: int = MOST_STEPS) -> list[int]:
    """Positions of some of many: evenly through them in the order of their keys, plan first and then seconds."""
    order = sorted(range(len(keys)), key=lambda i: keys[i])
    if len(order) <= most:
        return order
    return [order[round(i * (len(order) - 1) / (most - 1))] for i in range(most)]


def fit_numbers(measured: Sequence[Seconds], trial: Trial, *, name: str) -> Profile:
    """The profile whose predictions come nearest to measured steps; `trial` predicts each of them."""
    from scipy.optimize import lsq_linear

    if not measured:
        raise InputError("a profile is fitted on measured steps, and there are none.")
    search = _Search(name, np.asarray(measured, dtype=float), trial)
    high = np.array([_FAR] * _FACTORS + [0.9 * min(measured) / search.unit])
    low = np.append(-high[:-1], 0.0)
    numbers = np.zeros(_FACTORS + 1)
    for _ in range(_ROUNDS):
        errors, slopes = search.errors(numbers), search.slopes(numbers)
        counts = (1 + (errors / _NOISE) ** 2) ** -0.25
        counts[len(measured) :] = 1.0  # a pull is no outlier
        bounds = np.maximum(low - numbers, -1.0), np.minimum(high - numbers, 1.0) + 1e-9
        way = lsq_linear(slopes * counts[:, None], -errors * counts, bounds).x
        better = next((w for w in (way, way / 3) if search.loss(numbers + w) < search.loss(numbers)), None)
        if better is None:
            break
        numbers = np.clip(numbers + better, low, high)
        if np.abs(better).max() < _NEAR:
            break
    return replace(search.profile(numbers), card=Card(rows=len(measured)))


class _Search:
    """Errors of a trial and how they change with each number: log factors, and fixed seconds to the median step."""

    def __init__(self, name: str, measured: np.ndarray, trial: Trial) -> None:
        self.name, self.measured, self.trial = name, measured, trial
        self.unit = median(measured.tolist())
        self._known: dict[tuple[float, ...], np.ndarray] = {}

    def profile(self, numbers: np.ndarray) -> Profile:
        device, host, communication = np.exp(numbers[:-1]).tolist()
        fixed = float(max(numbers[-1], 0.0) * self.unit)
        return Profile(name=self.name, device=device, host=host, communication=communication, fixed_seconds=fixed)

    def errors(self, numbers: np.ndarray) -> np.ndarray:
        """Of every step, and the pull of every number."""
        predicted = self._simulated(numbers[:-1]) + numbers[-1] * self.unit
        return np.concatenate([np.log(predicted / self.measured), _PULL * numbers])

    def loss(self, numbers: np.ndarray) -> float:
        """Squares of small errors, large ones as they are."""
        of_steps, pull = np.split(self.errors(numbers), [len(self.measured)])
        robust = 2 * _NOISE**2 * (np.sqrt(1 + (of_steps / _NOISE) ** 2) - 1)
        return float(robust.sum() + (pull**2).sum())

    def slopes(self, numbers: np.ndarray) -> np.ndarray:
        logs = numbers[:-1]
        predicted = self._simulated(logs) + numbers[-1] * self.unit
        moved = [self._simulated(logs + _STEP * direction) for direction in np.eye(_FACTORS)]
        columns = [np.log((other + numbers[-1] * self.unit) / predicted) / _STEP for other in moved]
        columns.append(self.unit / predicted)  # seconds that are added as they are cost no forecast
        return np.vstack([np.array(columns).T, np.diag(_PULL)])

    def _simulated(self, logs: np.ndarray) -> np.ndarray:
        """Seconds of every step without fixed ones, each asked once."""
        key = tuple(logs.tolist())
        if key not in self._known:
            self._known[key] = np.asarray(self.trial(self.profile(np.append(logs, 0.0))), dtype=float)
        return self._known[key]
