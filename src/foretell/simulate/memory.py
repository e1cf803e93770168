"""Replays the lifetimes of a graph through the caching allocator: what is held, when, and by which module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foretell.graph import Graph, Storage
from foretell.simulate.allocator import Block, CachingAllocator
from foretell.units import Bytes

_STEPS = 3  # at most, until the cache settles: the first makes optimizer state, the next ones reuse what was freed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Bytes held after each op of the settled step, and what the peak is made of."""

    allocated: tuple[Bytes, ...]
    peak_op: int
    peak_allocated: Bytes
    peak_reserved: Bytes
    at_peak: Mapping[str, Bytes]  # role → bytes, `workspace` among them; they sum to peak_allocated


def replay(
    graph: Graph,
    *,
    temporaries: Sequence[Bytes] | None = None,
    kept_workspace: Sequence[tuple[int, Bytes]] = (),
    persistent: Mapping[str, Bytes] | None = None,
    capacity: Bytes | None = None,
) -> MemoryTrace:
    """Replay a step until the cache has settled.

    `temporaries` is what each op takes and gives back inside itself; `kept_workspace` is (op, bytes) for library
    workspaces taken at that op and held for good; `persistent` is held beside the graph (bucket buffers, say).
    """
    storages, end = graph.storages, len(graph.ops)
    allocator = CachingAllocator(capacity)
    allocate, release = allocator.allocate, allocator.release
    blocks: list[Block | None] = [None] * len(storages)
    granted = [0] * len(storages)  # what a storage got when it was last allocated, rounded up and all
    aside: list[tuple[str, Bytes]] = []
    born, freed = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    in_first_step = defaultdict[int, list[int]](list)  # op → optimizer state that it makes
    first_update = next((i for i, op in enumerate(graph.ops) if op.phase == "optimizer"), 0)

    def take(number: int) -> None:
        block = blocks[number] = allocate(storages[number].nbytes)
        granted[number] = block.size if block else 0

    def set_aside(role: str, nbytes: Bytes) -> None:
        block = allocate(nbytes)
        aside.append((role, block.size if block else 0))

    for number, storage in enumerate(storages):
        if not storage.nbytes or storage.role == "host":
            continue
        if storage.born >= 0:
            born[storage.born].append(number)
            freed[min(storage.freed, end - 1)].append(number)  # what a step leaves behind is replaced by the next
        elif storage.role == "optimizer":
            in_first_step[first_update].append(number)
        else:
            take(number)
    for role, nbytes in (persistent or {}).items():
        set_aside(role, nbytes)
    kept = defaultdict[int, list[Bytes]](list)
    for op, nbytes in kept_workspace:
        kept[op].append(nbytes)
    inside = {i: nbytes for i, nbytes in enumerate(temporaries or ()) if nbytes}
    stirring = sorted({*born, *freed, *inside, *kept, *([first_update] if end else [])})
    moments = [(i, inside.get(i, 0), born.get(i, ()), freed.get(i, ())) for i in stirring]
    after: list[Bytes] = []  # of each moment, what is allocated before it releases anything, and then
    left: list[Bytes] = []
    cached: object = None
    for step in range(_STEPS):
        after, left = [], []
        for position, temporary, births, deaths in moments:
            if step == 0:
                for nbytes in kept.get(position, ()):
                    set_aside("workspace", nbytes)
                for number in in_first_step.get(position, ()):
                    take(number)
            working = allocate(temporary) if temporary else None
            for number in births:
                block = blocks[number] = allocate(storages[number].nbytes)
                granted[number] = block.size  # type: ignore[union-attr]  # none is empty
            after.append(allocator.allocated)
            if working is not None:
                release(working)
            for number in deaths:
                release(blocks[number])
            left.append(allocator.allocated)
        if cached == (cached := allocator.cached()):
            break  # the next step would take the very blocks that this one took
    peak = max(after, default=0)
    peak_op = stirring[after.index(peak)] if peak else -1
    return MemoryTrace(
        allocated=_series(stirring, after, left, allocator.allocated, end), peak_op=peak_op, peak_allocated=peak,
        peak_reserved=allocator.peak_reserved, at_peak=_held_at(peak_op, peak, storages, granted, aside),
    )  # fmt: skip


def _series(
    stirring: Sequence[int], after: Sequence[Bytes], left: Sequence[Bytes], settled: Bytes, end: int
) -> tuple[Bytes, ...]:
    """What is allocated after each op; between two that move something it stays as it is."""
    series: list[Bytes] = []
    for position, held, before in zip(stirring, after, (settled, *left), strict=False):
        series += [before] * (position - len(series))
        series.append(held)
    return (*series, *[settled] * (end - len(series)))


def _held_at(
    position: int, allocated: Bytes, storages: Sequence[Storage], granted: Sequence[Bytes], aside: Sequence[tuple[str, Bytes]]
) -> dict[str, Bytes]:  # fmt: skip
    """Bytes by role while an op runs; what no storage accounts for the op takes inside itself."""
    held: dict[str, Bytes] = defaultdict(int)
    for role, nbytes in aside:
        held[role] += nbytes
    for s, nbytes in zip(storages, granted, strict=True):
        lives = s.born <= position <= s.freed if s.born <= s.freed else not s.freed < position < s.born
        if nbytes and (s.born < 0 or lives):
            held[s.role] += nbytes
    held["workspace"] += max(allocated - sum(held.values()), 0)
    return dict(held)
