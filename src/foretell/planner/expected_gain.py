"""Which plan to run next: a search over real runs, seeded by forecasts and their uncertainty.

A Gaussian process learns by which factor runs differ from their forecasts, so that one run corrects all plans like it.
The plan with the largest expected improvement runs next; a run that fails says which plans need as much memory. The search
ends when no plan is expected to gain more than a few percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.planner.candidates import Candidate
from foretell.planner.search import GAIN, Run
from foretell.units import Bytes, Seconds

Floats = npt.NDArray[np.float64]
FEWEST: Final = 2  # runs before it may end
NOISE: Final = 0.03  # of the logarithm of a measured step: repeated steps of shared clusters differ by some percent
_LENGTHS: Final = (1.0, 2.0, 4.0)  # over which errors of forecasts are alike, in doublings of a degree
_SPREADS: Final = (0.1, 0.2, 0.4)  # of those errors
_ZERO: Final = 0.5  # how far apart stages of ZeRO are, in doublings


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A candidate that could run, and what is forecast of it."""

    candidate: Candidate
    seconds: Seconds  # of a step
    needed: Bytes
    fit_probability: float

    @property
    def rate(self) -> float:
        return self.seconds / self.candidate.work

    @property
    def place(self) -> tuple[float, ...]:
        p = self.candidate.plan
        sizes = (p.dp, p.tp, p.pp, p.cp, self.candidate.batch)
        recomputes = {"none": 0.0, "full": 1.0}.get(str(p.checkpointing), 0.5)
        return (*(math.log2(size) for size in sizes), _ZERO * p.zero, recomputes)


def try_plans(
    options: Sequence[Option],
    run: Run,
    *,
    most: int,
    confidence: float = 0.9,
    gain: float = GAIN,
    first: int | None = None,
    sharpen: Callable[[Option], Option] = lambda option: option,
) -> list[tuple[Option, Seconds | None]]:
    """Runs in the order they were made.

    It ends once no plan is expected to be better by `gain`. `first` is run first; `sharpen` forecasts an option better than
    its bound, which is done to each before it runs: a forecast takes a second, a run minutes.
    """
    options = list(options)
    places = np.array([option.place for option in options])
    sharp: set[int] = set()
    tried: list[int] = []
    results: list[Seconds | None] = []
    while len(tried) < min(most, len(options)):
        chosen = first if first is not None and not tried else None
        while chosen is None:
            promise = _gain(options, places, tried, results, confidence)
            promise[tried] = -1.0
            best = int(promise.argmax())
            if best in sharp:
                chosen = best
            else:
                options[best] = sharpen(options[best])
                sharp.add(best)
        enough = len(tried) >= FEWEST and any(r is not None for r in results)
        if enough and _gain(options, places, tried, results, confidence)[chosen] < gain:
            break
        tried.append(chosen)
        results.append(run(options[chosen].candidate.plan, options[chosen].candidate.batch))
    return [(options[i], seconds) for i, seconds in zip(tried, results, strict=True)]


def _gain(
    options: Sequence[Option],
    places: Floats,
    tried: Sequence[int],
    results: Sequence[Seconds | None],
    confidence: float,
) -> Floats:
    """Expected improvement over the best run, in parts of it; before any succeeded, the best forecast that surely fits."""
    forecasts = np.log([option.rate for option in options])
    odds = _odds(options, tried, results)
    ran = [(i, math.log(s / options[i].candidate.work)) for i, s in zip(tried, results, strict=True) if s is not None]
    if not ran:
        return np.asarray(
            np.where(odds >= confidence, 1.0, odds * 1e-3) * np.exp(forecasts.min() - forecasts), dtype=np.float64
        )
    known = [i for i, _ in ran]
    seen = np.array([value for _, value in ran])
    mean, deviation = _posterior(places[known], seen - forecasts[known], places)
    expected = forecasts + mean
    z = (seen.min() - expected) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    return np.asarray(odds * deviation * (z * below + density), dtype=np.float64)


def _odds(options: Sequence[Option], tried: Sequence[int], results: Sequence[Seconds | None]) -> Floats:
    """Of fitting, after runs: what needs no more than one that ran will run, what needs as much as one that failed will not."""
    ran = max((options[i].needed for i, s in zip(tried, results, strict=True) if s is not None), default=0)
    failed = min((options[i].needed for i, s in zip(tried, results, strict=True) if s is None), default=math.inf)
    fits = np.array([option.fit_probability for option in options])
    needed = np.array([option.needed for option in options], dtype=np.float64)
    odds = np.where(needed <= ran, np.maximum(fits, 0.95), fits)
    return np.asarray(np.where((needed >= failed) & (needed > ran), odds * 0.1, odds), dtype=np.float64)


def _posterior(known: Floats, errors: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation of forecasts' errors, under the kernel that explains the known ones best."""
    best: tuple[float, Floats, Floats] | None = None
    for length, spread in product(_LENGTHS, _SPREADS):
        # A common factor of all forecasts, and what differs from plan to plan.
        covariance = spread**2 * (1.0 + _matern(known, known, length)) + NOISE**2 * np.eye(len(known))
        lower = np.linalg.cholesky(covariance)
        weights = np.linalg.solve(covariance, errors)
        likelihood = -0.5 * float(errors @ weights) - float(np.log(np.diag(lower)).sum())
        if best is None or likelihood > best[0]:
            across = spread**2 * (1.0 + _matern(wanted, known, length))
            explained = np.linalg.solve(lower, across.T)
            variance = 2 * spread**2 - (explained**2).sum(axis=0)
            best = likelihood, across @ weights, np.sqrt(np.maximum(variance, 1e-8))
    assert best is not None
    return best[1], best[2]


def _matern(a: Floats, b: Floats, length: float) -> Floats:
    """Matérn 5/2."""
    distance = math.sqrt(5) * np.linalg.norm(a[:, None, :] - b[None, :, :], axis=2) / length
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance), dtype=np.float64)
