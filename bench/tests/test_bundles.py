"""Bundles: many operators in one step."""

from __future__ import annotations

from collections import Counter

import pytest
from foretell_bench.bundles import _drawn, bundle

from foretell.capture import capture
from foretell.design.pool.shapes import OPERATORS
from foretell.errors import WorkloadError


@pytest.mark.nightly
@pytest.mark.parametrize(
    "of", [name for name in OPERATORS if name not in ("optimizer", "cast", "attention", "recurrent")]
)
def test_a_bundle_is_captured_with_all_its_operators(of: str) -> None:
    few, many = (len(capture(bundle(of=of, count=n, precision="bf16")).ops) for n in (1, 4))
    assert many > few


def test_operators_without_a_gradient_run_beside_those_with_one() -> None:
    """An order has none, and of several numbers of outputs no loss could be stacked."""
    ops = Counter(op.signature.name for op in capture(bundle(of="sorting", count=12, seed=4)).ops)
    assert ops["aten.argmax"] + ops["aten.sort"] + ops["aten.topk"] >= 12
    assert ops["aten.stack"] == 1


def test_the_same_settings_make_the_same_bundle() -> None:
    first, second, other = (capture(bundle(of="convolution", count=6, seed=seed)) for seed in (1, 1, 2))
    assert first.content_hash == second.content_hash != other.content_hash


def test_convolutions_are_of_many_kinds() -> None:
    drawn = [settings for seed in range(12) for settings in _drawn("convolution", 24, seed, "tf32")]
    assert len({s["groups"] for s in drawn}) > 5
    assert {s["dims"] for s in drawn} == {1, 2, 3}
    assert {s["flat"] for s in drawn} == {"no", "first", "rest"}
    assert {s["transposed"] for s in drawn} == {s["channels_last"] for s in drawn} == {False, True}


def test_impossible_bundles_are_refused() -> None:
    with pytest.raises(WorkloadError, match="Did you mean 'convolution'"):
        bundle(of="convolutions")
    with pytest.raises(WorkloadError, match="at least 1"):
        bundle(count=0)
