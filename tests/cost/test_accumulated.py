"""Grouped products that add their sums to fp32 gradients."""

from __future__ import annotations

import pytest

from foretell.cost.accumulated import as_measured, further_bytes
from foretell.cost.model import load_model
from foretell.graph import Graph, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import device

EXPERTS, WIDE, WIDTH = 32, 4096, 7168


def gradient(rows: int, dtype: str) -> Signature:
    a, b = Layout((WIDE, rows), (1, WIDE), "bfloat16"), Layout.contiguous((rows, WIDTH), "bfloat16")
    ends = Layout.contiguous((EXPERTS,), "int32")
    return Signature("aten._grouped_mm.default", (a, b, ends), (Layout.contiguous((EXPERTS, WIDE, WIDTH), dtype),))


def seconds(signature: Signature, name: str) -> float:
    layouts = (*signature.inputs, *signature.outputs)
    tensors = tuple(Tensor(x, i) for i, x in enumerate(layouts))
    storages = tuple(Storage(x.nbytes, "temporary", -1 if i < 3 else 0, 1) for i, x in enumerate(layouts))
    op = Op(signature, "backward", "", (0, 1, 2), (3,))
    return float(
        load_model().price(Graph(name="one", ops=(op,), tensors=tensors, storages=storages), device(name)).seconds[0]
    )


def test_sums_in_fp32_are_read_and_written() -> None:
    own, wide = gradient(4096, "bfloat16"), gradient(4096, "float32")
    assert further_bytes(own) == 0
    assert further_bytes(wide) == EXPERTS * WIDE * WIDTH * (4 + 4 - 2)
    assert as_measured(wide) == own


@pytest.mark.parametrize("name", ["h200", "h100-sxm", "b200"])
def test_what_is_added_is_hidden_where_there_is_much_to_multiply(name: str) -> None:
    few, many = 2048, 262144
    added = [
        seconds(gradient(rows, "float32"), name) - seconds(gradient(rows, "bfloat16"), name) for rows in (few, many)
    ]
    at_peak = further_bytes(gradient(few, "float32")) / device(name).bandwidth
    assert 0 < added[1] < 0.1 * at_peak < 0.4 * at_peak < added[0] <= at_peak
