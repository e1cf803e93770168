"""Errors of ops in steps that no model had seen → what error to expect of an op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.operator_errors import LARGEST, SMALLEST, OperatorErrors
from foretell.learn.dataset import OpTable
from foretell.learn.operators import training_rows

Floats = npt.NDArray[np.float64]
# Poisson: what is predicted is the logarithm of a mean, here of squares, which a few large errors make large.
_TREES: Final[dict[str, Any]] = {
    "objective": "poisson",
    "num_leaves": 15,
    "min_data_in_leaf": 30,
    "learning_rate": 0.05,
}
_ROUNDS: Final = 100
_FEWEST: Final = 100  # ops of a family whose errors say something


def fit_operator_errors(ops: OpTable, errors: Floats, seed: int = 0) -> OperatorErrors:
    """`errors` are log(measured ÷ predicted) of each op."""
    rows = training_rows(ops, np.clip(np.abs(errors), SMALLEST, LARGEST) ** 2)
    return OperatorErrors(
        families={
            family: one.fit(seed=seed, rounds=_ROUNDS, trees=_TREES)
            for family, one in rows.items()
            if len(one.wanted) >= _FEWEST
        }
    )


def unseen_operator_errors(ops: OpTable, errors: Floats, fold_of: Mapping[int, int], seed: int = 0) -> Floats:
    """The error to expect of each op, from models of errors that saw none of its step's fold."""
    folds = np.array([fold_of[step] for step in ops.step.tolist()])
    expected = np.zeros(len(ops))
    for fold in sorted(set(folds.tolist())):
        own = folds == fold
        left_out = ops.where(own)
        model = fit_operator_errors(ops.where(~own), errors[~own], seed)
        expected[own] = model.of(left_out.names, left_out.descriptions)
    return expected
