"""Pipeline stages: which ops, parameters and storages of a step belong to which stage, cut where it balances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from foretell.errors import PlanError
from foretell.graph import Graph, Input, Op, Signature, Storage, Value
from foretell.parallel.blocks import block_of, blocks
from foretell.parallel.parameters import parameters
from foretell.parallel.rewrite import first_of
from foretell.plan import Plan
from foretell.units import Bytes

_ELSEWHERE: Final = Storage(0, "host", -1, -1)


class Stages:
    """A step cut into chunks of consecutive blocks. Chunk c lies on stage c modulo the stages."""

    def __init__(self, graph: Graph, plan: Plan, weights: Sequence[float], times: int) -> None:
        self.graph, self.plan, self.times = graph, plan, times
        self.chunks = plan.pp * plan.virtual_stages
        self.parameters = parameters(graph)
        self.chunk_of = self._assign(weights)
        self.homes = self._homes()
        self.update = first_of(graph, "optimizer")
        self.put_off = self._put_off() if plan.schedule == "zero-bubble" else frozenset[int]()
        self.shares = self._shared_out()
        self.positions: list[list[int]] = [[] for _ in range(plan.pp)]
        for position in range(self.update):
            self.positions[self.chunk_of[position] % plan.pp].append(position)

    def _assign(self, weights: Sequence[float]) -> list[int]:
        """The chunk of every op before the update."""
        paths = blocks(self.graph)
        if self.plan.stages is None and len(paths) < self.chunks:
            raise PlanError(
                f"pp={self.plan.pp} × virtual_stages={self.plan.virtual_stages} = {self.chunks} chunks, but {self.graph.name!r} "
                f"has {len(paths)} repeated blocks to cut between. Choose pp × virtual_stages ≤ {max(len(paths), 1)}."
            )
        number = {path: i for i, path in enumerate(paths, start=1)}
        where = block_of(paths)
        unit_of_module: dict[str, int] = {}
        units: list[
            int
        ] = []  # of each op: 0 before the first block, the block it is in or follows, or past all: the head
        current, last = 0, len(paths)
        for op in self.graph.ops:
            if op.phase == "forward":
                past = current == last and not where[op.module]
                current = max(last + 1 if past else number.get(where[op.module], current), current)
                unit_of_module.setdefault(op.module, current)
            elif op.phase == "backward":
                if where[op.module]:
                    current = number[where[op.module]]
                elif op.module and op.module in unit_of_module:
                    current = unit_of_module[op.module]
            units.append(current)
        if self.plan.stages is not None:
            chunk = [0, *self._planned(last), self.chunks - 1]
        else:
            chunk = self._balanced(units, weights, last)
            chunk = [chunk[0], *chunk, chunk[-1]]
        return [chunk[unit] for unit in units]

    def _planned(self, count: int) -> list[int]:
        """The chunk of every block, as the plan says."""
        stages = list(map(int, self.plan.stages or ()))
        if sum(stages) != count:
            raise PlanError(
                f"{self.plan} cuts {sum(stages)} blocks into stages, but {self.graph.name!r} has {count} repeated blocks. "
                f"Give stages that sum to {count}."
            )
        return [chunk for chunk, own in enumerate(stages) for _ in range(own)]

    def _balanced(self, units: Sequence[int], weights: Sequence[float], count: int) -> list[int]:
        cost = [0.0] * count
        for op, unit, weight in zip(self.graph.ops, units, weights, strict=True):
            if op.phase != "optimizer":
                cost[min(max(unit - 1, 0), count - 1)] += weight
        return _balanced(cost, self.chunks)

    def _homes(self) -> dict[int, int]:
        """The stage of every parameter, its gradient and its optimizer state."""
        homes: dict[int, int] = {}
        for p in self.parameters:
            homes[p.storage] = self.chunk_of[p.used[0]] % self.plan.pp
            if p.gradient is not None:
                homes[p.gradient] = homes[p.storage]
        update = [op for op in self.graph.ops if op.phase == "optimizer"]
        for _ in range(2):
            for op in update:
                for row in _rows(op):
                    storages = [self.graph.tensors[t].storage for t in row]
                    known = next((homes[s] for s in storages if s in homes), None)
                    if known is not None:
                        for s in storages:
                            homes.setdefault(s, known)
        return homes

    def stage(self, stage: int) -> tuple[Graph, dict[tuple[str, int], tuple[int, int]], dict[int, int]]:
        """A stage's ops, where each phase of each chunk lies in them, and where each op of the step went."""
        ops: list[Op] = []
        ranges: dict[tuple[str, int], tuple[int, int]] = {}
        places: dict[int, int] = {}
        later = [position for position in self.positions[stage] if position in self.put_off]
        for position in self.positions[stage]:
            if position not in self.put_off:
                op = self.graph.ops[position]
                key = (op.phase, self.chunk_of[position])
                places[position] = len(ops)
                ops.append(self._repeated(op))
                ranges[key] = (ranges.get(key, (len(ops) - 1, 0))[0], len(ops))
        if later:
            ranges["weights", stage] = (len(ops), len(ops) + len(later))
        for position in later:
            places[position] = len(ops)
            ops.append(self._repeated(self.graph.ops[position]))
        for position, op in self.shares[stage].items():
            places[position] = len(ops)
            ops.append(op)
        return replace(self.graph, ops=tuple(ops), storages=self._storages(stage, ops, places)), ranges, places

    def _repeated(self, op: Op) -> Op:
        return Op(op.signature, op.phase, op.module, op.inputs, op.outputs, self.times)

    def _shared_out(self) -> list[dict[int, Op]]:
        """By stage: position → what of an update's op concerns the stage's own parameters."""
        shares: list[dict[int, Op]] = [{} for _ in range(self.plan.pp)]
        turn = 0
        for position in range(self.update, len(self.graph.ops)):
            op = self.graph.ops[position]
            homes = [
                next((self.homes[s] for t in row if (s := self.graph.tensors[t].storage) in self.homes), None)
                for row in _rows(op)
            ]
            if all(h is None for h in homes):  # counters and the like: dealt out evenly
                homes = [(turn + i) % self.plan.pp for i in range(len(homes))]
                turn += len(homes)
            for stage in {h for h in homes if h is not None}:
                mine = [h == stage for h in homes]
                shares[stage][position] = op if all(mine) else _only(op, mine)
        return shares

    def _put_off(self) -> frozenset[int]:
        """Backward ops whose results only gradients of their own module need: no other layer waits for them."""
        wanted: dict[int, set[str]] = {}  # storage → modules that make gradients of it, "…" where others want it
        found = set()
        for position in range(len(self.graph.ops) - 1, -1, -1):
            op = self.graph.ops[position]
            if op.phase != "backward":
                continue
            outputs = [self.graph.tensors[t].storage for t in op.outputs]
            for_gradients = bool(outputs) and all(
                self.graph.storages[s].role == "gradient" or (s in wanted and wanted[s] <= {op.module, ""})
                for s in outputs
            )
            if for_gradients:
                found.add(position)
            for t in op.inputs:
                wanted.setdefault(self.graph.tensors[t].storage, set()).add(op.module if for_gradients else "…")
        return frozenset(found)

    def _storages(self, stage: int, ops: Sequence[Op], places: Mapping[int, int]) -> tuple[Storage, ...]:
        """Storages live in a stage from its first op that touches them to its last, or as long as they did."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        tensors = self.graph.tensors
        for position, op in enumerate(ops):
            for t in (*op.inputs, *op.outputs):
                storage = tensors[t].storage
                first.setdefault(storage, position)
                last[storage] = position
        end = len(ops)
        out = [_ELSEWHERE] * len(self.graph.storages)
        for number in {*first, *(s for s, home in self.homes.items() if home == stage)}:
            s = self.graph.storages[number]
            outlives = s.freed >= len(self.graph.ops)
            if s.born < 0:
                out[number] = Storage(s.nbytes, s.role, s.born, end)
                continue
            born = min(places.get(s.born, end - 1), first.get(number, end - 1))
            freed = end if outlives else max(places.get(s.freed, 0), last.get(number, born), born)
            out[number] = Storage(s.nbytes, s.role, born, freed)
        return tuple(out)

    def crossings(self) -> list[Bytes]:
        """Bytes of trained values that each chunk hands to the next."""
        trained: set[int] = {p.storage for p in self.parameters if p.gradient is not None}
        made_in: dict[int, int] = {}
        crossing: list[dict[int, Bytes]] = [{} for _ in range(self.chunks - 1)]
        for position, op in enumerate(self.graph.ops):
            if op.phase != "forward":
                break
            storages = [self.graph.tensors[t].storage for t in op.inputs]
            here = self.chunk_of[position]
            for t, storage in zip(op.inputs, storages, strict=True):
                for boundary in range(made_in.get(storage, here), here):
                    known = crossing[boundary].get(storage, 0)
                    crossing[boundary][storage] = max(known, self.graph.tensors[t].layout.distinct_bytes)
            if any(s in trained for s in storages):
                for t in op.outputs:
                    storage = self.graph.tensors[t].storage
                    if self.graph.storages[storage].role != "parameter":
                        trained.add(storage)
                        made_in.setdefault(storage, here)
        return [sum(handed.values()) for handed in crossing]


def _balanced(cost: Sequence[float], parts: int) -> list[int]:
    """Cut a row of costs into parts whose largest is as small as can be; each has at least one."""
    count = len(cost)
    sums = [0.0]
    for c in cost:
        sums.append(sums[-1] + c)
    best = [[0.0] * (count + 1) for _ in range(parts + 1)]
    cut = [[0] * (count + 1) for _ in range(parts + 1)]
    for end in range(1, count + 1):
        best[1][end] = sums[end]
    for part in range(2, parts + 1):
        for end in range(part, count + 1):
            best[part][end] = float("inf")
            for begin in range(end - 1, part - 2, -1):
                worst = max(best[part - 1][begin], sums[end] - sums[begin])
                if worst < best[part][end]:
                    best[part][end], cut[part][end] = worst, begin
                if sums[end] - sums[begin] > best[part][end]:
                    break
    bounds, end = [], count
    for part in range(parts, 0, -1):
        begin = cut[part][end] if part > 1 else 0
        bounds.append((begin, end))
        end = begin
    out = [0] * count
    for part, (begin, end) in enumerate(reversed(bounds)):
        out[begin:end] = [part] * (end - begin)
    return out


def _lists(op: Op) -> list[tuple[Value, ...]]:
    return [v for _, v in op.signature.arguments if isinstance(v, tuple) and v and all(isinstance(i, Input) for i in v)]


def _rows(op: Op) -> Sequence[Sequence[int]]:
    """The tensors of each parameter that an update's op takes; one row where it takes no lists."""
    lists = _lists(op)
    if not lists:
        return [(*op.inputs, *op.outputs)]
    count = min(map(len, lists))
    rows = []
    for i in range(count):
        row = [op.inputs[v.index] for values in lists if isinstance(v := values[i], Input)]
        rows.append(row + ([op.outputs[i]] if len(op.outputs) == count else []))
    return rows


def _only(op: Op, mine: Sequence[bool]) -> Op:
    """An op over lists, on some of their items."""
    keep: list[int] = []
    arguments: list[tuple[str, Value]] = []
    for name, value in op.signature.arguments:
        if isinstance(value, tuple) and len(value) == len(mine):
            kept = [v for v, own in zip(value, mine, strict=True) if own]
            numbered: list[Value] = []
            for v in kept:
                if isinstance(v, Input):
                    keep.append(v.index)
                    numbered.append(Input(len(keep) - 1))
                else:
                    numbered.append(v)
            arguments.append((name, tuple(numbered)))
        elif isinstance(value, Input):
            keep.append(value.index)
            arguments.append((name, Input(len(keep) - 1)))
        else:
            arguments.append((name, value))
    outputs = [i for i in range(len(op.outputs)) if len(op.outputs) != len(mine) or mine[i]]
    renumbered = {old: new for new, old in enumerate(keep)}
    signature = Signature(
        op.signature.target,
        tuple(op.signature.inputs[i] for i in keep),
        tuple(op.signature.outputs[i] for i in outputs),
        tuple(arguments),
        tuple(renumbered[i] for i in op.signature.mutates if i in renumbered),
    )
    return replace(
        op, signature=signature, inputs=tuple(op.inputs[i] for i in keep), outputs=tuple(op.outputs[i] for i in outputs)
    )
