"""Errors of predictions, as fractions of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    mean: float
    median: float
    p90: float
    rmse: float
    bias: float
    rank: float  # Spearman's correlation
    count: int

    @classmethod
    def of(cls, predicted: Floats | Sequence[float], measured: Floats | Sequence[float]) -> Errors:
        predicted, measured = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
        relative = predicted / measured - 1
        errors = np.abs(relative)
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, measured)]
        return cls(
            mean=float(errors.mean()),
            median=float(np.median(errors)),
            p90=float(np.quantile(errors, 0.9)),
            rmse=float(np.sqrt((errors**2).mean())),
            bias=float(relative.mean()),
            rank=float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(errors) > 2 else float("nan"),
            count=len(errors),
        )

    def __str__(self) -> str:
        return f"mean {self.mean:.1%}, median {self.median:.1%}, p90 {self.p90:.1%}, n {self.count}"
