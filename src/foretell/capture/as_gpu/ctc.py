"""The loss of connectionist temporal classification by lengths that the host knows: torch fills in a tensor of them, which a
fake one has no room for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

aten = torch.ops.aten
_MEAN, _SUM = 1, 2  # as torch numbers them


def _by_lists(
    scores: Tensor,
    targets: Tensor,
    places: Sequence[int],
    spelled: Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    losses: Tensor = aten._ctc_loss(scores, targets, places, spelled, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == math.inf, losses.new_zeros(()), losses)
    if reduction == _MEAN:
        return (losses / torch.tensor(spelled, dtype=losses.dtype).clamp_min(1)).mean()
    return losses.sum() if reduction == _SUM else losses


COMPOSITES: Final = {"ctc_loss.IntList": _by_lists}
