"""Errors to expect of ops: learned from ops in steps that no model had seen."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.cost.features import describe
from foretell.cost.operator_errors import UNKNOWN_FAMILY, OperatorErrors
from foretell.graph import Input, Layout, Signature
from foretell.hardware import device
from foretell.learn.dataset import OpTable
from foretell.learn.uncertainty.operators import fit_operator_errors, unseen_operator_errors

pytest.importorskip("lightgbm")
H200 = device("h200")


def _product(size: int) -> Signature:
    x = Layout.contiguous((size, size), "float32")
    return Signature("aten.mm.default", (x, x), (x,), (("self", Input(0)), ("mat2", Input(1))))


def _table(count: int = 400) -> tuple[OpTable, np.ndarray]:
    """Large products are predicted to a few percent, small ones by half off."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(16, 2048, count).tolist()
    signatures = [_product(n) for n in sizes]
    ops = OpTable(
        signatures=signatures,
        descriptions=[describe(s, H200, tf32=False) for s in signatures],
        seconds=np.full(count, 1e-4),
        count=np.ones(count, np.int64),
        step=np.arange(count) % 8,
        share=np.full(count, 0.01),
    )
    return ops, draw.normal(0, 1, count) * np.where(np.array(sizes) < 512, 0.5, 0.02)


def test_ops_that_were_far_off_are_uncertain() -> None:
    ops, errors = _table()
    asked = [_product(n) for n in (100, 1500)]
    found = fit_operator_errors(ops, errors).of([s.name for s in asked], [describe(s, H200, tf32=False) for s in asked])
    assert 0.3 < found[0] < 0.9
    assert found[1] < found[0] / 4


def test_a_family_without_errors_is_as_uncertain_as_the_worst() -> None:
    s = _product(100)
    assert OperatorErrors(families={}).of([s.name], [describe(s, H200, tf32=False)]) == pytest.approx([UNKNOWN_FAMILY])


def test_errors_of_a_fold_say_nothing_of_itself() -> None:
    ops, errors = _table()
    strange = np.where(ops.step == 0, 2.0, errors)
    folds = {step: step for step in range(8)}
    plain, changed = unseen_operator_errors(ops, errors, folds), unseen_operator_errors(ops, strange, folds)
    own = ops.step == 0
    assert changed[own] == pytest.approx(plain[own])
    assert changed[~own].mean() > plain[~own].mean()


def test_they_are_read_as_they_were_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    ops, errors = _table()
    made = fit_operator_errors(ops, errors)
    made.save(tmp_path / "spreads.safetensors")
    read = OperatorErrors.load(tmp_path / "spreads.safetensors")
    assert read.of(ops.names, ops.descriptions) == pytest.approx(made.of(ops.names, ops.descriptions))
