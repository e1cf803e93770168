"""Activation checkpointing: a unit's activations are dropped after its forward pass and recomputed for its backward.

Units are the repeated blocks (`full`), the first part of them (a fraction), or what runs around each attention
(`selective`). `selective-op` recomputes blocks except for what is dear: every other product, attention, and sums that are
scattered, as torchtitan does. As in torch, recomputing stops where the last thing that the backward pass needs is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretell.errors import PlanError
from foretell.graph import Graph, Op, Storage, Tensor
from foretell.graph.operators import operator_of
from foretell.parallel.blocks import Span, blocks, passes
from foretell.plans import Plan
from foretell.program import Collective, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Forward ops first to last, recomputed before the op `needed`."""

    first: int
    last: int
    needed: int
    kept: frozenset[int] = frozenset()  # ops that are not run again


def checkpointed(role: Role, plan: Plan) -> Role:
    if plan.checkpointing in ("none", 0) or not role.graph.training:
        return role
    units = sorted(_units(role.graph, plan.checkpointing), key=lambda unit: unit.needed)
    if not units:
        raise PlanError(
            f"checkpointing={plan.checkpointing} finds nothing to recompute in {role.graph.name!r}: no "
            f"{'attention' if plan.checkpointing == 'selective' else 'repeated blocks'}. Leave it out."
        )
    return _Rewrite(role, units).role()


def _units(graph: Graph, what: str | float) -> Iterator[_Unit]:
    paths = blocks(graph)
    if not isinstance(what, str):
        paths = paths[: round(what * len(paths))]
    if what == "selective":
        yield from _attentions(graph)
        return
    for spans in passes(graph, paths):
        for path in paths:
            if path in spans["forward"] and path in spans["backward"]:
                forward = spans["forward"][path]
                kept = _dear(graph, forward) if what == "selective-op" else frozenset()
                yield _Unit(first=forward.first, last=forward.last, needed=spans["backward"][path].first, kept=kept)


def _dear(graph: Graph, block: Span) -> frozenset[int]:
    """The ops of a block whose results torchtitan's policy keeps: the first product, the third, …, and attention."""
    ops = [(p, graph.ops[p].signature.name) for p in range(block.first, block.last + 1)]
    products = [p for p, name in ops if name == "aten.mm"]
    return frozenset(products[::2]) | {p for p, name in ops if operator_of(name).is_attention}


def _attentions(graph: Graph) -> Iterator[_Unit]:
    """Around every attention, or softmax between products, the ops of the module it runs in."""
    ops = graph.ops
    readers: dict[int, list[int]] = defaultdict(list)
    for position, op in enumerate(ops):
        if op.phase == "backward":
            for t in op.inputs:
                readers[graph.tensors[t].storage].append(position)
    for position, op in enumerate(ops):
        name = op.signature.name
        if op.phase != "forward" or not (operator_of(name).is_attention or name == "aten._softmax"):
            continue
        first = last = position
        while first > 0 and ops[first - 1].module == op.module and ops[first - 1].phase == "forward":
            first -= 1
        while last + 1 < len(ops) and ops[last + 1].module == op.module and ops[last + 1].phase == "forward":
            last += 1
        made = {graph.tensors[t].storage for o in ops[first : last + 1] for t in o.outputs}
        needed = [p for s in made for p in readers[s] if p > last]
        if needed:
            yield _Unit(first=first, last=last, needed=min(needed))


class _Rewrite:
    def __init__(self, old: Role, units: list[_Unit]) -> None:
        self.old, self.graph, self.units = old, old.graph, units
        self.tensors = list(old.graph.tensors)
        self.ops: list[Op] = []
        self.place: list[int] = []  # where each op went
        self.copies: dict[int, int] = {}  # storage → the one recomputed
        self.born: dict[int, tuple[int, int]] = {}  # copy → op, storage it copies
        self.dropped: dict[int, int] = {}  # storage → its last forward use
        self.collectives: list[Collective] = []
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.made: list[set[int]] = []
        self.copies_parameters: list[bool] = []  # of ops: such copies are there for the backward pass
        for position, op in enumerate(self.graph.ops):
            read = {self.graph.tensors[t].storage for t in op.inputs}
            made = {self.graph.tensors[t].storage for t in op.outputs} - read
            self.made.append({s for s in made if self.graph.storages[s].role != "parameter"})
            self.copies_parameters.append(bool(made) and not self.made[-1])
            for storage in read:
                self.readers[storage].append(position)

    def role(self) -> Role:
        starting = defaultdict(list)
        for unit in self.units:
            starting[unit.needed].append(unit)
        collectives = defaultdict(list)
        for collective in self.old.collectives:
            collectives[collective.starts_after].append(collective)
        count = len(self.graph.storages)
        for position, op in enumerate(self.graph.ops):
            for unit in starting[position]:
                self._recompute(unit, collectives, count)
            self.place.append(len(self.ops))
            self.ops.append(self._with_copies(op) if op.phase == "backward" else op)
        graph = replace(self.graph, ops=tuple(self.ops), tensors=tuple(self.tensors), storages=self._storages())
        moved = [self._moved(c) for c in self.old.collectives]
        ordered = sorted([*moved, *self.collectives], key=lambda c: (c.starts_after, c.waited_for_by))
        return replace(self.old, graph=graph, collectives=tuple(ordered))

    def _recompute(self, unit: _Unit, collectives: dict[int, list[Collective]], count: int) -> None:
        graph = self.graph
        again = [p for p in range(unit.first, unit.last + 1) if p not in unit.kept]
        made = {s for p in again for s in self.made[p]}
        needed, outside = self._uses(made, unit)
        made, needed = made - outside, needed - outside  # what others read is kept: the next unit begins with it
        last = max((p for p in again if self.made[p] & needed), default=-1)
        for storage in made & needed:
            read = [p for p in self.readers[storage] if p <= unit.last]
            self.dropped[storage] = max([graph.storages[storage].born, *read])
        for storage in made:
            self.copies[storage] = count + len(self.born)
            self.born[self.copies[storage]] = (-1, storage)
        went: dict[int, int] = {}
        for position in range(unit.first, last + 1):
            went[position] = len(self.ops)
            if self.copies_parameters[position] or position in unit.kept:
                continue
            for storage in self.made[position] & made:
                if self.born[self.copies[storage]][0] < 0:
                    self.born[self.copies[storage]] = (len(self.ops), storage)
            op = self._with_copies(graph.ops[position])
            self.ops.append(Op(op.signature, "backward", op.module, op.inputs, op.outputs, op.times))
        for position, place in went.items():
            for collective in collectives[position]:
                scattered = collective.kind == "reduce-scatter" and bool(unit.kept)  # its result is kept
                if collective.waited_for_by <= last and position not in unit.kept and not scattered:
                    waited = went[collective.waited_for_by]
                    self.collectives.append(replace(collective, starts_after=place, waited_for_by=waited))

    def _uses(self, made: set[int], unit: _Unit) -> tuple[set[int], set[int]]:
        """What the backward pass reads of what the unit made, and what other forward ops read of it."""
        needed, outside = set[int](), set[int]()
        for storage in made:
            later = [self.graph.ops[p].phase for p in self.readers[storage] if p > unit.last]
            if "forward" in later:
                outside.add(storage)
            if "backward" in later:
                needed.add(storage)
        return needed, outside

    def _with_copies(self, op: Op) -> Op:
        inputs, outputs = (tuple(self._copied(t) for t in side) for side in (op.inputs, op.outputs))
        return op if (inputs, outputs) == (op.inputs, op.outputs) else replace(op, inputs=inputs, outputs=outputs)

    def _copied(self, tensor: int) -> int:
        t = self.graph.tensors[tensor]
        if t.storage not in self.copies:
            return tensor
        self.tensors.append(Tensor(t.layout, self.copies[t.storage], t.offset))
        return len(self.tensors) - 1

    def _storages(self) -> tuple[Storage, ...]:
        used: dict[int, int] = {}
        for position, op in enumerate(self.ops):
            for t in (*op.inputs, *op.outputs):
                used[self.tensors[t].storage] = position
        end = len(self.graph.ops)
        out = []
        for number, s in enumerate(self.graph.storages):
            freed = len(self.ops) if s.freed >= end else max(self.place[s.freed], used.get(number, 0))
            if number in self.dropped:
                freed = self.place[self.dropped[number]]
            elif number in self.copies and s.freed < end:
                freed = used.get(number, self.place[s.born])
            born = s.born if s.born < 0 else self.place[s.born]
            role = "temporary" if number in self.dropped and s.role == "activation" else s.role
            out.append(Storage(s.nbytes, role, born, max(freed, born)))
        for copy, (born, source) in self.born.items():
            nbytes = self.graph.storages[source].nbytes if copy in used and born >= 0 else 0
            out.append(Storage(nbytes, "activation", max(born, 0), max(used.get(copy, 0), born, 0)))
        return tuple(out)

    def _moved(self, c: Collective) -> Collective:
        def at(position: int) -> int:
            return len(self.ops) if position >= len(self.place) else position if position < 0 else self.place[position]

        issued = None if c.issued_by is None else at(c.issued_by)
        return replace(c, starts_after=at(c.starts_after), waited_for_by=at(c.waited_for_by), issued_by=issued)
