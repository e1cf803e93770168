"""Ops as other devices run them."""

from __future__ import annotations

import pytest

from foretell.cost.features import describe
from foretell.cost.model import DEFAULT, load_model
from foretell.cost.transfer import as_run_on, carried
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


def test_an_accelerator_comes_as_near_to_its_peaks_as_our_device() -> None:
    """Its units are no GPU's: two dozen of them are not a sixth of an H200."""
    model, own, gaudi = load_model(DEFAULT), device("h200"), device("gaudi2")
    assert model.operators is not None
    half = [Layout((4096, 4096), (4096, 1), "bfloat16")] * 3
    product = Signature("aten.mm.default", tuple(half[:2]), (half[2],))
    [there] = carried([product], own, model.operators, gaudi, tf32=False)
    [here] = model.operators.seconds([product.name], [describe(product, own, tf32=False)])
    slower = describe(product, gaudi, tf32=False).roofline / describe(product, own, tf32=False).roofline
    assert slower * here <= there.roofline < 1.4 * slower * here
