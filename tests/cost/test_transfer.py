"""Ops as other devices run them."""

from __future__ import annotations

from foretell.cost.features import describe
from foretell.cost.model import DEFAULT, load_model
from foretell.cost.transfer import transferred
from foretell.graph import Layout, Signature
from foretell.hardware import device


def test_an_accelerator_comes_as_near_to_its_peaks_as_our_device() -> None:
    """Its units are no GPU's: two dozen of them are not a sixth of an H200."""
    model, own, gaudi = load_model(DEFAULT), device("h200"), device("gaudi2")
    assert model.operators is not None
    half = [Layout((4096, 4096), (4096, 1), "bfloat16")] * 3
    product = Signature("aten.mm.default", tuple(half[:2]), (half[2],))
    [there] = transferred([product], own, model.operators, gaudi, tf32=False)
    [here] = model.operators.seconds([product.name], [describe(product, own, tf32=False)])
    slower = describe(product, gaudi, tf32=False).roofline / describe(product, own, tf32=False).roofline
    assert slower * here <= there.roofline < 1.4 * slower * here
