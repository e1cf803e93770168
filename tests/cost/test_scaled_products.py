"""Products of scaled 8-bit factors: slower than twice as fast, and slower still where blocks are scaled by the program."""

from __future__ import annotations

import pytest

from foretell.cost.model import load_model
from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import device


def seconds(on: str, dtype: str, scaling: str = "tensor") -> float:
    """Of a product of a layer."""
    a, b = Layout.contiguous((8192, 4096), dtype), Layout((4096, 28672), (1, 4096), dtype)
    out = Layout.contiguous((8192, 28672), "bfloat16")
    name = "aten.mm.default" if dtype == "bfloat16" else "aten._scaled_mm.default"
    arguments = (("self", Input(0)), ("mat2", Input(1)), ("scaling", scaling))
    signature = Signature(name, (a, b), (out,), arguments)
    graph = Graph(
        name="a product", ops=(Op(signature, "forward", "", (0, 1), (2,)),),
        tensors=tuple(Tensor(layout, i) for i, layout in enumerate((a, b, out))),
        storages=tuple(Storage(layout.nbytes, "input", -1, 1) for layout in (a, b, out)), training=False,
    )  # fmt: skip
    return load_model().price(graph, device(on)).prices[0].seconds


@pytest.mark.parametrize("on", ["h200", "h100-sxm", "b200"])
def test_eight_bits_gain_less_than_their_peak(on: str) -> None:
    half, tensor, rows, blocks = (
        seconds(on, "bfloat16"), *(seconds(on, "float8_e4m3fn", scaling) for scaling in ("tensor", "rows", "blocks"))
    )  # fmt: skip
    assert 1.4 < half / tensor < 2
    assert rows < tensor < blocks < half


def test_blackwell_gains_less_by_them_than_hopper() -> None:
    """What a kernel takes beside its arithmetic does not shrink as the peak grows."""
    gains = [seconds(on, "bfloat16") / seconds(on, "float8_e4m3fn") for on in ("h200", "b200")]
    assert gains[1] < gains[0]
    assert seconds("b200", "float8_e4m3fn", "mx") == seconds("b200", "float8_e4m3fn", "tensor")
