"""Numbers that describe sizes and layouts: logarithms, alignment, waves of blocks, and how a tensor lies in memory."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from foretell.graph import Layout, Signature
from foretell.hardware import Device

Values = dict[str, float]
_TILES: Final = ((128, 128), (64, 64), (256, 128))


def log(value: float) -> float:
    return math.log2(value) if value > 0 else -20.0


@lru_cache(maxsize=1 << 14)
def density(x: Layout) -> float:
    """1 for row-major, 2 for channels-last, 3 for another dense order, 0 for gaps or broadcasts."""
    sides = [(stride, size) for size, stride in zip(x.shape, x.strides, strict=True) if size > 1]
    run = 1
    for stride, size in sorted(sides):
        if stride != run:
            return 0.0
        run *= size
    if sides == sorted(sides, reverse=True):
        return 1.0
    return 2.0 if len(x.shape) >= 4 and x.strides[1] == 1 else 3.0


@lru_cache(maxsize=1 << 14)
def inner_run(x: Layout) -> int:
    """Elements that lie side by side in memory and in index order."""
    run = 1
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size > 1 and stride != run:
            break
        run *= size
    return run


def alignment(size: int) -> float:
    """How often a size can be halved, up to 32 at a time: what wide loads and tensor cores need."""
    return float(min((size & -size).bit_length() - 1, 5)) if size > 0 else 5.0


def fill(waves: float) -> float:
    """The share of the last wave of blocks that has work; it matters while there are few waves."""
    return waves / math.ceil(waves) if 0 < waves < 64 else 1.0


def tiles(m: float, n: float, batch: float, device: Device) -> Values:
    """Blocks of a product over the device's units, for tiles that libraries choose from."""
    values: Values = {}
    for rows, columns in _TILES:
        blocks = math.ceil(m / rows) * math.ceil(n / columns)
        waves = batch * blocks / device.compute_units
        values[f"waves_{rows}x{columns}"] = log(waves)
        values[f"fill_{rows}x{columns}"] = fill(waves)
        values[f"edge_{rows}x{columns}"] = m * n / (blocks * rows * columns) if blocks else 1.0
    return values


def product_of(m: float, n: float, k: float, batch: float, device: Device) -> Values:
    return {
        "m": log(m), "n": log(n), "k": log(k), "batch": log(batch), "least": log(min(m, n, k)),
        "split_k": log(k) - log(max(m * n * batch, 1)), "m_align": alignment(int(m)), "n_align": alignment(int(n)),
        "k_align": alignment(int(k)), **tiles(m, n, batch, device),
    }  # fmt: skip


def ints(value: object) -> tuple[int, ...]:
    return tuple(int(v) for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def number(s: Signature, name: str, default: float) -> float:
    value = s.argument(name)
    return float(value) if isinstance(value, int | float) else default
