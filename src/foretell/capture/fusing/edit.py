"""Edits of a captured step for fused kernels: ops are taken out and put in, and what nothing needs any more goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from foretell.graph import Caveat, Graph, Input, Layout, Op, Signature, Storage, Tensor, Value
from foretell.graph.operators import operator_of

Arguments = tuple[tuple[str, Value], ...]
_STREAMS: Final = ("copy", "elementwise", "reduction")


class Fusing:
    """A step whose ops are taken out and put in."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op | None] = list(graph.ops)
        self.tensors = list(graph.tensors)
        self.storages = list(graph.storages)
        self.inserted: dict[int, list[Op]] = defaultdict(list)  # position → ops that run before the one there
        self.fused: set[int] = set()  # positions of ops that are not captured ones
        self.written: dict[int, int] = {}  # storage → the op that makes it
        self.readers: dict[int, list[int]] = defaultdict(list)  # storage → ops that compute with it; views do not
        for position, op in enumerate(graph.ops):
            made = {self.storage(t) for t in op.outputs}
            for storage in made:
                self.written.setdefault(storage, position)
            if self.computes(op):
                for storage in dict.fromkeys(map(self.storage, op.inputs)):
                    self.readers[storage].append(position)

    def storage(self, tensor: int) -> int:
        return self.tensors[tensor].storage

    def computes(self, op: Op) -> bool:
        """Whether it is a kernel: no view, no bookkeeping."""
        read = {self.storage(t) for t in op.inputs}
        is_view = bool(op.outputs) and not op.signature.mutates and all(self.storage(t) in read for t in op.outputs)
        return not is_view and operator_of(op.signature.name).launches

    def named(self, phase: str, *names: str) -> Iterator[tuple[int, Op]]:
        for position, op in enumerate(self.ops):
            if op is not None and op.phase == phase and op.signature.name in names:
                yield position, op

    def maker(self, storage: int, name: str) -> int | None:
        """The op that makes a storage, if it is of this name."""
        position = self.written.get(storage)
        op = None if position is None else self.ops[position]
        return position if op is not None and op.signature.name == name else None

    def only_reader(self, storage: int, phase: str, *names: str) -> int | None:
        """The one op of a phase that computes with a storage, if it is of these names."""
        found = [p for p in self.readers[storage] if (op := self.ops[p]) is not None and op.phase == phase]
        op = self.ops[found[0]] if len(found) == 1 else None
        return found[0] if op is not None and op.signature.name in names else None

    def at(self, position: int) -> Op:
        op = self.ops[position]
        assert op is not None
        return op

    def made(self, position: int) -> int:
        """The storage that an op makes."""
        return self.storage(self.at(position).outputs[0])

    def tensor_of(self, position: int, storage: int) -> int:
        """The tensor in which an op reads a storage."""
        return next(t for t in self.at(position).inputs if self.storage(t) == storage)

    def viewed(self, tensor: int, like: Tensor) -> int:
        """A tensor in the shape of another."""
        own = self.tensors[tensor]
        self.tensors.append(Tensor(replace(like.layout, dtype=own.layout.dtype), own.storage, own.offset))
        return len(self.tensors) - 1

    def put(
        self,
        old: Sequence[int],
        at: int,
        target: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        arguments: Arguments = (),
    ) -> None:
        """One op at a place, for several."""
        like = self.at(at)
        layouts = [tuple(self.tensors[t].layout for t in side) for side in (inputs, outputs)]
        arguments = arguments or tuple((f"input{i}", Input(i)) for i in range(len(inputs)))
        for position in old:
            self.ops[position] = None
        signature = Signature(target, layouts[0], layouts[1], arguments)
        self.ops[at] = Op(signature, like.phase, like.module, tuple(inputs), tuple(outputs), like.times)
        self.fused.add(at)

    def insert(self, before: int, target: str, tensor: int, dtype: str) -> int:
        """An op that makes a tensor of another type from one, and what it makes."""
        like, own = self.at(before), self.tensors[tensor].layout
        made = Layout.contiguous(own.shape, dtype)
        self.storages.append(Storage(made.nbytes, "temporary", before, before))
        self.tensors.append(Tensor(made, len(self.storages) - 1))
        number = len(self.tensors) - 1
        signature = Signature(target, (own,), (made,), (("self", Input(0)),))
        self.inserted[before].append(Op(signature, like.phase, like.module, (tensor,), (number,), like.times))
        return number

    def graph_now(self) -> Graph:
        self._drop_views()
        place: list[int] = []  # where an op went, or the one before it
        ops: list[Op] = []
        for position, op in enumerate(self.ops):
            ops += self.inserted.get(position, ())
            if op is not None:
                ops.append(op)
            place.append(max(len(ops) - 1, 0))
        made, used = set[int](), dict[int, int]()
        for position, op in enumerate(ops):
            for t in (*op.inputs, *op.outputs):
                used[self.storage(t)] = position
            made |= {self.storage(t) for t in op.outputs}
        first = {self.storage(t): i for i, op in reversed(list(enumerate(ops))) for t in op.outputs}
        end, phases = len(self.graph.ops), [op.phase for op in ops]
        storages: dict[int, Storage] = {}
        for number, s in enumerate(self.storages):
            if s.born >= 0 and number not in made:
                continue  # no longer made by any op
            born = s.born if s.born < 0 else first[number]
            freed = len(ops) if s.freed >= end else max(place[s.freed], used.get(number, 0), born)
            role = s.role
            if role in ("temporary", "activation") and born >= 0 and freed < len(ops):
                role = "activation" if phases[born] == "forward" != phases[freed] else "temporary"
            storages[number] = Storage(s.nbytes, role, born, freed)
        return self._renumbered(ops, storages)

    def _drop_views(self) -> None:
        """Without views of what no op makes any more."""
        made = {number for number, s in enumerate(self.storages) if s.born < 0}
        made |= {self.storage(t) for ops in self.inserted.values() for op in ops for t in op.outputs}
        for op in self.ops:
            if op is not None:
                made |= {self.storage(t) for t in op.outputs} - {self.storage(t) for t in op.inputs}
        for position, op in enumerate(self.ops):
            if op is not None and any(self.storage(t) not in made for t in op.inputs):
                self.ops[position] = None

    def _renumbered(self, ops: list[Op], storages: dict[int, Storage]) -> Graph:
        """The graph without tensors and storages that nothing uses any more."""
        of_storage = {old: new for new, old in enumerate(storages)}
        kept = [i for i, t in enumerate(self.tensors) if t.storage in of_storage]
        of_tensor = {old: new for new, old in enumerate(kept)}
        gradients = self.graph.gradients or {}
        return replace(
            self.graph,
            ops=tuple(
                replace(
                    op, inputs=tuple(of_tensor[t] for t in op.inputs), outputs=tuple(of_tensor[t] for t in op.outputs)
                )
                for op in ops
            ),
            tensors=tuple(replace(self.tensors[i], storage=of_storage[self.tensors[i].storage]) for i in kept),
            storages=tuple(storages.values()),
            gradients={
                of_storage[p]: of_storage[g] for p, g in gradients.items() if p in of_storage and g in of_storage
            },
            caveats=(*self.graph.caveats, self._caveat()),
        )

    def _caveat(self) -> Caveat:
        streams = whole = 0
        for position, op in enumerate(self.ops):
            if op is not None and op.phase != "optimizer" and self.computes(op):
                nbytes = sum(x.distinct_bytes for x in (*op.signature.inputs, *op.signature.outputs)) * op.times
                whole += nbytes
                streams += nbytes * (position not in self.fused and operator_of(op.signature.name).family in _STREAMS)
        text = f"{len(self.fused)} groups of ops were replaced by fused ones; others run as they were captured."
        return Caveat("kernels-not-fused", text, round(streams / whole, 4) if whole else None)
