"""A tensor that ranks share: where in memory it is cut.

A tensor cut `ways` ways along one dimension is cut in its storage too: every `period` bytes fall into `ways` equal
parts. Every view of the storage shows that cut in one of its dimensions, whatever it is called and however it is
reshaped or transposed, so views need no rules of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from foretell.graph import ITEM_BYTES, Layout
from foretell.units import Bytes


class CannotShard(Exception):
    """An op cannot work on the parts it is given."""


class Indivisible(CannotShard):
    """It could, if the numbers divided."""

    def __init__(self, size: int, ways: int) -> None:
        super().__init__(f"{size} is not a multiple of {ways}")
        self.size = size


class Split(NamedTuple):
    """A storage of which each rank has one part."""

    period: Bytes
    tokens: bool = False  # along the sequence, not along features
    uneven: bool = False  # the last part may be smaller: vocabularies
    copies: int = 1  # ranks that have the same part: heads of keys and values that are fewer than ranks


class Cut(NamedTuple):
    """A split as one tensor shows it: along `dim`, in each of `outer` equal stretches of it."""

    dim: int
    outer: int = 1
    tokens: bool = False
    uneven: bool = False
    copies: int = 1


class Partial:
    """Every rank has a term of the sum that the tensor is."""


PARTIAL = Partial()
Placement = Split | Partial | None  # of a storage; None: every rank has the whole


def cut_of(layout: Layout, split: Split, ways: int) -> Cut:
    """The dimension of a view in which its storage's split shows."""
    ways //= split.copies
    item = ITEM_BYTES[layout.dtype]
    sliced = None
    for dim, (size, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        step = stride * item
        if size == 1 or step == 0 or step >= split.period:
            continue
        if step * size >= split.period and not (step * size) % split.period:
            outer = step * size // split.period
            if split.uneven or not (size // outer) % ways:
                return Cut(dim, outer, split.tokens, split.uneven, split.copies)
            raise Indivisible(size // outer, ways)
        if not size % ways and (sliced is None or step > sliced[1]):
            sliced = dim, step  # a piece of the dimension that was cut: a part of a fused projection
    if sliced is not None:
        return Cut(sliced[0], 1, split.tokens, split.uneven, split.copies)
    raise CannotShard(f"the cut into {ways} falls between the dimensions {layout.shape}")


def split_of(layout: Layout, cut: Cut, ways: int) -> Split:
    """The split of a fresh storage whose tensor is cut so."""
    ways //= cut.copies
    if cut.dim >= len(layout.shape):
        raise CannotShard(f"there is no side {cut.dim} in {layout.shape}")
    size = layout.shape[cut.dim]
    if size % cut.outer:
        raise CannotShard(f"{size} is not a multiple of {cut.outer}")
    if (size // cut.outer) % ways and not cut.uneven:
        raise Indivisible(size // cut.outer, ways)
    stretch = size // cut.outer * layout.strides[cut.dim] * ITEM_BYTES[layout.dtype]
    return Split(stretch, cut.tokens, cut.uneven, cut.copies)


def part_of(layout: Layout, cut: Cut, ways: int) -> Layout:
    """What one rank has of a tensor; the largest part where they differ."""
    ways //= cut.copies
    size, stride = layout.shape[cut.dim], layout.strides[cut.dim]
    smaller = cut.outer * -(-(size // cut.outer) // ways)
    stretch = size // cut.outer * stride
    shape = (*layout.shape[: cut.dim], smaller, *layout.shape[cut.dim + 1 :])
    strides = tuple(
        s * smaller // max(size, 1) if s >= stretch and s and i != cut.dim else s for i, s in enumerate(layout.strides)
    )
    return Layout(shape, strides, layout.dtype)
