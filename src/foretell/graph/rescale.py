"""Extends a graph to another batch: two graphs of the same step at two sizes say how each dimension grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from foretell.errors import CaptureError
from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor, Value


def same_path(first: Graph, second: Graph) -> bool:
    """Whether two graphs run the same ops on the same tensors, sizes apart."""
    counts = [(len(graph.tensors), len(graph.storages), [op.target for op in graph.ops]) for graph in (first, second)]
    return counts[0] == counts[1]


def extend(first: Graph, second: Graph, *, sizes: tuple[int, int], to: int) -> Graph:
    """The graph at batch `to`, every number continued along the line through the two given ones."""
    if not same_path(first, second):
        raise CaptureError("the step takes another path at another batch size, so it cannot be extended to a third.")

    def continued(a: int, b: int) -> int:
        return b if a == b else max(round(b + (b - a) * (to - sizes[1]) / (sizes[1] - sizes[0])), 0)

    return _map(first, second, continued)


def scale(graph: Graph, *, size: int, to: int) -> Graph:
    """The graph at batch `to`, from one size alone: what is a multiple of it grows. Choose a size that few widths share."""
    return _map(graph, graph, lambda _, b: b // size * to if b % size == 0 else b)


def _map(first: Graph, second: Graph, continued: Callable[[int, int], int]) -> Graph:
    """`continued` takes a number at the first and at the second size to the number at the wanted size."""

    def layout(a: Layout, b: Layout) -> Layout:
        shape = tuple(continued(x, y) for x, y in zip(a.shape, b.shape, strict=True))
        strides = tuple(continued(x, y) for x, y in zip(a.strides, b.strides, strict=True))
        return Layout(shape, strides, b.dtype)

    def value(a: Value, b: Value) -> Value:
        if isinstance(b, tuple) and isinstance(a, tuple) and len(a) == len(b):
            return tuple(value(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(b, int) and isinstance(a, int) and not isinstance(b, bool | Input):
            return continued(a, b)
        return b

    def signature(a: Signature, b: Signature) -> Signature:
        return Signature(
            b.target,
            tuple(layout(x, y) for x, y in zip(a.inputs, b.inputs, strict=True)),
            tuple(layout(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)),
            tuple((name, value(x, y)) for (_, x), (name, y) in zip(a.arguments, b.arguments, strict=True)),
            b.mutates,
        )

    known: dict[tuple[Signature, Signature], Signature] = {}

    def op(a: Op, b: Op) -> Op:
        key = (a.signature, b.signature)
        if key not in known:
            known[key] = signature(*key)
        return dataclasses.replace(b, signature=known[key])

    def storage(a: Storage, b: Storage) -> Storage:
        return dataclasses.replace(b, nbytes=continued(a.nbytes, b.nbytes))

    def counted(a: int | None, b: int | None) -> int | None:
        return b if a is None or b is None else continued(a, b)

    facts = second.facts
    if first.facts.inputs is not None and facts.inputs is not None:
        shape = tuple(continued(a, b) for a, b in zip(first.facts.inputs, facts.inputs, strict=False))
        facts = dataclasses.replace(facts, inputs=shape)
    return dataclasses.replace(
        second,
        facts=facts,
        samples=counted(first.samples, second.samples),
        tokens=counted(first.tokens, second.tokens),
        ops=tuple(op(a, b) for a, b in zip(first.ops, second.ops, strict=True)),
        tensors=tuple(
            Tensor(layout(a.layout, b.layout), b.storage, continued(a.offset, b.offset))
            for a, b in zip(first.tensors, second.tensors, strict=True)
        ),
        storages=tuple(storage(a, b) for a, b in zip(first.storages, second.storages, strict=True)),
    )
