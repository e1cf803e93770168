"""Which layers multiply in 8 bits: linear ones of repeated blocks, but for routers and for sizes that units do not take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from foretell.graph import Graph, Op, Signature
from foretell.graph.operators import operator_of
from foretell.parallel.blocks import BlockOf, blocks

PRODUCTS: Final = ("aten.mm", "aten.addmm", "aten._grouped_mm")
_CHOOSES: Final = ("aten.topk", "aten.sort")
_TO_CHOICE: Final = 4  # ops between a router's product and its choice, at most
_ALIGNED: Final = 16  # sizes that 8-bit products take


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The modules that multiply in 8 bits, and the signatures that their ops share: equal stages are found by them."""

    modules: frozenset[str]
    signatures: dict[Signature, Signature] = field(default_factory=dict, compare=False, repr=False)

    def interned(self, signature: Signature) -> Signature:
        return self.signatures.setdefault(signature, signature)


def layers_in_fp8(graph: Graph) -> Layers:
    """Found in one replica's step, before it is split."""
    paths = blocks(graph)
    first, last = graph.precision.blocks_in_half
    where, chosen = BlockOf(paths), frozenset(paths[first : len(paths) - last])
    routers = _routers(graph)
    found = set()
    for op in graph.ops:
        if op.phase == "forward" and op.signature.name in PRODUCTS and where[op.module] in chosen:
            sizes = [graph.tensors[factor].layout.shape[-1] for factor in factors_of(op)]
            if all(size % _ALIGNED == 0 for size in sizes):
                found.add(op.module)
    return Layers(modules=frozenset(found) - routers)


def _routers(graph: Graph) -> frozenset[str]:
    """Modules whose products are followed by a choice among experts, which are computed in fp32."""
    found, recent = set(), list[Op]()
    for op in graph.ops:
        if op.phase != "forward":
            continue
        if op.signature.name in _CHOOSES:
            found |= {o.module for o in recent if o.signature.name in PRODUCTS}
        if operator_of(op.signature.name).launches:
            recent = [*recent, op][-_TO_CHOICE:]
    return frozenset(found)


def factors_of(op: Op) -> tuple[int, int]:
    shift = int(operator_of(op.signature.name).kind == "added")
    return op.inputs[shift], op.inputs[shift + 1]
