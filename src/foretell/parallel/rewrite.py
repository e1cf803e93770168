"""Edits of a graph that passes share: ops put in, layouts changed, storages added, lifetimes kept right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from foretell.errors import PlanError
from foretell.graph import Graph, Input, Layout, Op, Storage, Tensor
from foretell.plans import Plan

NOTHING: Final = Storage(0, "host", -1, -1)  # stands for a storage that a rank does not have


def refuse_split_models(plan: Plan, what: str, instead: str) -> None:
    """For what keeps a whole model on every device."""
    splitting = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1] + ["zero"] * (plan.zero > 0)
    if splitting:
        raise PlanError(f"{what}, which {', '.join(splitting)} would split. {instead}")


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


def shard_of(layout: Layout, ways: int) -> Layout:
    """A rank's part of a tensor cut along its first dimension, as torch cuts it: all parts padded to the largest."""
    if not layout.shape:
        return layout
    shape = (-(-layout.shape[0] // ways), *layout.shape[1:])
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return Layout(shape, tuple(reversed(strides)), layout.dtype)


def on_tensors(op: Op, tensors: Sequence[Tensor], part: Callable[[int], int]) -> Op:
    """An op on a part of each tensor that it takes and makes."""
    inputs, outputs = (tuple(map(part, side)) for side in (op.inputs, op.outputs))
    read, written = (tuple(tensors[t].layout for t in side) for side in (inputs, outputs))
    signature = replace(op.signature, inputs=read, outputs=written)
    return replace(op, signature=signature, inputs=inputs, outputs=outputs)


def shard_update(graph: Graph, ways: int, own: frozenset[int] = frozenset(), own_ways: int = 1) -> Graph:
    """The optimizer's ops, and the state they keep, on one of `ways` parts of every parameter.

    Parameters whose gradients are in `own` have other ways, and so has what is updated with them.
    """
    update, tensors = first_of(graph, "optimizer"), list(graph.tensors)
    own = _updated_with(graph, own, update) if own else own
    parts: dict[tuple[Layout, int], Layout] = {}
    made: dict[int, int] = {}

    def ways_of(storage: int) -> int:
        return own_ways if storage in own else ways

    def part(number: int) -> int:
        if number not in made:
            made[number] = number
            t = graph.tensors[number]
            key = t.layout, ways_of(t.storage)
            if key not in parts:
                parts[key] = shard_of(*key)
            if graph.storages[t.storage].role != "host" and parts[key] != t.layout:
                made[number] = len(tensors)
                tensors.append(Tensor(parts[key], t.storage, t.offset))
        return made[number]

    ops = list(graph.ops)
    for position, op in enumerate(ops[update:], start=update):
        ops[position] = on_tensors(op, tensors, part)
    changed = {
        number: replace(
            s, nbytes=s.nbytes if s.nbytes <= 8 else -(-s.nbytes // ways_of(number))
        )  # counters are not cut
        for number, s in enumerate(graph.storages)
        if s.role == "optimizer" or (s.role == "temporary" and s.born >= update)
    }
    return with_storages(replace(graph, ops=tuple(ops), tensors=tuple(tensors)), changed)


def _updated_with(graph: Graph, storages: frozenset[int], update: int) -> frozenset[int]:
    """What the update takes in one row with any of these: parameters, their state, and what is computed on the way."""
    found = set(storages)
    rows = [
        {graph.tensors[t].storage for t in row if graph.tensors[t].layout.numel > 1}  # counters are all alike
        for op in graph.ops[update:]
        for row in rows_of_update(op)
    ]
    for _ in range(2):  # the second round knows what the later ops of the first found out
        for row in rows:
            if not found.isdisjoint(row):
                found |= row
    return frozenset(found)
