"""The allocator's rules, one by one, and the laws that hold for any sequence."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.simulate.allocator import CachingAllocator, OutOfMemory
from foretell.units import MIB


def test_requests_round_to_512_bytes_and_share_a_small_segment() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1)
    allocator.allocate(513)
    assert (allocator.allocated, allocator.reserved) == (512 + 1024, 2 * MIB)


def test_medium_requests_share_a_20_mib_segment() -> None:
    allocator = CachingAllocator()
    allocator.allocate(3 * MIB)
    allocator.allocate(9 * MIB)
    assert (allocator.allocated, allocator.reserved) == (12 * MIB, 20 * MIB)


def test_large_requests_get_a_segment_of_their_own() -> None:
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB + 1)
    assert allocator.reserved == 12 * MIB
    assert allocator.allocated == 12 * MIB  # the rest is too small to split off


def test_freed_memory_is_kept_and_used_again() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(64 * MIB))
    assert (allocator.allocated, allocator.reserved) == (0, 64 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 64 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(100 * MIB), allocator.allocate(50 * MIB)
    allocator.release(large)
    allocator.release(small)
    allocator.allocate(48 * MIB)
    allocator.allocate(100 * MIB)  # the large one is still whole
    assert allocator.reserved == 150 * MIB


def test_neighbours_merge() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for part in parts:
        allocator.release(part)
    allocator.allocate(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_full_device_gives_back_its_cache_before_it_gives_up() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(30 * MIB)


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans(), st.integers(0, 50)), max_size=120))
def test_books_balance_whatever_happens(actions: list[tuple[int, bool, int]]) -> None:
    allocator = CachingAllocator()
    held = []
    for size, frees, which in actions:
        if frees and held:
            allocator.release(held.pop(which % len(held)))
        else:
            held.append(allocator.allocate(size))
        assert allocator.allocated == sum(block.size for block in held)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
        assert allocator.reserved % (2 * MIB) == 0
    for block in held:
        allocator.release(block)
    assert allocator.allocated == 0
    spans = sorted((block.address, block.address + block.size) for block in allocator._blocks.values())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert sum(end - start for start, end in spans) == allocator.reserved


@given(st.lists(st.integers(1, 4 * MIB), min_size=1, max_size=40))
def test_a_repeated_pattern_needs_no_more_memory_the_second_time(sizes: list[int]) -> None:
    allocator = CachingAllocator()
    for _ in range(2):
        blocks = [allocator.allocate(size) for size in sizes]
        assert allocator.allocated >= sum(sizes)
        for block in blocks:
            allocator.release(block)
        first = allocator.reserved
    assert allocator.reserved == first


def test_what_another_stream_still_uses_is_not_given_to_the_next() -> None:
    allocator = CachingAllocator()
    number = allocator.retire(allocator.allocate(64 * MIB))
    assert allocator.allocated == 0
    allocator.allocate(64 * MIB)
    assert allocator.reserved == 128 * MIB
    allocator.reclaim(number)
    allocator.allocate(64 * MIB)
    assert (allocator.allocated, allocator.reserved) == (128 * MIB, 128 * MIB)


def test_a_full_device_waits_for_other_streams() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    number = allocator.retire(allocator.allocate(64 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    allocator.reclaim(number)  # it was, when the device was full
    assert allocator.allocated == 80 * MIB
