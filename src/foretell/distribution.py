"""A prediction as a distribution: its quantiles and mean, samples of it, and how likely it stays below a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVEL: Final = 0.9  # what an interval contains
TAILS: Final = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
Z90: Final = 1.6449  # half of such an interval, in standard deviations
_DIGITS: Final = 12  # of a probability: 1 - 0.95 is 0.05


class Distribution(Protocol):
    """What is known of a number before it is measured."""

    @property
    def mean(self) -> float: ...

    def quantile(self, level: float) -> float: ...

    def sample(self, count: int, seed: int = 0) -> Floats: ...

    def probability_below(self, limit: float) -> float: ...

    def scaled(self, factor: float) -> Self: ...

    def shifted(self, amount: float) -> Self: ...


def interval(of: Distribution) -> tuple[float, float]:
    """The 90 % interval, low and high."""
    return of.quantile(TAILS[0]), of.quantile(TAILS[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """A number whose logarithm is normal on either side of its median, and something sure that is added to it."""

    median: float
    below: float  # from the median to the low end of the 90 % interval, as a logarithm
    above: float  # and to its high end
    shift: float = 0.0

    @classmethod
    def symmetric(cls, median: float, width: float) -> LogNormal:
        """With a 90 % interval that reaches as far, as a logarithm, to either side."""
        return cls(median=median, below=width, above=width)

    @classmethod
    def from_sigma(cls, median: float, sigma: float) -> LogNormal:
        """With a standard deviation of the logarithm."""
        return cls.symmetric(median, sigma * Z90)

    @classmethod
    def from_interval(cls, median: float, low: float, high: float) -> LogNormal:
        """As wide as a 90 % interval is, whichever side of it is the longer."""
        return cls.symmetric(median, math.log(high / low) / 2 if high > low > 0 else 0.0)

    @property
    def sigma(self) -> float:
        """One standard deviation of the logarithm, of both sides."""
        return (self.below + self.above) / 2 / Z90

    @property
    def mean(self) -> float:
        if self.below == self.above:
            return self.median * math.exp(self.sigma**2 / 2) + self.shift
        shorter, longer = self.below / Z90, self.above / Z90
        sides = math.exp(shorter**2 / 2) * _normal_below(-shorter) + math.exp(longer**2 / 2) * _normal_below(longer)
        return self.median * sides + self.shift

    def quantile(self, level: float) -> float:
        width = -self.below if level < 0.5 else self.above
        return self.median * math.exp(width * _widths(level)) + self.shift

    def sample(self, count: int, seed: int = 0) -> Floats:
        normal = np.random.default_rng(seed).standard_normal(count) / Z90
        logs = normal * np.where(normal < 0, self.below, self.above)
        return np.asarray(self.median * np.exp(logs) + self.shift, dtype=np.float64)

    def probability_below(self, limit: float) -> float:
        if self.median <= 0:
            return float(limit >= self.shift)
        if limit <= self.shift:
            return 0.0
        log = math.log((limit - self.shift) / self.median)
        sigma = (self.below if log < 0 else self.above) / Z90
        return _normal_below(log / sigma) if sigma else float(log >= 0)

    def scaled(self, factor: float) -> Self:
        return replace(self, median=self.median * factor, shift=self.shift * factor)

    def shifted(self, amount: float) -> Self:
        return replace(self, shift=self.shift + amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical:
    """A number of which values were drawn, around a median that lies among them, and something sure that is added to it."""

    median: float
    values: Floats = field(compare=False)
    margin: float = 0.0  # added to its 90 % interval on either side, as a logarithm, and to others in proportion
    shift: float = 0.0

    @property
    def mean(self) -> float:
        return float(self._quantiles.mean())

    def quantile(self, level: float) -> float:
        if level == 0.5:
            return self.median + self.shift
        drawn, margin = float(np.quantile(self.values, level)), self.margin * _widths(level)
        if level < 0.5:
            return min(drawn, self.median) * math.exp(-margin) + self.shift
        return max(drawn, self.median) * math.exp(margin) + self.shift

    def sample(self, count: int, seed: int = 0) -> Floats:
        return np.asarray(np.random.default_rng(seed).choice(self._quantiles, count), dtype=np.float64)

    def probability_below(self, limit: float) -> float:
        return float(np.mean(self._quantiles <= limit))

    def scaled(self, factor: float) -> Self:
        return replace(self, median=self.median * factor, values=self.values * factor, shift=self.shift * factor)

    def shifted(self, amount: float) -> Self:
        return replace(self, shift=self.shift + amount)

    @property
    def _quantiles(self) -> Floats:
        """As many as there are values, each as likely as any other."""
        levels = (np.arange(len(self.values)) + 0.5) / len(self.values)
        return np.array([self.quantile(level) for level in levels.tolist()], dtype=np.float64)


@lru_cache(maxsize=1024)
def _widths(level: float) -> float:
    """How far a quantile lies from the median, in halves of a 90 % interval: 1 at 5 % and at 95 %."""
    normal = NormalDist()
    return normal.inv_cdf(round(min(level, 1 - level), _DIGITS)) / normal.inv_cdf(round(TAILS[0], _DIGITS))


def _normal_below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
