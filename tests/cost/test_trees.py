"""Trees as arrays predict what LightGBM predicts, and no file leads their walk astray."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save

from foretell.cost.folder import CHECKSUMS
from foretell.cost.operators import FILE, OperatorModels
from foretell.cost.trees import Trees
from foretell.errors import ModelError
from foretell.learn.convert import convert
from foretell.learn.lightgbm_text import trees_of

VERSION_1 = Path(__file__).parents[1] / "data" / "version-1.model"
EXPECTED = [0.7640653470675599, 0.5971811733747636]  # what LightGBM predicted for rows of zeros and of fives
Arrays = dict[str, npt.NDArray[Any]]


def drawn(rows: int, seed: int) -> npt.NDArray[np.float64]:
    """Numbers of several kinds, some of them missing, and a category last, some of them unknown."""
    draw = np.random.default_rng(seed)
    table = np.column_stack(
        [
            draw.normal(size=rows),
            draw.integers(0, 5, rows),
            np.where(draw.random(rows) < 0.3, np.nan, draw.uniform(size=rows)),
            np.where(draw.random(rows) < 0.6, np.nan, draw.lognormal(size=rows)),
            draw.integers(0, 40, rows),
        ]
    )
    return table.astype(np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_what_lightgbm_predicts(seed: int) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    table = drawn(3000, seed)
    wanted = (
        np.nan_to_num(table[:, 2], nan=-2.0) * table[:, 1] + np.isnan(table[:, 3]) + (table[:, 4] % 7 < 3) * table[:, 0]
    )
    data = lightgbm.Dataset(table, wanted, categorical_feature=[4])
    booster = lightgbm.train({"num_leaves": 31, "seed": seed, "verbose": -1, "num_threads": 1}, data, 60)
    trees = trees_of(booster.model_to_string())
    asked = drawn(700, seed + 10)
    asked[::7, 0] = np.nan  # never missing in training
    asked[::11, 4] = -1
    asked[::13, 4] = 1000
    asked[::17, 4] = np.nan
    assert len(set(trees.missing.tolist())) > 1
    assert len(trees.sets)
    assert trees.predict(asked) == pytest.approx(booster.predict(asked, num_threads=1), rel=1e-6, abs=1e-6)


def test_a_tree_of_one_leaf_and_no_row() -> None:
    none = np.zeros(0, np.uint8)
    alone = Trees(
        test=np.zeros(2, np.uint8), cut=none, value=np.array([1.5, 2.0], np.float32), column=none, missing=none,
        edges=np.zeros(0), edge_counts=none, sets=np.zeros((0, 0), np.uint8),
    )  # fmt: skip
    assert alone.predict(np.zeros((3, 1))).tolist() == [3.5] * 3
    assert alone.predict(np.zeros((0, 1))).tolist() == []


def test_a_folder_of_the_first_format_is_converted(tmp_path: Path) -> None:
    folder = shutil.copytree(VERSION_1, tmp_path / "old")
    with pytest.raises(ModelError, match=re.escape(f"python -m foretell.learn.convert {folder}")):
        OperatorModels.load(folder)
    convert(folder)
    assert {path.name for path in folder.iterdir()} == {FILE, CHECKSUMS}
    model = OperatorModels.load(folder).families["matmul"]
    rows = np.zeros((2, len(model.columns) + 1))
    rows[1] = 5.0
    assert model.trees.predict(rows) == pytest.approx(EXPECTED, rel=1e-6)
    with pytest.raises(ModelError, match="first format"):
        convert(folder)


def _damage(name: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Callable[[Arrays], None]:
    def damage(arrays: Arrays) -> None:
        arrays[f"matmul.{name}"] = change(arrays[f"matmul.{name}"])

    return damage


def _at(place: int, value: float) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    def change(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = array.copy()
        array[place] = value
        return array

    return change


DAMAGES = {
    "a tree cut short": _damage("test", lambda a: np.concatenate([a[:-1], [1]]).astype(np.uint8)),
    "nodes without values": _damage("value", lambda a: a[:-1]),
    "a test that is not there": _damage("test", _at(0, 255)),
    "an edge that is not there": _damage("cut", _at(0, 255)),
    "a column that is not there": _damage("column", _at(0, 200)),
    "an edge that is NaN": _damage("edges", _at(0, np.nan)),
    "edges that fall": _damage("edges", lambda a: a[::-1].copy()),
    "edges that are missing": _damage("edges", lambda a: a[1:].copy()),
    "counts that overflow": _damage("edge_counts", lambda a: np.full(len(a), 2**63, np.uint64)),
    "a value that is infinite": _damage("value", _at(0, np.inf)),
    "splits that are numbers": _damage("cut", lambda a: a.astype(np.float32)),
    "tests in two dimensions": _damage("test", lambda a: a[:, None].copy()),
    "signed tests": _damage("test", lambda a: a.astype(np.int64) - 1),
    "no tests": lambda arrays: arrays.clear(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[Arrays], None]) -> None:
    folder = shutil.copytree(VERSION_1, tmp_path / "old")
    convert(folder)
    model, arrays = OperatorModels.load(folder).families["matmul"], load_file(folder / FILE)
    about = {"version": "2", "families": json.dumps({"matmul": {"columns": model.columns, "operators": ["aten.mm"]}})}
    (folder / FILE).write_bytes(save(arrays, about))
    OperatorModels.load(folder)
    damage(arrays)
    (folder / FILE).write_bytes(save(arrays, about))
    with pytest.raises(ModelError, match="foretell fit"):
        OperatorModels.load(folder)


def test_arrays_are_as_narrow_as_they_can_be() -> None:
    trees = trees_of(gzip.decompress((VERSION_1 / "matmul.txt.gz").read_bytes()).decode())
    kept = dict(trees.arrays("a"))
    assert set(kept) == {f"a.{field.name}" for field in fields(Trees)}
    assert {kept[f"a.{name}"].dtype for name in ("test", "cut", "column", "missing")} == {np.dtype(np.uint8)}


def test_a_forecast_needs_no_lightgbm() -> None:
    code = (
        "import sys; sys.modules['lightgbm'] = None\n"
        "import foretell\n"
        f"graph = foretell.Graph.load({str(VERSION_1.parent / 'version-1.graph')!r})\n"
        "for on in ('h200', 'l4'): assert foretell.forecast(graph, on=on).step_time.seconds > 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
