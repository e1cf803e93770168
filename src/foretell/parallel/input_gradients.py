"""Layers that fused trainers join: queries, keys and values, or gate and up, are one product there.

What such layers give back to the rows they all read is summed inside of that product, so no op adds it up. Layers are
joined if three or more read the same rows, or if one op makes what both of two take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from foretell.graph import Graph, Op, Storage, Tensor
from foretell.parallel.reorder import reordered
from foretell.parallel.sharding.propagate import PRODUCTS
from foretell.program import Role

_JOINED: Final = 3


@dataclass(frozen=True, slots=True)
class _Term:
    """What some layers give back to the rows that they read."""

    products: tuple[int, ...]
    takes_from: frozenset[int]  # ops that made what the products take
    adds: tuple[tuple[int, int], ...] = ()  # an op that adds, and the product whose result it adds


def summed_in_products(role: Role) -> Role:
    """The role without the ops that add up what joined layers give back."""
    graph = role.graph
    instead = {
        add: product
        for term in _sums(graph)
        if len(term.products) >= _JOINED or len(term.takes_from) == 1
        for add, product in term.adds
    }
    if not instead:
        return role
    ops, tensors, storages = list(graph.ops), list(graph.tensors), list(graph.storages)
    for add, product in instead.items():
        made, result = ops[product].outputs[0], graph.tensors[graph.ops[add].outputs[0]]
        gone = graph.tensors[made].storage
        storages[gone] = Storage(0, storages[gone].role, storages[gone].born, storages[gone].freed)
        tensors.append(Tensor(graph.tensors[made].layout, result.storage, result.offset))
        ops[product] = replace(ops[product], outputs=(len(tensors) - 1,))
    written = replace(role, graph=replace(graph, ops=tuple(ops), tensors=tuple(tensors), storages=tuple(storages)))
    return reordered(written, [at for at in range(len(ops)) if at not in instead], instead)


def _sums(graph: Graph) -> list[_Term]:
    """Terms that ops add up, as far as they go."""
    storage_of = [t.storage for t in graph.tensors]
    terms: dict[int, _Term] = {}
    written: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase == "optimizer":
            break
        read, made = ([storage_of[t] for t in side] for side in (op.inputs, op.outputs))
        if op.phase == "backward" and made and made[0] not in read:
            found = _product(graph, op, position, written) or _added(graph, op, position, [terms.get(s) for s in read])
            if found is not None:
                terms[made[0]] = found
                for s in read if found.adds else ():
                    terms.pop(s, None)
        written.update((s, position) for s in made if s not in read)
    return [term for term in terms.values() if term.adds]


def _product(graph: Graph, op: Op, position: int, written: dict[int, int]) -> _Term | None:
    if op.signature.name not in PRODUCTS or graph.storages[graph.tensors[op.outputs[0]].storage].role == "gradient":
        return None
    taken = graph.tensors[op.inputs[-2]].storage
    return _Term((position,), frozenset((written.get(taken, -1),)))


def _added(graph: Graph, op: Op, position: int, terms: list[_Term | None]) -> _Term | None:
    """The term that an op makes of two, if layers of the same part of a block made them."""
    if op.signature.name != "aten.add" or op.signature.mutates or len(terms) != 2:
        return None
    first, second = terms
    if first is None or second is None or first is second:
        return None
    last = max(first, second, key=lambda term: term.products[-1])
    parents = {graph.ops[p].module.rpartition(".")[0] for p in (*first.products, *second.products)}
    if len(parents) > 1 or len(last.products) > 1:
        return None
    products = tuple(sorted((*first.products, *second.products)))
    takes_from = first.takes_from | second.takes_from
    return _Term(products, takes_from, (*first.adds, *second.adds, (position, last.products[-1])))
