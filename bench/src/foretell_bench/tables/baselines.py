"""What one would say without a forecast, fitted on the same rows as a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from foretell.units import Seconds
from foretell_bench.sources.question import Question

Baseline = Callable[[Sequence[Question], Sequence[Question]], list[Seconds]]  # known and tested rows


def ernest(known: Sequence[Question], tested: Sequence[Question]) -> list[Seconds]:
    """Non-negative least squares on 1, data per machine, log machines, machines (Venkataraman et al., NSDI 2016)."""
    from scipy.optimize import nnls

    def features(questions: Sequence[Question]) -> np.ndarray:
        return np.array([[1.0, q.samples, np.log(q.ask.plan.devices), q.ask.plan.devices] for q in questions])

    weights, _ = nnls(features(known), np.array([q.seconds for q in known]))
    return (features(tested) @ weights).tolist()  # type: ignore[no-any-return]


def per_sample(known: Sequence[Question], tested: Sequence[Question]) -> list[Seconds]:
    """Seconds per sample of a device, the median of known rows, however many devices there are."""
    each = median((q.seconds or 0.0) / q.samples for q in known)
    return [each * q.samples for q in tested]
