"""Which kernel a device runs, for time and for memory."""

from __future__ import annotations

import pytest

from foretell.cost.attention_kernels import as_run_on
from foretell.cost.workspace import temporary_bytes
from foretell.graph import Graph, Input, Layout, Op, Signature
from foretell.hardware import device
from foretell.units import MIB

HEADS = Layout.contiguous((2, 8, 128, 64), "bfloat16")
NARROW = Layout.contiguous((2, 8, 128, 32), "bfloat16")
LONGER = Layout.contiguous((2, 8, 256, 64), "bfloat16")
MASK = Layout.contiguous((2, 1, 128, 128), "bfloat16")


def attention(
    *, q: Layout = HEADS, k: Layout = HEADS, v: Layout = HEADS, mask: Layout | None = None, kind: str = "cudnn",
    causal: bool = False, backward: bool = False,
) -> Signature:  # fmt: skip
    inputs = (q, k, v, *([] if mask is None else [mask]))
    names = ("query", "key", "value", "attn_bias")[: len(inputs)]
    arguments = (*((name, Input(i)) for i, name in enumerate(names)), ("is_causal", causal))
    target = f"aten._scaled_dot_product_{kind}_attention{'_backward' if backward else ''}.default"
    return Signature(target, inputs, (q,), arguments)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("name", "asked", "kind"),
    [
        ("h200", {}, "cudnn"), ("b200", {"mask": MASK}, "cudnn"), ("b300", {}, "cudnn"), ("rtx-5090", {}, "flash"),
        ("a100-80g-sxm", {}, "flash"), ("l40s", {"mask": MASK}, "efficient"), ("mi300x", {}, "flash"),
        ("a100-80g-sxm", {"v": NARROW}, "efficient"), ("a100-80g-sxm", {"k": LONGER, "v": LONGER}, "flash"),
        ("a100-80g-sxm", {"k": LONGER, "v": LONGER, "causal": True}, "efficient"), ("h200", {"kind": "flash"}, "flash"),
        ("t4", {}, "efficient"), ("v100-sxm", {"kind": "flash"}, "efficient"), ("h200", {"kind": "efficient"}, "efficient"),
    ],
)  # fmt: skip
def test_attention_is_the_kernel_that_torch_takes_there(name: str, asked: dict, kind: str, backward: bool) -> None:
    signature = attention(**asked, backward=backward)
    found = as_run_on(signature, device(name))
    assert found.target == f"aten._scaled_dot_product_{kind}_attention{'_backward' if backward else ''}.default"
    assert (found.inputs, found.arguments) == (signature.inputs, signature.arguments)


def test_other_ops_are_the_same_on_every_device() -> None:
    product = Signature("aten.bmm.default", (HEADS, HEADS), (HEADS,))
    assert as_run_on(product, device("v100-sxm")) is product


def test_memory_is_that_of_the_kernel_that_runs() -> None:
    """FlashAttention's backward on an A100 takes two dense copies more than cuDNN's on an H200."""
    q = Layout.contiguous((16, 32, 2048, 128), "bfloat16")
    op = Op(attention(q=q, k=q, v=q, backward=True), "backward", "", (), ())
    graph = Graph(name="one", ops=(op,), tensors=(), storages=())
    hopper, ampere = (temporary_bytes(graph, device(name))[0] for name in ("h200", "a100-80g-sxm"))
    assert round(hopper / MIB) == 516
    assert round(ampere / MIB) == 1028
