"""A model of PyTorch's caching allocator: what is asked for, what is set aside, and what stays cached.

Facts from c10/cuda/CUDACachingAllocator: requests round up to 512 B; up to 1 MiB they share 2 MiB segments,
below 10 MiB they share 20 MiB segments, larger ones get a segment of their own, rounded to 2 MiB; the smallest free
block that is large enough is taken, and split if enough remains; neighbours merge when freed; when the device is
full, free segments are given back before the allocator gives up. What a stream of communication used is not free when it is
released, but once the host sees that the stream is done with it (`Tensor.record_stream`); a full device waits for that.
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
_ADDRESS_BITS = 48  # a free block's key is its size, then its address, in one integer


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
        self.peak_reserved = 0
        self._capacity = capacity
        self._free: tuple[list[int], list[int]] = ([], [])  # keys of free blocks of large and of small segments, sorted
        self._blocks: dict[int, Block] = {}  # by key
        self._retired: dict[int, Block] = {}  # released, and still used by another stream; by number
        self._numbered = 0
        self._next_address = 0

    def allocate(self, nbytes: Bytes) -> Block:
        """A block for a request of a byte or more."""
        size = (nbytes + _ROUND - 1) & -_ROUND
        small = size <= _SMALL
        pool = self._free[small]
        index = bisect_left(pool, size << _ADDRESS_BITS)
        block = self._blocks.pop(pool.pop(index)) if index < len(pool) else self._new_segment(size, small)
        remaining = block.size - size
        if remaining > (0 if small else _SMALL):
            rest = Block(block.address + size, remaining, block.segment, small, True, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            key = remaining << _ADDRESS_BITS | rest.address
            insort(pool, key)
            self._blocks[key] = rest
        block.free = False
        self.allocated += block.size
        return block

    def release(self, block: Block) -> None:
        self.allocated -= block.size
        self._make_free(block)

    def retire(self, block: Block) -> int:
        """Release a block that another stream may still use; its number, for `reclaim`."""
        self.allocated -= block.size
        self._numbered += 1
        self._retired[self._numbered] = block
        return self._numbered

    def reclaim(self, number: int) -> None:
        """The other stream is done with a retired block. A full device may have waited for it before."""
        block = self._retired.pop(number, None)
        if block is not None:
            self._make_free(block)

    def _make_free(self, block: Block) -> None:
        pool, before, after = self._free[block.small], block.before, block.after
        if after is not None and after.free:
            self._forget(pool, after)
            _join(block, after)
        if before is not None and before.free:
            self._forget(pool, before)
            _join(before, block)
            block = before
        block.free = True
        key = block.size << _ADDRESS_BITS | block.address
        insort(pool, key)
        self._blocks[key] = block

    def cached(self) -> tuple[tuple[int, ...], ...]:
        """What is free, by size and address: two moments that agree in it, and in what is allocated, go on alike."""
        return tuple(map(tuple, self._free))

    def _forget(self, pool: list[int], block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        del pool[bisect_left(pool, key)], self._blocks[key]

    def _new_segment(self, size: Bytes, small: bool) -> Block:
        if small:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT_FROM:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
        if self._capacity is not None and self.reserved + segment > self._capacity:
            for number in tuple(self._retired):
                self.reclaim(number)
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
            whole = [key for key in pool if self._blocks[key].size == self._blocks[key].segment]
            for key in whole:
                self.reserved -= self._blocks.pop(key).size
            pool[:] = [key for key in pool if key in self._blocks]


def _join(first: Block, second: Block) -> None:
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
