"""Products on matrix units: tiles of the result, in waves over a device's units.

Before Hopper each block of a product's kernel makes one tile and ends, so the last wave of blocks takes as long as a full one
however few they are: NVIDIA's guide to matrix multiplication calls it wave quantization. On an A100, whose 108 units take 108 tiles
at a time, a product of 112 takes twice what one of 96 does. Libraries choose among a few tiles, and split the sum among blocks
where tiles are fewer than units. A tile takes its arithmetic at the rate of a unit, at the clock of light work, as units that wait
cost no power; and time to read the more often the smaller it is, to begin and to end, which it spends waiting for cache and
memory, whatever the clock. Since Hopper, kernels stay on their units and share what is left.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from foretell.cost.attained import TileTimes
from foretell.graph import Signature
from foretell.units import Flops, Seconds

# That libraries choose among; what a tile takes beside its arithmetic is in a model's folder.
_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_SPLITS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_LARGEST: Final = 1 / 256 + 1 / 128  # rows and columns to read for each number of the largest tile


def sizes(signature: Signature, flops: Flops) -> tuple[int, int, int, int]:
    """How many products, their rows, their columns, and the steps of the sum."""
    shape = signature.outputs[0].shape if signature.outputs else ()
    *batch, rows, columns = shape if len(shape) > 1 else (1, max(1, math.prod(shape)))
    many = math.prod(batch)
    return many, rows, columns, max(1, round(flops / (2 * max(1, many * rows * columns))))


@lru_cache(maxsize=1 << 14)
def in_waves(many: int, rows: int, columns: int, depth: int, units: int, rate: float, times: TileTimes) -> Seconds:
    """With the tile and the split that take least; `rate` is that of all units, in operations a second."""
    least = math.inf
    for height, width in _TILES:
        tiles, numbers = many * math.ceil(rows / height) * math.ceil(columns / width), height * width
        step = 2 * numbers * units / rate + times.reading * numbers * (1 / height + 1 / width - _LARGEST)
        for split in _SPLITS:
            if split > 1 and (depth < split * times.shortest or tiles * split > units):
                break
            sums = step * depth / split
            ending = min(times.ending * numbers, sums) * (times.split if split > 1 else 1.0)
            least = min(least, math.ceil(tiles * split / units) * (sums + ending))
    return least
