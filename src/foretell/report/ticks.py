"""Where the lines of an axis lie: at round numbers, that a person can read between."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from foretell.units import Seconds, show_seconds

Tick = tuple[float, str]  # where, and what is written there
_NEAR: Final = 4.0  # an axis in logarithms that spans less has equal steps
_TIMES: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_OF_UNIT: Final = {
    "d": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
    "h": (1, 2, 5, 10),
    "min": (1, 2, 5, 10, 30),
    "s": (1, 2, 5, 10, 30),
}
_OF_SMALL: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # of units a thousand apart


def seconds(begin: Seconds, end: Seconds, most: int) -> list[Tick]:
    """Equal steps, written with as many digits as tell them apart."""
    unit, name = next(((u, n) for u, n in _TIMES if end >= u), _TIMES[-1])
    return [(value * unit, f"{text} {name}") for value, text in _equal(begin / unit, end / unit, most)]


def seconds_by_ratio(low: Seconds, high: Seconds, most: int) -> list[Tick]:
    """For an axis in logarithms."""
    if high < _NEAR * low:
        return seconds(low, high, most)
    found = sorted(unit * n for unit, name in _TIMES for n in _OF_UNIT.get(name, _OF_SMALL))
    return [(value, show_seconds(value)) for value in _few([v for v in found if low <= v <= high], most)]


def dollars_by_ratio(low: float, high: float, most: int) -> list[Tick]:
    return [(value, f"${text}0" if text[-2:-1] == "." else f"${text}") for value, text in _by_ratio(low, high, most)]


def counts_by_ratio(low: float, high: float, most: int, what: str) -> list[Tick]:
    return [(value, f"{text} {what}") for value, text in _by_ratio(low, high, most)]


def _by_ratio(low: float, high: float, most: int) -> Iterator[Tick]:
    if high < _NEAR * low:
        yield from _equal(low, high, most)
        return
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [n * 10.0**power for power in powers for n in (1, 2, 5)]
    for value in _few([v for v in found if low <= v <= high], most):
        yield value, f"{value:,.0f}" if value >= 1 else f"{value:.1g}"


def _equal(low: float, high: float, most: int) -> Iterator[Tick]:
    step = (high - low) / max(most, 1)
    if step <= 0:
        return
    power = 10.0 ** math.floor(math.log10(step))
    step = next(n for n in (1, 2, 5, 10) if n * power >= 0.7 * step) * power  # a line more is better than half as many
    digits = max(-math.floor(math.log10(step) + 1e-9), 0)
    for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield number * step, f"{number * step:,.{digits}f}"


def _few(values: Sequence[float], most: int) -> Sequence[float]:
    return values[:: math.ceil(len(values) / most)] if values else ()
