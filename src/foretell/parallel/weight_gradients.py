"""Gradients of weights: no other layer waits for them, so they can run later than a backward pass makes them.

Megatron's and Transformer Engine's layers make the gradients of their inputs first, let tensor-parallel ranks add them
up, and make those of their weights meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from foretell.graph import Graph
from foretell.parallel.reorder import reordered
from foretell.parallel.sharding.propagate import PRODUCTS
from foretell.program import Collective, Role

_SUMS: Final = ("all-reduce", "reduce-scatter")
_NEAR: Final = 32  # ops of one layer's backward pass, at most


def weight_gradients(graph: Graph, end: int) -> frozenset[int]:
    """Backward ops before `end` whose results only gradients of their own module need."""
    storage_of = [t.storage for t in graph.tensors]
    wanted: dict[int, set[str]] = {}  # storage → modules that make gradients of it, "…" where others want it
    found = set()
    for position in range(end - 1, -1, -1):
        op = graph.ops[position]
        if op.phase != "backward":
            continue
        outputs = [storage_of[t] for t in op.outputs]
        for_gradients = bool(outputs) and all(
            graph.storages[s].role == "gradient" or (s in wanted and wanted[s] <= {op.module, ""}) for s in outputs
        )
        if for_gradients:
            found.add(position)
        for t in op.inputs:
            wanted.setdefault(storage_of[t], set()).add(op.module if for_gradients else "…")
    return frozenset(found)


def behind_sums(role: Role, lane: str) -> Role:
    """The role with gradients of weights after the sums of a lane that their layers' inputs have."""
    graph = role.graph
    sums = sorted(c.starts_after for c in role.collectives if c.lane == lane and _is_of_inputs(c, graph))
    if not sums:
        return role
    own: dict[str, list[int]] = defaultdict(list)
    for position in sorted(weight_gradients(graph, len(graph.ops))):
        own[graph.ops[position].module].append(position)
    later: dict[int, list[int]] = {}
    for done in sums:
        products = dict(_products_of(graph, done))
        first = min(products.values(), default=done)
        near = (p for module in products for p in own[module] if first - _NEAR < p < done)
        later[done] = sorted(near)
    moved = {position for positions in later.values() for position in positions}
    order = (p for at in range(len(graph.ops)) if at not in moved for p in (at, *later.get(at, ())))
    return reordered(role, list(order))


def _is_of_inputs(collective: Collective, graph: Graph) -> bool:
    wanted = collective.waited_for_by
    return (
        collective.kind in _SUMS
        and graph.ops[collective.starts_after].phase == "backward"
        and wanted < len(graph.ops)
        and graph.ops[wanted].phase == "backward"
    )


def _products_of(graph: Graph, done: int) -> Iterator[tuple[str, int]]:
    """Modules whose products make the terms of a sum that is done at an op, and where."""
    terms = {graph.tensors[t].storage for t in graph.ops[done].outputs}
    for position in range(done, max(done - 4 * _NEAR, -1), -1):
        op = graph.ops[position]
        made = {graph.tensors[t].storage for t in op.outputs}
        if made.isdisjoint(terms):
            continue
        if op.signature.name in PRODUCTS:
            yield op.module, position
        else:
            terms.update(graph.tensors[t].storage for t in op.inputs)
