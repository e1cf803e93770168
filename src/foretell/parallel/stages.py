"""Pipeline stages: which ops, parameters and storages of a step belong to which stage, cut where it balances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from foretell.errors import PlanError
from foretell.graph import Graph, Input, Op, Signature, Storage, Value
from foretell.parallel.balance import balanced, interleaved
from foretell.parallel.blocks import BlockOf, blocks
from foretell.parallel.parameters import parameters
from foretell.parallel.rewrite import NOTHING, first_of, rows_of_update
from foretell.parallel.schedules import postpones, stages_of_chunks
from foretell.parallel.weight_gradients import weight_gradients
from foretell.plans import Plan
from foretell.units import Bytes

# Phase and chunk → first op, past the last.
Ranges = dict[tuple[str, int], tuple[int, int]]


class Stages:
    """A step cut into chunks of consecutive blocks; with several directions, a stage has a chunk of each."""

    def __init__(self, graph: Graph, plan: Plan, weights: Sequence[float], times: int) -> None:
        self.graph, self.plan, self.times = graph, plan, times
        self.chunks = plan.pp * plan.virtual_stages
        self.stage_of = stages_of_chunks(plan)
        self.update = first_of(graph, "optimizer")
        if any(op.phase != "optimizer" for op in graph.ops[self.update :]):
            raise PlanError(
                f"pp={plan.pp} cuts passes that one update follows, but {graph.name!r} goes on after an update. Divide it by dp."
            )
        self.storage_of = [t.storage for t in graph.tensors]
        self.parameters = parameters(graph)
        self.chunk_of = self._chunks_of_ops(weights)
        rows = [[[self.storage_of[t] for t in row] for row in rows_of_update(op)] for op in graph.ops[self.update :]]
        self.homes = self._homes(rows)
        self.updates = self._updates(rows)
        self.weights = weight_gradients(graph, self.update) if postpones(plan) or plan.delay_wgrad else frozenset[int]()
        self.postponed = self.weights if postpones(plan) else frozenset[int]()
        self.positions: list[list[int]] = [[] for _ in range(plan.pp)]
        for position in range(self.update):
            for stage in self._stages(self.chunk_of[position]):
                self.positions[stage].append(position)

    def _stages(self, chunk: int) -> tuple[int, ...]:
        """Where a chunk lies: once in each direction."""
        return self.stage_of[chunk :: self.chunks]

    def _name(self, stage: int, chunk: int) -> int:
        """What actions of a stage call one of its chunks."""
        return chunk + self.chunks * self._stages(chunk).index(stage)

    def _chunks_of_ops(self, weights: Sequence[float]) -> list[int]:
        """The chunk of every op before the update."""
        if self.chunks == 1:
            return [0] * self.update
        paths = blocks(self.graph)
        units, last = self._units(paths), len(paths)
        ends = 0 in units, last + 1 in units  # what comes before all blocks or after them may have a chunk of its own
        room = last if self.plan.virtual_stages == 1 else last + sum(ends)
        if self.plan.stages is None and room < self.chunks:
            raise PlanError(
                f"pp={self.plan.pp} × virtual_stages={self.plan.virtual_stages} = {self.chunks} chunks, but {self.graph.name!r} "
                f"has {len(paths)} repeated blocks to cut between. Choose pp × virtual_stages ≤ {max(len(paths), 1)}."
            )
        if self.plan.stages is not None:
            chunk = [0, *self._planned(last), self.chunks - 1]
            return [chunk[unit] for unit in units]
        cost = [0.0] * (last + 2)
        for unit, weight in zip(units, weights[: self.update], strict=True):
            cost[unit] += weight
        items = range(1 - ends[0], last + 1 + ends[1])
        row, pp, rounds = [cost[i] for i in items], self.plan.pp, self.plan.virtual_stages
        chunk = balanced(row, pp) if rounds == 1 else interleaved(row, self.plan, ends=ends)
        return [chunk[unit - items[0]] for unit in units]

    def _units(self, paths: Sequence[str]) -> list[int]:
        """Of each op before the update: 0 before the first block, the block it is in or follows, or past all: the head."""
        number = {path: i for i, path in enumerate(paths, start=1)}
        where = BlockOf(paths)
        unit_of_module: dict[str, int] = {}
        units: list[int] = []
        current, last = 0, len(paths)
        for op in self.graph.ops[: self.update]:
            block = where[op.module]
            if op.phase == "forward":
                past = current == last and not block
                current = max(last + 1 if past else number.get(block, current), current)
                unit_of_module.setdefault(op.module, current)
            elif block:
                current = number[block]
            elif op.module and op.module in unit_of_module:
                current = unit_of_module[op.module]
            units.append(current)
        return units

    def _planned(self, count: int) -> list[int]:
        """The chunk of every block, as the plan says."""
        stages = list(map(int, self.plan.stages or ()))
        if sum(stages) != count:
            raise PlanError(
                f"{self.plan} cuts {sum(stages)} blocks into stages, but {self.graph.name!r} has {count} repeated blocks. "
                f"Give stages that sum to {count}."
            )
        return [chunk for chunk, own in enumerate(stages) for _ in range(own)]

    def _homes(self, rows: Sequence[Sequence[Sequence[int]]]) -> dict[int, tuple[int, ...]]:
        """The stages of every parameter, its gradient and its optimizer state: of a tied one, each that uses it."""
        homes: dict[int, tuple[int, ...]] = {}
        for p in self.parameters:
            homes[p.storage] = tuple(dict.fromkeys(s for at in p.used for s in self._stages(self.chunk_of[at])))
            if p.gradient is not None:
                homes[p.gradient] = homes[p.storage]
        for _ in range(2):  # the second round knows what the later ops of the first found out
            for row in (row for op in rows for row in op):
                known = next((homes[s] for s in row if s in homes), None)
                if known is not None:
                    for s in row:
                        homes.setdefault(s, known)
        return homes

    def _updates(self, rows: Sequence[Sequence[Sequence[int]]]) -> list[dict[int, Op]]:
        """By stage: position → what of an update's op concerns the stage's own parameters."""
        updates: list[dict[int, Op]] = [{} for _ in range(self.plan.pp)]
        turn = 0
        for position, (op, own) in enumerate(zip(self.graph.ops[self.update :], rows, strict=True), start=self.update):
            stages = [next((self.homes[s] for s in row if s in self.homes), ()) for row in own]
            if not any(stages):  # counters and the like: dealt out evenly
                stages = [((turn + i) % self.plan.pp,) for i in range(len(stages))]
                turn += len(stages)
            items: dict[int, list[int]] = {}
            for i, homes in enumerate(stages):
                for stage in homes:
                    items.setdefault(stage, []).append(i)
            for stage, kept in items.items():
                updates[stage][position] = op if len(kept) == len(stages) else _only(op, kept, len(stages))
        return updates

    def stage(self, stage: int) -> tuple[Graph, Ranges, dict[int, int]]:
        """A stage's ops, where each phase of each chunk lies in them, and where each op of the step went."""
        own, step = self.positions[stage], self.graph.ops
        now = [p for p in own if p not in self.postponed] if self.postponed else own
        ranges: Ranges = {}
        begin = 0
        for key, run in groupby(now, key=lambda p: (step[p].phase, self.chunk_of[p])):
            end = begin + sum(1 for _ in run)
            key = key[0], self._name(stage, key[1])
            ranges[key] = (ranges.get(key, (begin, 0))[0], end)
            begin = end
        later = sorted((p for p in own if p in self.postponed), key=self.chunk_of.__getitem__)
        for chunk, run in groupby(later, key=self.chunk_of.__getitem__):
            ranges["weights", self._name(stage, chunk)] = (begin, begin := begin + sum(1 for _ in run))
        now = now + later
        ops = [
            Op(op.signature, op.phase, op.module, op.inputs, op.outputs, self.times)
            for op in map(step.__getitem__, now)
        ]
        ops += self.updates[stage].values()
        places = {position: i for i, position in enumerate((*now, *self.updates[stage]))}
        return replace(self.graph, ops=tuple(ops), storages=self._storages(stage, ops, places)), ranges, places

    def _storages(self, stage: int, ops: Sequence[Op], places: Mapping[int, int]) -> tuple[Storage, ...]:
        """Storages live in a stage from its first op that touches them to its last, or as long as they did."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        storage_of = self.storage_of
        for position, op in enumerate(ops):
            for t in op.inputs + op.outputs:
                storage = storage_of[t]
                if storage not in first:
                    first[storage] = position
                last[storage] = position
        end, outlives = len(ops), len(self.graph.ops)
        out = [NOTHING] * len(self.graph.storages)
        for number in first.keys() | {s for s, homes in self.homes.items() if stage in homes}:
            s = self.graph.storages[number]
            if s.born < 0:
                out[number] = Storage(s.nbytes, s.role, s.born, end)
                continue
            missing = 0 if s.role == "gradient" else end - 1  # gradients are there from one micro-batch to the next
            born = min(places.get(s.born, missing), first.get(number, end - 1))
            freed = end if s.freed >= outlives else max(places.get(s.freed, 0), last.get(number, born), born)
            out[number] = Storage(s.nbytes, s.role, born, freed)
        return tuple(out)

    def tied(self, stage: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Gradients that a stage has in common with others, and those stages."""
        for p in self.parameters:
            homes = self.homes[p.storage]
            copies = self.plan.directions  # which are replicas of each other, and reduced as such
            if len(homes) > copies and stage in homes and p.gradient is not None:
                yield p.gradient, homes

    def crossings(self) -> list[Bytes]:
        """Bytes of trained values that each chunk hands to the next; of directions one after another, none between them."""
        trained: set[int] = {p.storage for p in self.parameters if p.gradient is not None}
        made_in: dict[int, int] = {}
        crossing: list[dict[int, Bytes]] = [{} for _ in range(self.chunks - 1)]
        for position, op in enumerate(self.graph.ops):
            if op.phase != "forward":
                break
            storages = [self.storage_of[t] for t in op.inputs]
            here = self.chunk_of[position]
            for t, storage in zip(op.inputs, storages, strict=True):
                for boundary in range(made_in.get(storage, here), here):
                    known = crossing[boundary].get(storage, 0)
                    crossing[boundary][storage] = max(known, self.graph.tensors[t].layout.distinct_bytes)
            if not trained.isdisjoint(storages):
                for t in op.outputs:
                    storage = self.storage_of[t]
                    if self.graph.storages[storage].role != "parameter":
                        trained.add(storage)
                        made_in.setdefault(storage, here)
        found = [sum(handed.values()) for handed in crossing]
        return [*found, *[0, *found] * (self.plan.directions - 1)]


def _only(op: Op, items: Sequence[int], count: int) -> Op:
    """An op over lists of `count` items, on some of them."""
    keep: list[int] = []

    def renumbered(value: Value) -> Value:
        if not isinstance(value, Input):
            return value
        keep.append(value.index)
        return Input(len(keep) - 1)

    arguments: list[tuple[str, Value]] = []
    for name, value in op.signature.arguments:
        if isinstance(value, tuple) and len(value) == count:
            arguments.append((name, tuple([renumbered(value[i]) for i in items])))
        else:
            arguments.append((name, renumbered(value)))
    outputs = items if len(op.outputs) == count else range(len(op.outputs))
    numbers = {old: new for new, old in enumerate(keep)}
    signature = Signature(
        op.signature.target,
        tuple(op.signature.inputs[i] for i in keep),
        tuple(op.signature.outputs[i] for i in outputs),
        tuple(arguments),
        tuple(numbers[i] for i in op.signature.mutates if i in numbers),
    )
    inputs, made = tuple(op.inputs[i] for i in keep), tuple(op.outputs[i] for i in outputs)
    return Op(signature, op.phase, op.module, inputs, made, op.times)
