"""OFT's adapters: the input of a frozen layer is rotated in blocks, by matrices that are trained."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

_TERMS: Final = 5  # of the series that is taken for Cayley's formula


class RotatedLinear(nn.Module):
    """A frozen layer behind rotations of blocks of its input, as peft has them."""

    def __init__(self, base: nn.Module, block: int) -> None:
        super().__init__()
        features: Any = base
        self.base_layer = base
        self.block = min(block, features.in_features)
        angles = self.block * (self.block - 1) // 2
        self.angles = nn.Parameter(torch.zeros(features.in_features // self.block, angles))
        self.switched_off = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.switched_off:
            blocks = x.to(self.angles.dtype).unflatten(-1, (-1, self.block))
            x = torch.einsum("...rk,rkc->...rc", blocks, self._rotations()).flatten(-2).to(x.dtype)
        result: Tensor = self.base_layer(x)
        return result

    def _rotations(self) -> Tensor:
        """(1 + Q)(1 - Q)⁻¹ of skew matrices: 1 + 2Q + 2Q² + …, cut off, which are made anew in each pass."""
        rows, columns = torch.triu_indices(self.block, self.block, 1)
        upper = self.angles.new_zeros(len(self.angles), self.block, self.block)
        upper[:, rows, columns] = self.angles
        skew = upper - upper.transpose(-2, -1)
        power, total = skew, torch.eye(self.block, dtype=skew.dtype, device=skew.device) + 2 * skew
        for term in range(2, _TERMS):
            power = torch.bmm(power, skew)
            total = total + (power if term == _TERMS - 1 else 2 * power)
        return total
