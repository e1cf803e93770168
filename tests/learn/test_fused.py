"""Kernels that a compiler writes: described by what its schedule says, learned apart from eager ops."""

from __future__ import annotations

import pytest

from foretell.capture.compiled.loops import Loop, facts_of
from foretell.cost.features import describe
from foretell.cost.model import load_model
from foretell.graph import Layout, Signature
from foretell.graph.operators import FUSED
from foretell.hardware import device
from foretell.learn.fused import fit_fused, table_of

H200 = device("h200")


def kernel(numbers: int, counts: dict[str, int], kind: str = "pointwise") -> Signature:
    x = Layout.contiguous((numbers,), "float32")
    facts = facts_of([Loop.of([numbers], [], counts)], traffic=8 * numbers, apart=0, of=["aten.relu.default"])
    return Signature(f"{FUSED}.{kind}", (x,), (x,), tuple(facts.items()))


def test_dear_functions_bound_a_kernel_that_moves_little() -> None:
    """An erf is a polynomial of some thirty instructions: as many numbers take longer than memory does."""
    plain, dear = (describe(kernel(1 << 26, {name: 4}), H200, tf32=False) for name in ("add", "erf"))
    assert plain.roofline == pytest.approx(8 * (1 << 26) / H200.bandwidth)
    assert dear.roofline > 1.5 * plain.roofline


def test_the_shipped_model_knows_fused_kernels() -> None:
    operators = load_model().operators
    assert operators is not None
    assert operators.knows(FUSED, "fused")
    before = load_model("h200-2026.11.4").operators
    assert before is not None
    assert not before.knows(FUSED, "fused")
    assert set(operators.families) - set(before.families) == {"fused"}


def test_a_fit_finds_how_far_from_the_roofline_kernels_run() -> None:
    """Three groups of steps, in which every kernel takes one and a half times its roofline."""
    sizes = [100_000 * n for n in range(8, 48)]
    steps = [[(s, 1.5 * describe(s, H200, tf32=False).roofline) for s in (kernel(n + g, {"add": 1}) for n in sizes)]
             for g in range(3)]  # fmt: skip
    fitted = fit_fused(table_of(steps, H200), ["a", "b", "c"])
    wanted = kernel(1 << 21, {"add": 1})
    described = describe(wanted, H200, tf32=False)
    assert fitted.models.seconds([wanted.name], [described])[0] == pytest.approx(1.5 * described.roofline, rel=0.05)
    assert abs(fitted.unseen).max() < 0.1
