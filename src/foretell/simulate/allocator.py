"""A model of PyTorch's caching allocator: what is asked for, what is set aside, and what stays cached.

Facts from c10/cuda/CUDACachingAllocator: requests round up to 512 B; up to 1 MiB they share 2 MiB segments,
below 10 MiB they share 20 MiB segments, larger ones get a segment of their own, rounded to 2 MiB; the smallest free
block that is large enough is taken, and split if enough remains; neighbours merge when freed; when the device is
full, free segments are given back before the allocator gives up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from foretell.units import MIB, Bytes

_ROUND = 512
_SMALL = 1 * MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT_FROM = 10 * MIB
_SEGMENT_ROUND = 2 * MIB


class OutOfMemory(Exception):
    """The device is full, free segments given back and all."""


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free, between its neighbours."""

    address: int
    size: Bytes
    segment: int
    small: bool
    free: bool = True
    before: Block | None = None
    after: Block | None = None


class CachingAllocator:
    """Follows allocations and releases; `capacity` None is a device that never ends."""

    def __init__(self, capacity: Bytes | None = None) -> None:
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self._capacity = capacity
        # Free blocks of large and of small segments, sorted by size, then address.
        self._free: tuple[list[tuple[int, int, Block]], list[tuple[int, int, Block]]] = ([], [])
        self._next_address = 0

    def allocate(self, nbytes: Bytes) -> Block | None:
        """A block for a request, or None for a request of nothing."""
        if nbytes <= 0:
            return None
        size = -(-nbytes // _ROUND) * _ROUND
        small = size <= _SMALL
        pool = self._free[small]
        index = bisect_left(pool, (size, -1))
        block = pool.pop(index)[2] if index < len(pool) else self._new_segment(size, small)
        remaining = block.size - size
        if remaining >= _ROUND if small else remaining > _SMALL:
            rest = Block(block.address + size, remaining, block.segment, small, True, block, block.after)
            if block.after:
                block.after.before = rest
            block.after, block.size = rest, size
            insort(self._free[small], (remaining, rest.address, rest))  # addresses differ: blocks are not compared
        block.free = False
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def release(self, block: Block | None) -> None:
        if block is None:
            return
        self.allocated -= block.size
        block.free = True
        pool = self._free[block.small]
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                del pool[bisect_left(pool, (neighbour.size, neighbour.address))]
                block = _merged(block, neighbour)
        insort(pool, (block.size, block.address, block))

    def cached(self) -> tuple[list[tuple[Bytes, int]], ...]:
        """What is free, by size and address: two moments that agree in it, and in what is held, go on alike."""
        return tuple([(size, address) for size, address, _ in pool] for pool in self._free)

    def _new_segment(self, size: Bytes, small: bool) -> Block:
        if small:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT_FROM:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
        if self._capacity is not None and self.reserved + segment > self._capacity:
            self._give_back_free_segments()
            if self.reserved + segment > self._capacity:
                raise OutOfMemory
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = Block(self._next_address, segment, segment, small)
        self._next_address += segment
        return block

    def _give_back_free_segments(self) -> None:
        for pool in self._free:
            whole = [entry for entry in pool if entry[2].size == entry[2].segment]
            self.reserved -= sum(entry[0] for entry in whole)
            pool[:] = [entry for entry in pool if entry[2].size != entry[2].segment]


def _merged(block: Block, neighbour: Block) -> Block:
    first, second = (neighbour, block) if neighbour.address < block.address else (block, neighbour)
    first.size += second.size
    first.after = second.after
    if second.after:
        second.after.before = first
    return first
