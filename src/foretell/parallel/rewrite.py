"""Edits of a graph that passes share: ops put in, layouts changed, storages added, lifetimes kept right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor

NOTHING: Final = Storage(0, "host", -1, -1)  # stands for a storage that a rank does not have


def with_storages(graph: Graph, changed: Mapping[int, Storage], added: Sequence[Storage] = ()) -> Graph:
    storages = list(graph.storages)
    for number, storage in changed.items():
        storages[number] = storage
    return replace(graph, storages=(*storages, *added))


def first_of(graph: Graph, phase: str) -> int:
    """The first op of a phase, or past the last op where there is none."""
    return next((i for i, op in enumerate(graph.ops) if op.phase == phase), len(graph.ops))


def last_of(graph: Graph, phase: str) -> int:
    return max((i for i, op in enumerate(graph.ops) if op.phase == phase), default=-1)


def rows_of_update(op: Op) -> Sequence[Sequence[int]]:
    """The tensors of each parameter that an op of the update takes; one row where it takes no lists."""
    lists = [
        v for _, v in op.signature.arguments if isinstance(v, tuple) and v and all(isinstance(i, Input) for i in v)
    ]
    if not lists:
        return [(*op.inputs, *op.outputs)]
    rows = [[op.inputs[v.index] for v in row if isinstance(v, Input)] for row in zip(*lists, strict=False)]
    if len(op.outputs) == len(rows):
        for row, output in zip(rows, op.outputs, strict=True):
            row.append(output)
    return rows


class Relayout:
    """Gives ops new layouts: tensors that change get a number of their own, equal signatures stay one object."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors = list(graph.tensors)
        self._made: dict[tuple[int, Layout], int] = {}
        self._signatures: dict[tuple[object, ...], Signature] = {}

    def op(self, op: Op, layout: Callable[[int], Layout]) -> Op:
        inputs = tuple(self._tensor(t, layout(t)) for t in op.inputs)
        outputs = tuple(self._tensor(t, layout(t)) for t in op.outputs)
        if inputs == op.inputs and outputs == op.outputs:
            return op
        return replace(op, signature=self.signature(op.signature, inputs, outputs), inputs=inputs, outputs=outputs)

    def signature(self, signature: Signature, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Signature:
        layouts = [tuple(self.tensors[t].layout for t in side) for side in (inputs, outputs)]
        key = (id(signature), *(tuple(map(id, side)) for side in layouts))
        if key not in self._signatures:
            self._signatures[key] = replace(signature, inputs=layouts[0], outputs=layouts[1])
        return self._signatures[key]

    def _tensor(self, number: int, layout: Layout) -> int:
        tensor = self._graph.tensors[number]
        if tensor.layout == layout:
            return number
        key = (number, layout)
        if key not in self._made:
            self._made[key] = len(self.tensors)
            self.tensors.append(Tensor(layout, tensor.storage, tensor.offset))
        return self._made[key]


def contiguous(shape: Sequence[int], dtype: str) -> Layout:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return Layout(tuple(shape), tuple(reversed(strides)), dtype)


def shard_of(layout: Layout, ways: int) -> Layout:
    """A rank's part of a tensor cut along its first dimension, as torch cuts it: all parts padded to the largest."""
    if not layout.shape:
        return layout
    return contiguous((-(-layout.shape[0] // ways), *layout.shape[1:]), layout.dtype)


def shard_update(graph: Graph, ways: int) -> Graph:
    """The optimizer's ops, and the state they keep, on one of `ways` parts of every parameter."""
    relayout = Relayout(graph)
    cut: dict[int, Layout] = {}

    def layout(tensor: int) -> Layout:
        t = graph.tensors[tensor]
        if graph.storages[t.storage].role == "host":
            return t.layout
        if id(t.layout) not in cut:
            cut[id(t.layout)] = shard_of(t.layout, ways)
        return cut[id(t.layout)]

    ops = tuple(relayout.op(op, layout) if op.phase == "optimizer" else op for op in graph.ops)
    update = first_of(graph, "optimizer")
    changed = {}
    for number, storage in enumerate(graph.storages):
        if storage.role == "optimizer" or (storage.role == "temporary" and storage.born >= update):
            changed[number] = replace(storage, nbytes=_shard_bytes(storage, ways))
    return with_storages(replace(graph, ops=ops, tensors=tuple(relayout.tensors)), changed)


def _shard_bytes(storage: Storage, ways: int) -> int:
    return storage.nbytes if storage.nbytes <= 8 else -(-storage.nbytes // ways)  # counters are not cut
