"""Operators of generated networks: many in one step, drawn over the whole range of their shapes."""

from __future__ import annotations

from collections import Counter

import pytest
from foretell_bench.generated_operators import KINDS, bundle

from foretell.capture import capture
from foretell.errors import WorkloadError


@pytest.mark.nightly
@pytest.mark.parametrize("of", [kind for kind in KINDS if kind != "recurrent"])
def test_a_bundle_is_captured(of: str) -> None:
    few, many = (len(capture(bundle(of=of, count=n, precision="bf16")).ops) for n in (1, 4))
    assert many > few


def test_convolutions_have_one_to_three_dimensions() -> None:
    graph = capture(bundle(of="convolution", count=24, seed=3))
    dims = Counter(len(op.signature.inputs[0].shape) - 2 for op in graph.ops if op.signature.name == "aten.convolution")
    assert set(dims) == {1, 2, 3}


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(WorkloadError, match="no kind of operator"):
        bundle(of="convolutions")
    with pytest.raises(WorkloadError, match="at least 1"):
        bundle(count=0)
