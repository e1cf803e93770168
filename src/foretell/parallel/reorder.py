"""A role whose ops run in another order, or without some of them: positions move everywhere they are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from foretell.graph import Storage
from foretell.program import Role

_NONE: Final[Mapping[int, int]] = MappingProxyType({})


def reordered(role: Role, order: Sequence[int], instead: Mapping[int, int] = _NONE) -> Role:
    """The role with its ops in an order; `instead` has, for each that is left out, the op that stands for it."""
    graph, end = role.graph, len(role.graph.ops)
    place = {old: new for new, old in enumerate(order)} | {-1: -1, end: len(order)}
    place |= {gone: place[standing] for gone, standing in instead.items()}
    ops = tuple(graph.ops[old] for old in order)
    last: dict[int, int] = {}
    for position, op in enumerate(ops):
        for t in (*op.inputs, *op.outputs):
            last[graph.tensors[t].storage] = position

    def lives(number: int, s: Storage) -> Storage:
        freed = place[s.freed] if s.freed < end else s.freed - end + len(order)
        return Storage(s.nbytes, s.role, place.get(s.born, s.born), max(freed, last.get(number, -1)))

    collectives = tuple(
        replace(
            c,
            starts_after=place[c.starts_after],
            waited_for_by=place.get(c.waited_for_by, c.waited_for_by),
            issued_by=None if c.issued_by is None else place[c.issued_by],
        )
        for c in role.collectives
    )
    storages = tuple(lives(number, s) for number, s in enumerate(graph.storages))
    return replace(role, graph=replace(graph, ops=ops, storages=storages), collectives=collectives)
