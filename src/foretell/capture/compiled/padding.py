"""Which matrix products the compiler pads: it times both forms on the device, where here both are estimated.

On the software that was measured every product with a side that is not aligned is timed, small ones too. Rows that begin at whole
loads of 16 B are read by the quickest kernels: where all do, padding only copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch._inductor.fx_passes import pad_mm

_LOAD: Final = 16  # bytes
_WORTH: Final = 1.1  # times quicker than without, or the compiler leaves it
_BANDWIDTH: Final = 4.0e12  # of a Hopper board's memory, as copies attain it
_KERNEL: Final = 2.5e-6  # seconds that one takes at least
# What products attain a second, and which part of that where rows begin at a half, a quarter or an eighth of a load.
_HALF: Final = (620e12, (1.0, 0.6, 0.45, 0.2))
_TF32: Final = (350e12, (1.0, 0.7, 0.5))
_FP32: Final = (48e12, (1.0, 0.85, 0.85))


def decide_by_estimates() -> None:
    """In this process, from now on: the key of a product in the compiler's cache is what that would answer."""
    vars(pad_mm)["check_device"] = lambda a, b: True
    vars(pad_mm)["is_mm_compute_bound"] = lambda *sides: True
    vars(pad_mm)["should_pad_bench_key"] = _is_padded
    vars(pad_mm)["get_cached_should_pad"] = lambda decided: decided


def _is_padded(match: Any, one: torch.Tensor, other: torch.Tensor, *more: Any, **how: Any) -> bool:
    free = [pad_mm.should_exclude_padding_time(match, name) for name in ("mat1", "mat2")]
    return pays(one, other, free=(free[0], free[1]))


def pays(one: torch.Tensor, other: torch.Tensor, *, free: tuple[bool, bool] = (False, False)) -> bool:
    """Whether padding to whole loads makes a product quicker; `free`: what makes a factor can make it padded."""
    sides = (*one.shape[-2:], other.shape[-1])
    wide = _LOAD // one.element_size()
    whole = tuple(-(-side // wide) * wide for side in sides)
    copied = [
        factor.numel() * factor.element_size()
        for factor, at, is_free in zip((one, other), (0, 1), free, strict=True)
        if not is_free and sides[at : at + 2] != whole[at : at + 2]
    ]
    batch = math.prod(one.shape[:-2])
    part = min(math.gcd(row, wide) for row in _rows(one, other))
    padded = _seconds(batch, whole, one.dtype, wide, wide) + sum(_KERNEL + 2 * size / _BANDWIDTH for size in copied)
    return _seconds(batch, sides, one.dtype, part, wide) > _WORTH * padded


def _rows(one: torch.Tensor, other: torch.Tensor) -> Iterator[int]:
    """Numbers from one row to the next, of both factors and of what they make."""
    for factor in (one, other):
        strides = factor.stride()[-2:]
        yield max(strides) if 1 in strides else 1
    yield int(other.shape[-1])


def _seconds(batch: int, sides: tuple[int, ...], dtype: torch.dtype, part: int, wide: int) -> float:
    m, k, n = sides
    item = torch.finfo(dtype).bits // 8
    single = _TF32 if torch.backends.cuda.matmul.allow_tf32 else _FP32
    rate, parts = single if dtype is torch.float32 else _HALF
    attained = rate * parts[min(wide // part, 1 << (len(parts) - 1)).bit_length() - 1]
    moved = item * batch * (m * k + k * n + m * n)
    return _KERNEL + max(2 * batch * m * k * n / attained, moved / _BANDWIDTH)
