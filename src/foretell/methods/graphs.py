"""What methods that read graphs share: which examples and queries they can take, and how data flows between ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.methods.protocol import Example, Prediction, Query


def readable(examples: Sequence[Example], name: str) -> list[Example]:
    """Those that have a graph and something measured; a method that reads graphs needs some."""
    found = [e for e in examples if e.query.graph is not None and e.measured]
    if not found:
        raise InputError(f"{name} reads graphs, and none of {len(examples)} examples has one that was measured.")
    return found


def answers(
    queries: Sequence[Query], predict: Callable[[Sequence[Query]], Iterable[Prediction]], why: str
) -> list[Prediction]:
    """In order: what `predict` gives for queries that have a graph, and `why` there is nothing for the others."""
    captured = [query for query in queries if query.graph is not None]
    found = iter(predict(captured) if captured else ())
    return [Prediction(values={}, why=why) if query.graph is None else next(found) for query in queries]


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
