"""Numbers of a trainer's software or a cluster's network, fitted on measured steps that are not tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from foretell.units import Seconds

ENOUGH = 8  # steps to fit a handful of numbers on
_FAR = 3.0  # a number stays within e^3, twenty times, of where it starts
_PULL = 0.02  # towards the start, for what the steps do not determine
_OUTLIER = 0.1  # ratios further off than this count less and less


class Step(Protocol):
    """A measured step, and how long it takes for given numbers."""

    @property
    def measured(self) -> Seconds: ...

    def seconds(self, numbers: Sequence[float]) -> Seconds: ...


S = TypeVar("S", bound=Step)


def fitted(start: Sequence[float], steps: Sequence[Step], pull: float = _PULL) -> list[float]:
    """Positive numbers that make predictions and measurements agree, in ratios and robustly.

    `pull` is how much a number's own distance from its start counts: the spread we expect of ratios over that of
    numbers.
    """
    from scipy.optimize import least_squares

    origin, seen = np.log(np.asarray(start)), np.log([step.measured for step in steps])

    def off(logs: np.ndarray) -> np.ndarray:
        numbers = np.exp(logs).tolist()
        ratios: np.ndarray = np.log([step.seconds(numbers) for step in steps]) - seen
        return np.concatenate([ratios, pull * (logs - origin)])

    found = least_squares(off, origin, bounds=(origin - _FAR, origin + _FAR), loss="soft_l1", f_scale=_OUTLIER)
    return [float(number) for number in np.exp(found.x)]


def foretold_by_others(
    steps: Sequence[S], start: Sequence[float], kind: Callable[[S], str], pull: float = _PULL
) -> list[tuple[S, Seconds]]:
    """Every step with the numbers of all other kinds; a kind whose others are too few is left out."""
    found = []
    for each in dict.fromkeys(map(kind, steps)):
        known = [step for step in steps if kind(step) != each]
        if len(known) >= ENOUGH:
            numbers = fitted(start, known, pull)
            found += [(step, step.seconds(numbers)) for step in steps if kind(step) == each]
    return found
