"""Sampling of an image at given places, which cuDNN does where it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

aten = torch.ops.aten
_BILINEAR, _ZEROS = 0, 0  # as torch numbers them


def _grid_sampler(input: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
    if input.dim() == 5:
        out: Tensor = aten.grid_sampler_3d(input, grid, interpolation, padding, align_corners)
        return out
    accepted = all(t.numel() and t.dtype != torch.bfloat16 for t in (input, grid)) and input.shape[1] <= 1024
    if accepted and interpolation == _BILINEAR and padding == _ZEROS and align_corners:
        out = aten.cudnn_grid_sampler(input, grid)
    else:
        out = aten.grid_sampler_2d(input, grid, interpolation, padding, align_corners)
    return out


def _sampled(input: Tensor, grid: Tensor) -> Tensor:
    return input.new_empty(input.shape[0], input.shape[1], *grid.shape[1:3])


def _sampled_backward(input: Tensor, grid: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), torch.empty_like(grid)


COMPOSITES: Final[dict[str, Callable[..., Any]]] = {"grid_sampler": _grid_sampler}
SHAPES: Final[dict[str, Callable[..., Any]]] = {
    "cudnn_grid_sampler": _sampled,
    "cudnn_grid_sampler_backward": _sampled_backward,
}
