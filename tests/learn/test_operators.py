"""Operators learned from a made-up device whose times we know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from foretell_bench.errors import Errors
from safetensors.numpy import save

from foretell.cost.features import describe
from foretell.cost.operators import FILE, OperatorModels
from foretell.errors import ModelError
from foretell.graph import Layout, Signature
from foretell.hardware import device
from foretell.learn.dataset import OpTable
from foretell.learn.operators import fit_operators
from foretell.learn.transfer.published_ops import product

pytest.importorskip("lightgbm")
H200 = device("h200")
EFFICIENCY = 0.6


def made_up(count: int, seed: int) -> OpTable:
    """Products that run at 60 % of the peak, with a launch of 2 µs."""
    draw = np.random.default_rng(seed)
    shapes = 2 ** draw.uniform(6, 13, (count, 3))
    signatures = [product(m, n, k) for m, n, k in shapes.astype(int).tolist()]
    seconds = 2e-6 + 2 * shapes.prod(axis=1) / H200.peak("bf16") / EFFICIENCY
    return OpTable.alone(signatures, [describe(s, H200, tf32=False) for s in signatures], seconds)


@pytest.fixture(scope="module")
def models() -> OperatorModels:
    return fit_operators(made_up(1500, seed=0), rounds=150)


def test_unseen_shapes_are_predicted(models: OperatorModels) -> None:
    unseen = made_up(200, seed=1)
    errors = Errors.of(models.seconds(unseen.names, unseen.descriptions), unseen.seconds)
    assert errors.median < 0.08
    assert errors.rank > 0.98


def test_a_family_without_a_model_runs_at_the_roofline(models: OperatorModels) -> None:
    x = Layout((1024, 1024), (1024, 1), "float32")
    gelu = describe(Signature("aten.gelu.default", (x,), (x,)), H200, tf32=False)
    assert models.seconds(["aten.gelu"], [gelu]) == pytest.approx([gelu.roofline])
    assert not models.knows("aten.gelu", "elementwise")
    assert models.knows("aten.mm", "matmul")


def test_fitting_is_deterministic() -> None:
    table = made_up(200, seed=2)
    first, second = (fit_operators(table, rounds=20, seed=3) for _ in range(2))
    one, other = (dict(models.families["matmul"].trees.arrays("matmul")) for models in (first, second))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_models_are_files(models: OperatorModels, tmp_path: Path) -> None:
    models.save(tmp_path)
    again = OperatorModels.load(tmp_path)
    table = made_up(20, seed=4)
    assert again.seconds(table.names, table.descriptions) == pytest.approx(
        models.seconds(table.names, table.descriptions)
    )


def test_a_broken_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="foretell fit"):
        OperatorModels.load(tmp_path)
    (tmp_path / FILE).write_bytes(save({}, {"version": "99", "families": "{}"}))
    with pytest.raises(ModelError, match="Upgrade"):
        OperatorModels.load(tmp_path)
