"""Replays the lifetimes of a graph through the caching allocator: what is held, when, and by which module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foretell.graph import Graph
from foretell.simulate.allocator import CachingAllocator
from foretell.units import Bytes

_STEPS = 3  # the cache settles: the first step makes optimizer state, the next ones reuse what was freed


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
    born, freed = _events(graph)
    kept = defaultdict(list)
    for op, nbytes in kept_workspace:
        kept[op].append(nbytes)
    scale = scale or {}
    sizes = [round(s.nbytes * scale.get(s.role, 1.0)) for s in graph.storages]
    allocator = CachingAllocator(capacity)
    blocks: dict[int, object] = {}
    held: dict[str, int] = defaultdict(int)
    roles = [s.role for s in graph.storages]

    def take(storage: int) -> None:
        if roles[storage] == "host" or storage in blocks:
            return
        before = allocator.allocated
        blocks[storage] = allocator.allocate(sizes[storage])
        held[roles[storage]] += allocator.allocated - before

    def drop(storage: int) -> None:
        if storage in blocks:
            before = allocator.allocated
            allocator.release(blocks.pop(storage))  # type: ignore[arg-type]
            held[roles[storage]] -= before - allocator.allocated

    def take_aside(role: str, nbytes: Bytes) -> object:
        before = allocator.allocated
        block = allocator.allocate(nbytes)
        held[role] += allocator.allocated - before
        return block

    for storage, s in enumerate(graph.storages):
        if s.born < 0 and s.role != "optimizer":
            take(storage)
    for role, nbytes in (persistent or {}).items():
        take_aside(role, nbytes)
    made_in_first_step = [i for i, s in enumerate(graph.storages) if s.born < 0 and s.role == "optimizer"]
    first_update = next((i for i, op in enumerate(graph.ops) if op.phase == "optimizer"), 0)
    peak, peak_op, at_peak = 0, -1, dict(held)
    series: list[Bytes] = []
    for step in range(_STEPS):
        settled = step == _STEPS - 1
        series = []
        for position in range(len(graph.ops)):
            if step == 0:
                for nbytes in kept[position]:
                    take_aside("workspace", nbytes)
                if position == first_update:
                    for storage in made_in_first_step:
                        take(storage)
            block = None
            if temporaries is not None and temporaries[position]:
                block = take_aside("workspace", temporaries[position])
            for storage in born[position]:
                take(storage)
            series.append(allocator.allocated)
            if settled and allocator.allocated > peak:
                peak, peak_op, at_peak = allocator.allocated, position, dict(held)
            if block is not None:
                before = allocator.allocated
                allocator.release(block)  # type: ignore[arg-type]
                held["workspace"] -= before - allocator.allocated
            for storage in freed[position]:
                drop(storage)
    return MemoryTrace(
        allocated=tuple(series),
        peak_op=peak_op,
        peak_allocated=peak,
        peak_reserved=allocator.peak_reserved,
        at_peak=at_peak,
    )


def _events(graph: Graph) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    born: dict[int, list[int]] = defaultdict(list)
    freed: dict[int, list[int]] = defaultdict(list)
    end = len(graph.ops)
    for number, s in enumerate(graph.storages):
        if s.born >= 0:
            born[s.born].append(number)
            freed[min(s.freed, end - 1)].append(number)  # what a step leaves behind is replaced by the next
    return born, freed
