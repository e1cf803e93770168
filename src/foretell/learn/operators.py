"""Measured ops → models of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.operators import FamilyModel, OperatorModels, matrix
from foretell.errors import ModelError
from foretell.learn.dataset import OpTable
from foretell.learn.lightgbm_text import trees_of
from foretell.learn.options import ROUNDS, quiet

Floats = npt.NDArray[np.float64]
_TREES: Final[dict[str, Any]] = {
    "objective": "huber", "alpha": 0.5, "learning_rate": 0.045, "num_leaves": 63, "min_data_in_leaf": 6,
    "feature_fraction": 0.6, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "cat_smooth": 5, "verbose": -1,
    "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_AT_LEAST: Final = 0.3  # weight of an op that takes nothing of its step
_FEWEST: Final = 20  # rows a family needs for a model of its own


def fit_operators(
    ops: OpTable,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    trees: Mapping[str, Any] = MappingProxyType({}),
    progress: Callable[[str], None] = quiet,
) -> OperatorModels:
    """A model for every family that was measured often enough; `trees` are settings of LightGBM unlike the usual ones."""
    models: dict[str, FamilyModel] = {}
    for family, rows in training_rows(ops).items():
        if len(rows.wanted) >= _FEWEST:
            progress(f"fitting {family} on {len(rows.wanted)} ops")
            models[family] = rows.fit(seed=seed, rounds=rounds, trees=trees)
    return OperatorModels(families=models)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRows:
    """The ops of one family as trees read them."""

    columns: tuple[str, ...]
    operators: tuple[str, ...]
    table: Floats
    wanted: Floats
    weights: Floats

    def fit(self, *, seed: int, rounds: int, trees: Mapping[str, Any]) -> FamilyModel:
        try:
            import lightgbm
        except ImportError as error:
            raise ModelError(
                "fitting needs LightGBM, which is not installed. Install it with: pip install 'foretell[learn]'"
            ) from error
        data = lightgbm.Dataset(self.table, self.wanted, weight=self.weights, categorical_feature=[len(self.columns)])
        booster = lightgbm.train(_TREES | dict(trees) | {"seed": seed}, data, num_boost_round=rounds)
        return FamilyModel(columns=self.columns, operators=self.operators, trees=trees_of(booster.model_to_string()))


def training_rows(ops: OpTable, wanted: Floats | None = None) -> Mapping[str, TrainingRows]:
    """Of each family; without `wanted`, what is to be learned is log(time ÷ roofline)."""
    families = np.array([d.family for d in ops.descriptions])
    if wanted is None:
        wanted = np.log(ops.seconds / np.array([d.roofline for d in ops.descriptions]))
    weight, names = weights(ops), ops.names
    found = {}
    for family in sorted(set(families)):
        own = np.flatnonzero(families == family).tolist()
        descriptions = [ops.descriptions[i] for i in own]
        columns = tuple(sorted({name for d in descriptions for name in d.values}))
        operators = tuple(sorted({names[i] for i in own}))
        table = matrix([names[i] for i in own], descriptions, columns, operators)
        found[family] = TrainingRows(
            columns=columns, operators=operators, table=table, wanted=wanted[own], weights=weight[own]
        )
    return found


def weights(ops: OpTable) -> Floats:
    """An op counts the more, the more of its step it takes; one measured by itself as one that takes a hundredth."""
    return np.where(ops.step >= 0, np.sqrt(100.0 * np.maximum(ops.share, 0.0)) + _AT_LEAST, 1.0)
