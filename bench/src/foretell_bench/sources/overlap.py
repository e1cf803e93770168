"""A data-parallel step in two numbers: compute, and what of its all-reduce does not hide behind it."""

from __future__ import annotations

import functools
import math

from foretell.units import Bytes, Seconds

BUCKET: Bytes = 25 * 2**20  # what DistributedDataParallel gathers before it sends


def last_bucket(gradients: Bytes) -> float:
    """The part of all gradients that DistributedDataParallel sends last, at most."""
    return min(1.0, BUCKET / max(gradients, 1))


def exposed_seconds(compute: Seconds, communication: Seconds, last: float, window: float) -> Seconds:
    """Gradients go out during the last `window` of compute; the `last` part of them has nothing to hide behind."""
    return max(communication - window * compute * (1 - last), communication * last)


@functools.cache
def slowest_of(ranks: int) -> float:
    """How many standard deviations the slowest of `ranks` independent steps lies above the mean (Blom)."""
    return 0.0 if ranks < 2 else _normal_quantile((ranks - 0.375) / (ranks + 0.25))


def _normal_quantile(probability: float) -> float:
    low, high = -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < probability else (low, middle)
    return low
