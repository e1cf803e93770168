"""Runs units of the forward pass again before the backward pass needs what they made, which is dropped in between.

As in torch, recomputing stops where the last thing that the backward pass needs is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretell.graph import Op, Storage, Tensor
from foretell.parallel.flow import Flow
from foretell.program import Collective, Group, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Forward ops first to last, recomputed when the backward pass first needs something of them."""

    first: int
    last: int
    kept: frozenset[int] = frozenset()  # ops that are not run again
    discards: bool = False  # what later ops of the forward pass read is dropped after them too
    shared_by: Group | None = None  # ranks that keep a part each of what the unit reads

    def dropped(self, flow: Flow) -> set[int]:
        """What the unit makes and the backward pass reads, but for what later ops of the forward pass keep."""
        inside = range(self.first, self.last + 1)
        made = flow.made_by(p for p in inside if p not in self.kept).union(*map(flow.gathered, inside))
        return {
            s
            for s in made
            if flow.read_later(s, self.last, "backward")
            and (self.discards or not flow.read_later(s, self.last, "forward"))
        }


def recomputed(role: Role, units: Sequence[Unit], flow: Flow | None = None) -> Role:
    """The role with these units run again; one of which the backward pass needs nothing stays as it is."""
    return _Rewrite(role, flow or Flow(role)).role(units)


class _Rewrite:
    def __init__(self, old: Role, flow: Flow) -> None:
        self.old, self.graph, self.flow = old, old.graph, flow
        self.tensors = list(old.graph.tensors)
        self.ops: list[Op] = []
        self.place: list[int] = []  # where each op went
        self.copies: dict[int, int] = {}  # storage → the one recomputed
        self.born: dict[int, tuple[int, int]] = {}  # copy → op, storage it copies
        self.dropped: dict[int, int] = {}  # storage → its last forward use
        self.collectives: list[Collective] = []
        self.parts: list[Storage] = []  # of what units read, kept in place of it
        self.starting: dict[int, list[Collective]] = defaultdict(list)
        for collective in old.collectives:
            self.starting[collective.starts_after].append(collective)

    def role(self, units: Sequence[Unit]) -> Role:
        needed = self._needed(units)
        for position, op in enumerate(self.graph.ops):
            for unit, dropped in needed.get(position, ()):
                self._recompute(unit, dropped)
            self.place.append(len(self.ops))
            self.ops.append(self._with_copies(op) if op.phase == "backward" else op)
        moved = [self._moved(c) for c in self.old.collectives]
        ordered = sorted([*moved, *self.collectives], key=lambda c: (c.starts_after, c.waited_for_by))
        graph = replace(self.graph, ops=tuple(self.ops), tensors=tuple(self.tensors), storages=self._storages(ordered))
        return replace(self.old, graph=graph, collectives=tuple(ordered))

    def _needed(self, units: Sequence[Unit]) -> dict[int, list[tuple[Unit, set[int]]]]:
        """By op of the backward pass: the units that are run again before it, in order, and what they drop."""
        needed: dict[int, list[tuple[Unit, set[int]]]] = defaultdict(list)
        again: dict[int, int] = {}  # op of the forward pass → where it is run again
        for unit in sorted(units, key=lambda unit: -unit.first):
            if dropped := unit.dropped(self.flow):
                read = [p for s in dropped for p in self.flow.read_later(s, unit.last, "backward")]
                read += [again[p] for s in dropped for p in self.flow.readers[s] if p in again]
                needed[min(read)].insert(0, (unit, dropped))
                again.update(dict.fromkeys(range(unit.first, unit.last + 1), min(read)))
        return needed

    def _recompute(self, unit: Unit, dropped: set[int]) -> None:
        flow, inside = self.flow, range(unit.first, unit.last + 1)
        makes = {p: (frozenset() if p in unit.kept else flow.made[p]) | flow.gathered(p) for p in inside}
        last = max(p for p in inside if makes[p] & dropped)
        for storage in dropped:
            read = [p for p in flow.readers[storage] if self.graph.ops[p].phase == "forward"]
            self.dropped[storage] = max([self.graph.storages[storage].born, *read])
        for storage in sorted(set().union(*makes.values())):
            if storage in dropped or not flow.read_later(storage, unit.last, "forward"):
                self.copies[storage] = len(self.graph.storages) + len(self.born)
                self.born[self.copies[storage]] = (-1, storage)
        if unit.shared_by is not None:
            self._gather_inputs(unit, unit.shared_by)
        went: dict[int, int] = {}
        for position in range(unit.first, last + 1):
            went[position] = len(self.ops)
            for storage in makes[position] & self.copies.keys():
                if self.born[self.copies[storage]][0] < 0:
                    self.born[self.copies[storage]] = (len(self.ops), storage)
            if flow.copies_parameters[position] or position in unit.kept:
                continue
            op = self._with_copies(self.graph.ops[position])
            self.ops.append(Op(op.signature, "backward", op.module, op.inputs, op.outputs, op.times))
        self._communicate_again(unit, went, last)

    def _gather_inputs(self, unit: Unit, group: Group) -> None:
        """What the unit begins with was kept in parts, and is gathered before it is run again."""
        flow, storages, inside = self.flow, self.graph.storages, range(unit.first, unit.last + 1)
        read = {self.graph.tensors[t].storage for p in inside for t in self.graph.ops[p].inputs}
        for storage in sorted(read - flow.made_by(inside) - self.copies.keys()):
            s, forward = storages[storage], [p for p in flow.readers[storage] if self.graph.ops[p].phase == "forward"]
            if s.role not in ("activation", "temporary") or s.born < 0:
                continue
            self.dropped[storage] = max(forward)
            self.copies[storage] = copy = len(storages) + len(self.born)
            self.born[copy] = (len(self.ops), storage)
            begins, now, module = self.place[max(forward)], len(self.ops), self.graph.ops[unit.first].module
            self.parts.append(Storage(-(-s.nbytes // group.size), "activation", begins, now))
            self.collectives.append(
                Collective(
                    kind="all-gather", nbytes=s.nbytes, group=group, name=f"all-gather what is kept for {module}",
                    starts_after=now - 1, waited_for_by=now, lane="tp", every_micro_step=True,
                )
            )  # fmt: skip

    def _communicate_again(self, unit: Unit, went: dict[int, int], last: int) -> None:
        for position, place in went.items():
            for collective in self.starting[position]:
                scattered = collective.kind == "reduce-scatter" and bool(unit.kept)  # its result is kept
                if collective.waited_for_by <= last and position not in unit.kept and not scattered:
                    waited = went[collective.waited_for_by]
                    again = replace(collective, starts_after=place, waited_for_by=waited)
                    self.collectives.append(self._of_copies(again))
            for gather in self.flow.gathers.get(position, ()):
                if gather.starts_after < unit.first or gather.starts_after in unit.kept:  # it starts with the unit
                    again = replace(gather, starts_after=went[unit.first] - 1, waited_for_by=place)
                    self.collectives.append(self._of_copies(again))

    def _of_copies(self, c: Collective) -> Collective:
        if c.reads is None or c.makes is None:
            return c
        return replace(c, reads=self.copies.get(c.reads, c.reads), makes=self.copies.get(c.makes, c.makes))

    def _with_copies(self, op: Op) -> Op:
        inputs, outputs = (tuple(self._copied(t) for t in side) for side in (op.inputs, op.outputs))
        return op if (inputs, outputs) == (op.inputs, op.outputs) else replace(op, inputs=inputs, outputs=outputs)

    def _copied(self, tensor: int) -> int:
        t = self.graph.tensors[tensor]
        if t.storage not in self.copies:
            return tensor
        self.tensors.append(Tensor(t.layout, self.copies[t.storage], t.offset))
        return len(self.tensors) - 1

    def _storages(self, collectives: Sequence[Collective]) -> tuple[Storage, ...]:
        used: dict[int, int] = {}
        for position, op in enumerate(self.ops):
            for t in (*op.inputs, *op.outputs):
                used[self.tensors[t].storage] = position
        for c in collectives:
            if c.reads is not None:
                used[c.reads] = max(used.get(c.reads, 0), min(c.waited_for_by, len(self.ops) - 1))
        end = len(self.graph.ops)
        out = []
        for number, s in enumerate(self.graph.storages):
            freed = len(self.ops) if s.freed >= end else max(self.place[s.freed], used.get(number, 0))
            if number in self.dropped:
                freed = self.place[self.dropped[number]]
            elif number in self.copies and s.freed < end:
                freed = used.get(number, self.place[s.born])
            born = s.born if s.born < 0 else self.place[s.born]
            out.append(self._kept(Storage(s.nbytes, s.role, born, max(freed, born))))
        for copy, (born, source) in self.born.items():
            nbytes = self.graph.storages[source].nbytes if copy in used and born >= 0 else 0
            out.append(Storage(nbytes, "activation", max(born, 0), max(used.get(copy, 0), born, 0)))
        return (*out, *self.parts)

    def _kept(self, storage: Storage) -> Storage:
        """What the forward pass makes and the backward pass reads are activations, what one pass alone needs is not."""
        if storage.role not in ("activation", "temporary") or not 0 <= storage.born <= storage.freed < len(self.ops):
            return storage
        crosses = self.ops[storage.born].phase == "forward" != self.ops[storage.freed].phase
        return replace(storage, role="activation" if crosses else "temporary")

    def _moved(self, c: Collective) -> Collective:
        def at(position: int) -> int:
            return len(self.ops) if position >= len(self.place) else position if position < 0 else self.place[position]

        issued = None if c.issued_by is None else at(c.issued_by)
        moved = replace(c, starts_after=at(c.starts_after), waited_for_by=at(c.waited_for_by), issued_by=issued)
        if c.reads is None or c.reads not in self.copies or self.graph.ops[c.starts_after].phase == "forward":
            return moved
        born, _ = self.born[self.copies[c.reads]]
        return replace(moved, reads=self.copies[c.reads], starts_after=max(moved.starts_after, born))
