"""What functions of compiled extensions return that many repositories share, by their names.

StyleGAN's filters and activations, the deformable attention of Deformable DETR and the point operations of PointNet++ are
copied, sources and all, into what is built on them. Their calls are those of the published C++.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_CORNERS: Final = 4  # of a pixel, between which bilinear sampling takes the mean


@dataclass(frozen=True, slots=True)
class Shared:
    """A function that many extensions have: what it returns, its operations, and what it says of how it went."""

    outputs: Callable[..., Any]
    flops: Callable[..., float] | float = 0.0
    says: tuple[int, ...] = ()  # after the tensors


def _like(x: Tensor, *how: Any) -> Tensor:
    return x.new_empty(x.shape)


# StyleGAN


def _filtered(size: int, up: int, down: int, before: int, after: int, taps: int) -> int:
    return (size * up + before + after - taps) // down + 1


def _filter_shape(x: Tensor, taps: Tensor, *how: Any) -> Tensor:
    """Of pictures, resampled and filtered: (n, c, h, w) with a filter's own gain, or (n, h, w, c) without."""
    up_x, up_y, down_x, down_y, x0, x1, y0, y1 = (int(value) for value in how[:8])
    rows = taps.shape[0]
    columns = taps.shape[-1]
    last = len(how) > 8
    height, width = (x.shape[2], x.shape[3]) if last else (x.shape[1], x.shape[2])
    height, width = _filtered(height, up_y, down_y, y0, y1, rows), _filtered(width, up_x, down_x, x0, x1, columns)
    return x.new_empty((x.shape[0], x.shape[1], height, width) if last else (x.shape[0], height, width, x.shape[3]))


def _taps(x: Tensor, taps: Tensor, *how: Any) -> float:
    return 2.0 * _filter_shape(x, taps, *how).numel() * taps.numel()


def _between(x: Tensor, up_taps: Tensor, up: int, *pads: int) -> tuple[int, int]:
    """Rows and columns of what lies between the filter up and the filter down."""
    x0, x1, y0, y1 = pads
    return x.shape[2] * up + y0 + y1 - up_taps.shape[0] + 1, x.shape[3] * up + x0 + x1 - up_taps.shape[-1] + 1


def _activated(x: Tensor, up_taps: Tensor, down_taps: Tensor, bias: Tensor, signs: Tensor, *how: Any) -> Any:
    """Pictures that are filtered up, activated and filtered down, with two bits of each activation for the gradient."""
    up, down, *pads = (int(value) for value in how[:6])
    rows, columns = _between(x, up_taps, up, *pads)
    rows, columns = (rows - down_taps.shape[0]) // down + 1, (columns - down_taps.shape[-1]) // down + 1
    made = x.new_empty(x.shape[0], x.shape[1], rows, columns)
    seen = (rows - 1) * down + down_taps.shape[0], (columns - 1) * down + down_taps.shape[-1]
    kept = _signs(x, *seen) if how[-1] else x.new_empty(0, dtype=torch.uint8)
    return made, kept


def _signs(x: Tensor, rows: int, columns: int) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], rows, -(-columns // 16) * 4), dtype=torch.uint8)


def _activated_taps(x: Tensor, up_taps: Tensor, down_taps: Tensor, bias: Tensor, signs: Tensor, *how: Any) -> float:
    """Of filters of one dimension, which run along both; up, all but every so many of the points are zeros."""
    rows, columns = _between(x, up_taps, *(int(value) for value in (how[0], *how[2:6])))
    made = _activated(x, up_taps, down_taps, bias, signs, *how)[0]
    between = x.shape[0] * x.shape[1] * rows * columns
    up = (2 if up_taps.dim() == 1 else 1) * up_taps.numel() / int(how[0]) ** up_taps.dim()
    down = (2 if down_taps.dim() == 1 else 1) * down_taps.numel()
    return float(2 * (between * up + made.numel() * down))


# Deformable attention: values (n, s, heads, width), points (n, queries, heads, levels, points, 2).


def _attended(value: Tensor, shapes: Any, starts: Any, points: Tensor, *how: Any) -> Tensor:
    return value.new_empty(value.shape[0], points.shape[1], value.shape[2] * value.shape[3])


def _sampled_flops(value: Tensor, shapes: Any, starts: Any, points: Tensor, *how: Any) -> float:
    return 2.0 * (_CORNERS + 1) * points.numel() / 2 * value.shape[3]


def _attended_gradients(value: Tensor, shapes: Any, starts: Any, points: Tensor, weights: Tensor, *how: Any) -> Any:
    return torch.empty_like(value), torch.empty_like(points), torch.empty_like(weights)


# Points: coordinates (n, points, 3), features (n, channels, points), indices (n, queries) or (n, queries, neighbours).


def _chosen(xyz: Tensor, count: int, *how: Any) -> Tensor:
    return xyz.new_empty((xyz.shape[0], int(count)), dtype=torch.int32)


def _gathered(features: Tensor, indices: Tensor, *how: Any) -> Tensor:
    return features.new_empty((features.shape[0], features.shape[1], *indices.shape[1:]))


def _scattered(gradient: Tensor, indices: Tensor, count: int, *how: Any) -> Tensor:
    return gradient.new_empty((gradient.shape[0], gradient.shape[1], int(count)))


def _in_ball(centers: Tensor, xyz: Tensor, radius: float, count: int, *how: Any) -> Tensor:
    return centers.new_empty((centers.shape[0], centers.shape[1], int(count)), dtype=torch.int32)


def _three_nearest(unknown: Tensor, known: Tensor, *how: Any) -> Any:
    shape = (unknown.shape[0], unknown.shape[1], 3)
    return unknown.new_empty(shape), unknown.new_empty(shape, dtype=torch.int32)


def _interpolated(features: Tensor, indices: Tensor, weights: Tensor, *how: Any) -> Tensor:
    return features.new_empty((features.shape[0], features.shape[1], indices.shape[1]))


def _interpolated_gradient(gradient: Tensor, indices: Tensor, weights: Tensor, count: int, *how: Any) -> Tensor:
    return _scattered(gradient, indices, count)


SHARED: Final[Mapping[str, Shared]] = {
    "fused_bias_act": Shared(_like), "bias_act": Shared(_like), "upfirdn2d": Shared(_filter_shape, _taps),
    "filtered_lrelu": Shared(_activated, _activated_taps, (0,)),
    "filtered_lrelu_act_": Shared(lambda x, *how: _signs(x, x.shape[2], x.shape[3])),
    "ms_deform_attn_forward": Shared(_attended, _sampled_flops),
    "ms_deform_attn_backward": Shared(_attended_gradients, lambda *given: 2 * _sampled_flops(*given)),
    "furthest_point_sampling": Shared(_chosen), "gather_points": Shared(_gathered), "gather_points_grad": Shared(_scattered),
    "ball_query": Shared(_in_ball), "group_points": Shared(_gathered), "group_points_grad": Shared(_scattered),
    "three_nn": Shared(_three_nearest), "three_interpolate": Shared(_interpolated),
    "three_interpolate_grad": Shared(_interpolated_gradient),
}  # fmt: skip
