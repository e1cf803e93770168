"""Replays the lifetimes of a graph through the caching allocator: what is allocated, when, and by which module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from foretell.graph import Graph, Storage
from foretell.simulate.allocator import Block, CachingAllocator
from foretell.units import Bytes

_STEPS = 3  # at most, until the cache settles: the first makes optimizer state, the next ones reuse what was freed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Bytes allocated after each op of the settled step, and what the peak is made of."""

    allocated: tuple[Bytes, ...]
    peak_op: int
    peak_allocated: Bytes
    peak_reserved: Bytes
    at_peak: Mapping[str, Bytes]  # role → bytes, `workspace` among them; they sum to peak_allocated


class Retained(NamedTuple):
    """What a step released while another stream might still use it: it is not allocated, and not free before `until`."""

    nbytes: Bytes
    released: int  # after this op
    until: int  # before this one


def replay(
    graph: Graph,
    *,
    temporaries: Sequence[Bytes] | None = None,
    kept_workspace: Sequence[tuple[int, Bytes]] = (),
    persistent: Mapping[str, Bytes] | None = None,
    retained: Sequence[Retained] = (),
    capacity: Bytes | None = None,
) -> MemoryTrace:
    """Replay a step until the cache has settled.

    `temporaries` is what each op takes and gives back inside itself; `kept_workspace` is (op, bytes) for library
    workspaces taken at that op and kept for good; `persistent` is allocated beside the graph (bucket buffers, say); `retained` is
    what other streams keep from being used again.
    """
    run = Replay(graph, temporaries or (), kept_workspace, persistent or {}, retained, capacity)
    run.settle()
    peak = max(run.before, default=0)
    peak_op = run.moments[run.before.index(peak)].op if peak else -1
    return MemoryTrace(
        allocated=run.series(len(graph.ops)),
        peak_op=peak_op,
        peak_allocated=peak,
        peak_reserved=run.allocator.peak_reserved,
        at_peak=run.by_role(peak_op, peak),
    )


def allocated_at_least(graph: Graph, op: int, role: str | None = None) -> Bytes:
    """What storages alone take while an op runs, or those of a role, wherever the allocator finds room for them."""
    return sum(s.nbytes for s in graph.storages if s.role != "host" and role in (None, s.role) and _lives(s, op))


def peak_op(graph: Graph, temporaries: Sequence[Bytes]) -> int:
    """The op at which a settled step has most allocated, without an allocator's rounding; -1 where nothing is."""
    if not graph.ops:
        return -1
    change = [0] * (len(graph.ops) + 1)
    for s in graph.storages:
        if s.born < 0 or s.role == "host":
            continue
        change[s.born] += s.nbytes
        change[min(s.freed, len(graph.ops) - 1) + 1] -= s.nbytes
        if s.freed < s.born:  # it lives into the next step
            change[0] += s.nbytes
    allocated = [now + inside for now, inside in zip(accumulate(change), temporaries, strict=False)]
    return allocated.index(max(allocated))


def _lives(storage: Storage, op: int) -> bool:
    """While an op of a settled step runs; what is born late and freed early lives on into the next step."""
    born, freed = storage.born, storage.freed
    return born < 0 or (born <= op <= freed if born <= freed else not freed < op < born)


class _Moment(NamedTuple):
    """An op at which something is allocated or released."""

    op: int
    temporary: Bytes
    born: Sequence[int]
    freed: Sequence[int]


class Replay:
    """An allocator that follows the allocations and releases of a step, op by op."""

    def __init__(
        self,
        graph: Graph,
        temporaries: Sequence[Bytes],
        kept_workspace: Sequence[tuple[int, Bytes]],
        persistent: Mapping[str, Bytes],
        retained: Sequence[Retained],
        capacity: Bytes | None,
    ) -> None:
        self.storages, self.allocator = graph.storages, CachingAllocator(capacity)
        self.sizes = [s.nbytes for s in graph.storages]
        self.blocks: list[Block | None] = [None] * len(self.storages)
        self.granted = [0] * len(self.storages)  # what a storage got when it was last allocated, rounded up and all
        self.aside: list[tuple[str, Bytes]] = []
        self.before: list[Bytes] = []  # of each moment, what is allocated before it releases anything
        self.left: list[Bytes] = []  # and then
        end = len(graph.ops)
        born, freed = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        self.update = next((i for i, op in enumerate(graph.ops) if op.phase == "optimizer"), 0)
        self.optimizer_state: list[int] = []  # made by the first update
        for number, s in enumerate(self.storages):
            if not s.nbytes or s.role == "host":
                continue
            if s.born >= 0:
                born[s.born].append(number)
                freed[min(s.freed, end - 1)].append(number)  # what a step leaves behind is replaced by the next
            elif s.role == "optimizer":
                self.optimizer_state.append(number)
            else:
                self.take(number)
        for role, nbytes in persistent.items():
            self.set_aside(role, nbytes)
        self.kept = defaultdict[int, list[Bytes]](list)
        for op, nbytes in kept_workspace:
            self.kept[op].append(nbytes)
        inside = {i: nbytes for i, nbytes in enumerate(temporaries) if nbytes}
        self.retiring = defaultdict[int, list[Retained]](list)
        for each in retained:
            self.retiring[each.released].append(each)
        self.retired: list[tuple[int, int]] = []  # the op before which each is free again, and its number
        waits = {each.until for each in retained if each.until < end}
        moving = sorted({*born, *freed, *inside, *self.kept, *self.retiring, *waits, *([self.update] if end else [])})
        self.moments = [_Moment(i, inside.get(i, 0), born.get(i, ()), freed.get(i, ())) for i in moving]

    def settle(self) -> None:
        """Run steps until the cache stays as it is."""
        cached: object = None
        for step in range(_STEPS):
            self.step(first=step == 0)
            if cached == (cached := self.allocator.cached()):
                break  # the next step would take the very blocks that this one took

    def take(self, number: int) -> None:
        block = self.blocks[number] = self.allocator.allocate(self.sizes[number])
        self.granted[number] = block.size

    def set_aside(self, role: str, nbytes: Bytes) -> None:
        if nbytes > 0:
            self.aside.append((role, self.allocator.allocate(nbytes).size))

    def step(self, *, first: bool) -> None:
        allocator, blocks, granted, sizes, take = self.allocator, self.blocks, self.granted, self.sizes, self.take
        allocate, release = allocator.allocate, allocator.release
        self.before, self.left = before, left = [], []
        for position, temporary, born, freed in self.moments:
            self.reclaim(position)
            if first:
                for nbytes in self.kept.get(position, ()):
                    self.set_aside("workspace", nbytes)
                for number in self.optimizer_state if position == self.update else ():
                    take(number)
            working = allocate(temporary) if temporary else None
            for number in born:
                block = blocks[number] = allocate(sizes[number])
                granted[number] = block.size
            before.append(allocator.allocated)
            if working is not None:
                release(working)
            for number in freed:
                if (ending := blocks[number]) is not None:  # what lives into the next step is not there in the first
                    release(ending)
            for each in self.retiring.get(position, ()):
                self.retired.append((each.until, allocator.retire(allocate(each.nbytes))))
            left.append(allocator.allocated)
        self.reclaim(None)

    def reclaim(self, position: int | None) -> None:
        """What other streams are done with before an op; at the end of a step, which the host waits for, all of it."""
        if not self.retired:
            return
        waiting = []
        for until, number in self.retired:
            if position is None or until <= position:
                self.allocator.reclaim(number)
            else:
                waiting.append((until, number))
        self.retired = waiting

    def series(self, end: int) -> tuple[Bytes, ...]:
        """What is allocated after each op; between two that move something it stays as it is."""
        series: list[Bytes] = []
        now = settled = self.allocator.allocated
        for moment, before, left in zip(self.moments, self.before, self.left, strict=True):
            series += [now] * (moment.op - len(series))
            series.append(before)
            now = left
        return (*series, *[settled] * (end - len(series)))

    def by_role(self, position: int, allocated: Bytes) -> dict[str, Bytes]:
        """Bytes by role while an op runs; what no storage accounts for the op takes inside itself."""
        by_role: dict[str, Bytes] = defaultdict(int)
        for role, nbytes in self.aside:
            by_role[role] += nbytes
        for s, nbytes in zip(self.storages, self.granted, strict=True):
            if nbytes and _lives(s, position):
                by_role[s.role] += nbytes
        by_role["workspace"] += max(allocated - sum(by_role.values()), 0)
        return dict(by_role)
