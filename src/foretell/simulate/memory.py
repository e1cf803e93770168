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
    scale: Mapping[str, float] | None = None,
    capacity: Bytes | None = None,
) -> MemoryTrace:
    """Replay a step until the cache has settled.

    `temporaries` is what each op takes and gives back inside itself; `kept_workspace` is (op, bytes) for library
    workspaces taken at that op and held for good; `persistent` is held beside the graph (bucket buffers, say); `scale`
    shrinks the storages of a role (optimizer state sharded over ranks, say).
    """
    storages, end = graph.storages, len(graph.ops)
    sizes = [0 if s.role == "host" else s.nbytes for s in storages]
    if scale:
        sizes = [round(n * scale.get(s.role, 1.0)) for n, s in zip(sizes, storages, strict=True)]
    allocator = CachingAllocator(capacity)
    allocate, release = allocator.allocate, allocator.release
    blocks: list[Block | None] = [None] * len(storages)
    granted = [0] * len(storages)  # what a storage got when it was last allocated, rounded up and all
    born: list[list[int]] = [[] for _ in range(end)]
    freed: list[list[int]] = [[] for _ in range(end)]
    made_in_first_step: list[int] = []
    aside: list[tuple[str, Bytes]] = []

    def take(number: int) -> None:
        block = blocks[number] = allocate(sizes[number])
        granted[number] = block.size if block else 0

    def set_aside(role: str, nbytes: Bytes) -> None:
        block = allocate(nbytes)
        aside.append((role, block.size if block else 0))

    for number, storage in enumerate(storages):
        if not sizes[number]:
            continue
        if storage.born >= 0:
            born[storage.born].append(number)
            freed[min(storage.freed, end - 1)].append(number)  # what a step leaves behind is replaced by the next
        elif storage.role == "optimizer":
            made_in_first_step.append(number)
        else:
            take(number)
    for role, nbytes in (persistent or {}).items():
        set_aside(role, nbytes)
    kept = defaultdict(list)
    for op, nbytes in kept_workspace:
        kept[op].append(nbytes)
    first_update = next((i for i, op in enumerate(graph.ops) if op.phase == "optimizer"), 0)
    taken = temporaries or [0] * end
    stirring = [i for i in range(end) if born[i] or freed[i] or taken[i] or i in kept or i == first_update]
    peak, peak_op, series = 0, -1, list[Bytes]()
    cached: object = None
    for step in range(_STEPS):
        peak, peak_op, series = 0, -1, []
        for position in stirring:
            series += [allocator.allocated] * (position - len(series))  # nothing moved since
            if step == 0:
                for nbytes in kept.get(position, ()):
                    set_aside("workspace", nbytes)
                if position == first_update:
                    for number in made_in_first_step:
                        take(number)
            working = allocate(taken[position]) if taken[position] else None
            for number in born[position]:
                take(number)
            held = allocator.allocated
            series.append(held)
            if held > peak:
                peak, peak_op = held, position
            release(working)
            for number in freed[position]:
                release(blocks[number])
        series += [allocator.allocated] * (end - len(series))
        if cached == (cached := allocator.cached()):
            break  # the next step would take the very blocks that this one took
    return MemoryTrace(
        allocated=tuple(series), peak_op=peak_op, peak_allocated=peak, peak_reserved=allocator.peak_reserved,
        at_peak=_held_at(peak_op, peak, storages, granted, aside),
    )  # fmt: skip


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
