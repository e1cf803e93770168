"""After CherryPick (Alipourfard et al., NSDI 2017): Bayesian optimisation over configurations, run by run.

It searches and does not predict: a Gaussian process with a Matérn 5/2 kernel is fitted to what the runs so far cost, the
configuration with the largest expected improvement is run next, and the search ends once that is under a tenth of the best
and at least six runs were made. Three quasi-random runs come first.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.errors import InputError
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
STARTS: Final = 3
LEAST: Final = 6
STOP: Final = 0.10
_RESTARTS: Final = 1  # of the fit of the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration: its coordinates, what is to be small, and what a run of it takes."""

    features: tuple[float, ...]
    objective: float | None  # None: the run fails
    cost: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Runs in the order they were made."""

    tried: tuple[int, ...]
    cost: Seconds  # of all of them

    def best(self, table: Sequence[Candidate]) -> float | None:
        return min((o for i in self.tried if (o := table[i].objective) is not None), default=None)


class CherryPick:
    def __init__(self, *, seed: int = 0, starts: int = STARTS, least: int = LEAST, stop: float = STOP) -> None:
        self.seed = seed
        self.starts = starts
        self.least = least
        self.stop = stop

    def search(self, table: Sequence[Candidate]) -> Search:
        if len(table) < self.starts:
            raise InputError(f"CherryPick starts with {self.starts} runs, and there are {len(table)} configurations.")
        places = _scaled(np.array([c.features for c in table], dtype=np.float64))
        tried = spread_out(places, self.starts, self.seed)
        while len(tried) < len(table):
            seen = _values([table[i].objective for i in tried])
            left = [i for i in range(len(table)) if i not in set(tried)]
            gain = expected_improvement(places[tried], seen, places[left])
            if len(tried) >= self.least and gain.max() < self.stop * seen.min():
                break
            tried.append(left[int(gain.argmax())])
        return Search(tried=tuple(tried), cost=float(sum(table[i].cost for i in tried)))


def expected_improvement(known: Floats, seen: Floats, wanted: Floats) -> Floats:
    """How much less than the least seen each wanted point is expected to cost, in the unit of what was seen."""
    from scipy.stats import norm
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    # One length for all coordinates: half a dozen runs cannot tell one for each.
    kernel = Matern(1.0, (0.1, 5.0), nu=2.5) + WhiteKernel(0.01, (1e-6, 0.02))
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=_RESTARTS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound says nothing is learned there
        process.fit(known, seen)
    mean, deviation = process.predict(wanted, return_std=True)
    deviation = np.maximum(deviation, 1e-12)
    better = seen.min() - mean
    z = better / deviation
    return np.asarray(better * norm.cdf(z) + deviation * norm.pdf(z), dtype=np.float64)


def spread_out(places: Floats, count: int, seed: int) -> list[int]:
    """A seeded first point, then each time the one farthest from all chosen: quasi-random over a finite table."""
    chosen = [int(np.random.default_rng(seed).integers(len(places)))]
    while len(chosen) < count:
        near = np.min([np.linalg.norm(places - places[i], axis=1) for i in chosen], axis=0)
        chosen.append(int(near.argmax()))
    return chosen


def _scaled(table: Floats) -> Floats:
    """Every coordinate between 0 and 1; one that never changes is dropped."""
    low, high = table.min(axis=0), table.max(axis=0)
    moving = high > low
    if not moving.any():
        raise InputError("all configurations have the same coordinates, so there is nothing to search over.")
    return np.asarray((table[:, moving] - low[moving]) / (high - low)[moving], dtype=np.float64)


def _values(objectives: Sequence[float | None]) -> Floats:
    """A run that failed counts as twice the worst that did not, so that the search turns away; 1 where all failed."""
    worst = max((o for o in objectives if o is not None), default=0.5)
    return np.array([2 * worst if o is None else o for o in objectives])
