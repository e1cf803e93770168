"""Products that the compiler pads to whole loads, and those that it leaves."""

from __future__ import annotations

import pytest
import torch

from foretell.capture.compiled.padding import pays


def product(m: int, k: int, n: int, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    """As a linear layer calls it: the second factor is a weight's transpose."""
    one, weight = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, k), (n, k)))
    return one, weight.t()


def test_a_vocabulary_whose_rows_are_not_aligned_is_padded() -> None:
    assert pays(*product(12288, 1024, 50257), free=(True, False))
    assert not pays(*product(12288, 1024, 50256), free=(True, False))


def test_odd_numbers_of_tokens_alone_are_left() -> None:
    """Their rows begin at whole loads: padding would only copy."""
    assert not pays(*product(591, 768, 3072), free=(True, True))


def test_a_small_product_is_not_worth_a_copy() -> None:
    assert not pays(*product(35, 23, 4))


@pytest.mark.parametrize(("free", "padded"), [((True, True), True), ((False, False), False)])
def test_what_is_copied_first_has_to_be_made_up_for(free: tuple[bool, bool], padded: bool) -> None:
    assert pays(*product(463608, 217, 217, torch.float32), free=free) is padded
