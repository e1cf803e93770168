"""Activation checkpointing: a unit's activations are dropped after its forward pass and recomputed for its backward.

Units are the repeated blocks (`full`), the first part of them (a fraction), or what runs around each attention
(`selective`). `selective-op` recomputes blocks except for what is dear: every other product, attention, and sums that are
scattered, as torchtitan does. As in torch, recomputing stops where the last thing that the backward pass needs is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretell.errors import PlanError
from foretell.graph import Graph, Op
from foretell.graph.operators import operator_of
from foretell.parallel.blocks import Span, blocks, passes
from foretell.parallel.flow import Flow
from foretell.parallel.recompute import Unit, recomputed
from foretell.plans import Plan
from foretell.program import Role

_SOFTMAXES: Final = ("aten._softmax", "aten._safe_softmax")
_WEIGHING: Final = ("aten.bmm", "aten.baddbmm")  # products that weigh values with what a softmax made
_NEARLY: Final = 1e-9  # a fraction such as 1/3 is not exact


def checkpointed(role: Role, plan: Plan) -> Role:
    if plan.checkpointing in ("none", 0) or not role.graph.training:
        return role
    flow = Flow(role)
    units = list(_units(flow, plan.checkpointing))
    if not units:
        raise PlanError(
            f"checkpointing={plan.checkpointing} finds nothing to recompute in {role.graph.name!r}: no "
            f"{'attention' if plan.checkpointing == 'selective' else 'repeated blocks'}. Leave it out."
        )
    return recomputed(role, units, flow)


def _units(flow: Flow, what: str | float) -> Iterator[Unit]:
    graph = flow.graph
    if what == "selective":
        yield from _attentions(flow)
        return
    paths = blocks(graph)
    if not isinstance(what, str):  # evenly among all, so that each stage of a pipeline has its part
        paths = tuple(path for i, path in enumerate(paths) if int((i + 1) * what + _NEARLY) > int(i * what + _NEARLY))
    for spans in passes(graph, paths):
        for path in paths:
            if path in spans["forward"] and path in spans["backward"]:
                block = spans["forward"][path]
                kept = _dear(graph, block) if what == "selective-op" else frozenset()
                yield Unit(first=block.first, last=block.last, kept=kept)


def _dear(graph: Graph, block: Span) -> frozenset[int]:
    """The ops of a block whose results torchtitan's policy keeps: the first product, the third, …, and attention."""
    ops = [(p, graph.ops[p].signature.name) for p in range(block.first, block.last + 1)]
    products = [p for p, name in ops if name == "aten.mm"]
    return frozenset(products[::2]) | {p for p, name in ops if operator_of(name).is_attention}


def _attentions(flow: Flow) -> Iterator[Unit]:
    """Every attention, or softmax between products, with as much of its module before it as drops most.

    An op before it that makes as much as it reads, like a rotation, would only have other values kept.
    """
    ops = flow.graph.ops
    for position, op in enumerate(ops):
        if op.phase != "forward" or not _is_attention(flow, position):
            continue
        first = last = position
        while last + 1 < len(ops) and _is_part(ops[last + 1], op.module):
            last += 1
        while first > 0 and _is_part(ops[first - 1], op.module):
            first -= 1
        units = [Unit(first=begin, last=last) for begin in range(position, first - 1, -1)]
        yield max(units, key=lambda unit: _saved(flow, unit))


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
        if any(flow.graph.ops[p].signature.name in _WEIGHING for p in readers):
            return True
        weights = frozenset(s for p in readers for s in flow.made[p])
    return False


def _saved(flow: Flow, unit: Unit) -> int:
    """Bytes that a unit drops, less those that are kept to run it again and would not be otherwise."""
    graph, inside = flow.graph, range(unit.first, unit.last + 1)
    read = {graph.tensors[t].storage for p in inside for t in graph.ops[p].inputs} - flow.made_by(inside)
    kept = [s for s in read if graph.storages[s].role == "temporary" and graph.storages[s].born >= 0]
    return sum(graph.storages[s].nbytes for s in unit.dropped(flow)) - sum(graph.storages[s].nbytes for s in kept)
