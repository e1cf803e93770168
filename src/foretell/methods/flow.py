"""How data flows between the ops of a graph."""

from __future__ import annotations

from collections.abc import Iterable

from foretell.graph import Graph


def data_flow(graph: Graph, among: Iterable[int] | None = None) -> list[tuple[int, int]]:
    """From the op that wrote a storage last to every op that reads it, each pair once; of all ops, or among some in order."""
    storage = [t.storage for t in graph.tensors]
    writer: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    for i in range(len(graph.ops)) if among is None else among:
        op = graph.ops[i]
        read = dict.fromkeys(storage[t] for t in op.inputs)
        pairs += dict.fromkeys((writer[s], i) for s in read if writer.get(s, i) != i)
        written = (*op.outputs, *(op.inputs[m] for m in op.signature.mutates if m < len(op.inputs)))
        writer |= dict.fromkeys((storage[t] for t in written), i)
    return pairs
