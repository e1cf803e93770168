"""Measured ops → models of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.operators import FamilyModel, OperatorModels, matrix
from foretell.learn.dataset import OpTable

ROUNDS: Final = 350
_TREES: Final[dict[str, Any]] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 47, "min_data_in_leaf": 8, "feature_fraction": 0.6,
    "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "cat_smooth": 5, "verbose": -1, "num_threads": 1,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ALONE: Final = 0.2  # weight of an op measured by itself; a step's ops together weigh 100
_AT_LEAST: Final = 0.02
_FEWEST: Final = 20  # rows a family needs for a model of its own


def fit_operators(
    ops: OpTable, *, seed: int = 0, rounds: int = ROUNDS, progress: Callable[[str], None] = lambda text: None
) -> OperatorModels:
    """A model for every family that was measured often enough."""
    families = np.array([d.family for d in ops.descriptions])
    models: dict[str, FamilyModel] = {}
    for family in sorted(set(families)):
        mine = ops.where(families == family)
        if len(mine) >= _FEWEST:
            progress(f"fitting {family} on {len(mine)} ops")
            models[family] = _fit_family(mine, seed, rounds)
    return OperatorModels(families=models)


def _fit_family(ops: OpTable, seed: int, rounds: int) -> FamilyModel:
    import lightgbm

    columns = tuple(sorted({name for d in ops.descriptions for name in d.values}))
    operators = tuple(sorted(set(ops.names)))
    table = matrix(ops.names, ops.descriptions, columns, operators)
    wanted = np.log(ops.seconds / np.array([d.roofline for d in ops.descriptions]))
    data = lightgbm.Dataset(table, wanted, weight=weights(ops), categorical_feature=[len(columns)])
    booster = lightgbm.train(_TREES | {"seed": seed}, data, num_boost_round=rounds)
    return FamilyModel(columns=columns, operators=operators, trees=booster.model_to_string())


def weights(ops: OpTable) -> npt.NDArray[np.float64]:
    """An op counts as much as the part of its step that it takes."""
    return np.where(ops.step >= 0, 100.0 * ops.share + _AT_LEAST, _ALONE)
