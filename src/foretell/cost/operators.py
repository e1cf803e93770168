"""Learned times of ops: for each family, boosted trees that say how far from the roofline its ops run.

Physics bounds the answer: what is learned is log(time ÷ roofline), so a model that knows nothing says the roofline.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description
from foretell.errors import ModelError

Floats = npt.NDArray[np.float64]
VERSION: Final = 1
UNKNOWN: Final = -1.0  # the code of an operator that was not there when the model was fitted


@dataclass(frozen=True, kw_only=True)
class FamilyModel:
    """Trees of one family, with the columns and operators they were fitted on."""

    columns: tuple[str, ...]
    operators: tuple[str, ...]
    trees: str  # LightGBM's text

    @cached_property
    def booster(self) -> Any:
        import lightgbm

        return lightgbm.Booster(model_str=self.trees)

    def log_ratio(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        """log(time ÷ roofline) of each op."""
        table = matrix(names, descriptions, self.columns, self.operators)
        return np.asarray(self.booster.predict(table, num_threads=1), dtype=np.float64)


def matrix(
    names: Sequence[str], descriptions: Sequence[Description], columns: Sequence[str], operators: Sequence[str]
) -> Floats:
    """The table that trees read: the described values, and last the operator as a category."""
    code = {name: float(i) for i, name in enumerate(operators)}
    take = itemgetter(*columns)
    table = np.empty((len(names), len(columns) + 1))
    for row, name, d in zip(table, names, descriptions, strict=True):
        try:
            row[:-1] = take(d.values)
        except KeyError:  # not all ops of a family are described by the same values
            row[:-1] = [d.values.get(column, np.nan) for column in columns]
        row[-1] = code.get(name, UNKNOWN)
    return table


@dataclass(frozen=True, kw_only=True)
class OperatorModels:
    families: Mapping[str, FamilyModel]

    def seconds(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        """Device time of each op; the roofline where its family has no model."""
        out = np.array([d.roofline for d in descriptions])
        by_family: dict[str, list[int]] = {}
        for i, d in enumerate(descriptions):
            by_family.setdefault(d.family, []).append(i)
        for family, mine in by_family.items():
            model = self.families.get(family)
            if model is not None:
                ratio = model.log_ratio([names[i] for i in mine], [descriptions[i] for i in mine])
                out[mine] *= np.exp(ratio)
        return out

    def knows(self, name: str, family: str) -> bool:
        model = self.families.get(family)
        return model is not None and name in model.operators

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        index = {"version": VERSION, "families": {}}
        for family, model in self.families.items():
            (folder / f"{family}.txt.gz").write_bytes(gzip.compress(model.trees.encode(), mtime=0))
            index["families"][family] = {"columns": model.columns, "operators": model.operators}  # type: ignore[index]
        (folder / "operators.json").write_text(json.dumps(index))

    @classmethod
    def load(cls, folder: Path) -> OperatorModels:
        try:
            index = json.loads((folder / "operators.json").read_text())
            if index["version"] > VERSION:
                raise ModelError(
                    f"the model in {folder} has format {index['version']}, this Foretell reads up to {VERSION}. "
                    "Upgrade with: pip install -U foretell"
                )
            families = {
                family: FamilyModel(
                    columns=tuple(entry["columns"]), operators=tuple(entry["operators"]),
                    trees=gzip.decompress((folder / f"{family}.txt.gz").read_bytes()).decode(),
                )
                for family, entry in index["families"].items()
            }  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"{folder} holds no model of operators ({type(error).__name__}: {error}). Fit one with: foretell fit"
            ) from error
        return cls(families=families)
