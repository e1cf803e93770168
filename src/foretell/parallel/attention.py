"""Attention in a step, fused or written out, and how much around it is worth recomputing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from foretell.graph import Op
from foretell.graph.operators import operator_of
from foretell.parallel.flow import Flow
from foretell.parallel.recompute import Unit

_SOFTMAXES: Final = ("aten._softmax", "aten._safe_softmax")
WEIGHING: Final = ("aten.bmm", "aten.baddbmm")  # products that weigh values with what a softmax made


def attentions(flow: Flow, positions: Iterable[int]) -> Iterator[int]:
    """Ops of the forward pass among these that are an attention, or a softmax between products."""
    return (p for p in positions if flow.graph.ops[p].phase == "forward" and _is_attention(flow, p))


def attention_unit(flow: Flow, position: int) -> Unit:
    """An attention, with as much of its module before it as drops most.

    An op before it that makes as much as it reads, like a rotation, would only have other values kept.
    """
    ops, module = flow.graph.ops, flow.graph.ops[position].module
    first = last = position
    while last + 1 < len(ops) and _is_part(ops[last + 1], module):
        last += 1
    while first > 0 and _is_part(ops[first - 1], module):
        first -= 1
    units = [Unit(first=begin, last=last) for begin in range(position, first - 1, -1)]
    return max(units, key=lambda unit: _saved(flow, unit))


def _is_part(op: Op, module: str) -> bool:
    """Whether an op of the forward pass is a module's own, or of one inside it that has no products, like a dropout."""
    if op.phase != "forward":
        return False
    inside = op.module.startswith(f"{module}.") and operator_of(op.signature.name).family != "matmul"
    return op.module == module or inside


def _is_attention(flow: Flow, position: int) -> bool:
    op = flow.graph.ops[position]
    if op.signature.name not in _SOFTMAXES:
        return operator_of(op.signature.name).is_attention
    weights = flow.made[position]
    while weights:  # a router's are no weights of a product
        readers = {p for s in weights for p in flow.readers.get(s, ()) if _is_part(flow.graph.ops[p], op.module)}
        if any(flow.graph.ops[p].signature.name in WEIGHING for p in readers):
            return True
        weights = frozenset(s for p in readers for s in flow.made[p])
    return False


def _saved(flow: Flow, unit: Unit) -> int:
    """Bytes that a unit drops, less those that are kept to run it again and would not be otherwise."""
    graph, inside = flow.graph, range(unit.first, unit.last + 1)
    read = {graph.tensors[t].storage for p in inside for t in graph.ops[p].inputs} - flow.made_by(inside)
    kept = [s for s in read if graph.storages[s].role == "temporary" and graph.storages[s].born >= 0]
    return sum(graph.storages[s].nbytes for s in unit.dropped(flow)) - sum(graph.storages[s].nbytes for s in kept)
