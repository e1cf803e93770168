"""Ops as other devices run them."""

from __future__ import annotations

import pytest

from foretell.cost.carry import as_run_on
from foretell.graph import Input, Layout, Signature
from foretell.hardware import device

HEADS = Layout((2, 8, 128, 64), (65536, 8192, 64, 1), "bfloat16")
MASK = Layout((2, 1, 128, 128), (16384, 16384, 128, 1), "bfloat16")


def attention(*, masked: bool = False, backward: bool = False) -> Signature:
    inputs = (HEADS, HEADS, HEADS, *([MASK] if masked else []))
    arguments = tuple((name, Input(i)) for i, name in enumerate(("query", "key", "value", "attn_bias")[: len(inputs)]))
    target = f"aten._scaled_dot_product_cudnn_attention{'_backward' if backward else ''}.default"
    return Signature(target, inputs, (HEADS,), arguments)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("name", "masked", "kind"),
    [("h200", False, "cudnn"), ("b200", True, "cudnn"), ("a100-80g-sxm", False, "flash"), ("l40s", True, "efficient")],
)
def test_attention_is_the_kernel_that_torch_takes_there(name: str, masked: bool, kind: str, backward: bool) -> None:
    asked = attention(masked=masked, backward=backward)
    found = as_run_on(asked, device(name))
    assert found.name == f"aten._scaled_dot_product_{kind}_attention{'_backward' if backward else ''}"
    assert (found.inputs, found.arguments) == (asked.inputs, asked.arguments)


def test_other_ops_are_the_same_everywhere() -> None:
    product = Signature("aten.bmm.default", (HEADS, HEADS), (HEADS,))
    assert as_run_on(product, device("v100-sxm")) is product
