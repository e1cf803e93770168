"""Ranks that do the same work do not take the same time: the slowest of them sets the pace."""

from __future__ import annotations

import math
import random
from functools import cache, lru_cache
from statistics import NormalDist, fmean
from typing import Final

_SAMPLES: Final = 512
_SEED: Final = 2026


@lru_cache(maxsize=1 << 12)
def slowest_of(ranks: int, sigma: float) -> float:
    """How many times its median the slowest of `ranks` takes, on average over steps; one rank takes its median.

    Each rank's step is log-normal around its median, with `sigma` in its logarithm. The largest of n draws lies where a
    uniform number to the power of 1/n says, so a step of ten thousand ranks costs one draw; draws are the same in every
    run.
    """
    if ranks < 1 or sigma < 0:
        raise ValueError(f"ranks must be at least 1 and sigma at least 0, got {ranks} and {sigma}")
    if ranks == 1 or sigma == 0:
        return 1.0
    return max(fmean([math.exp(sigma * drawn) for drawn in _largest(ranks)]), 1.0)


@cache
def _largest(ranks: int) -> tuple[float, ...]:
    """Draws of the largest of so many standard normal numbers."""
    draw, normal = random.Random(_SEED), NormalDist()
    even = ((i + draw.random()) / _SAMPLES for i in range(_SAMPLES))  # one in each of as many equal parts
    return tuple(normal.inv_cdf(min(max(u ** (1 / ranks), 1e-12), 1 - 1e-12)) for u in even)
