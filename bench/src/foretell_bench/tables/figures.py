"""One line of a benchmark's table: what was found, over how many rows, and its bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    source: str
    measure: str
    value: float | None  # None: could not be run, and `note` says why
    zero_shot: float | None = None  # without a profile, where `value` is with one
    bar: float | None = None
    at_least: bool = False  # whether more is better
    rows: int = 0
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; None where there is no bar."""
        if self.bar is None:
            return None
        if self.value is None or not np.isfinite(self.value):
            return False
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> np.ndarray:
    errors: np.ndarray = np.abs(np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1)
    return errors


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: Pearson's of the ranks."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
