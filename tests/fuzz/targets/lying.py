"""Graphs that are consistent and lie in meaning: every file is read, and none says what a step did.

Sides and kinds of numbers are changed wherever they occur, with their strides and storages; operators, order, phases,
modules, counts and roles are exchanged among those that there are. An answer must be one that can be, or a refusal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import foretell
from foretell import Graph
from foretell.cost.model import DEFAULT
from foretell.graph import Layout, Op
from foretell.graph.types import ITEM_BYTES, PHASES, ROLES
from foretell.precision import PRECISIONS, Precision
from tests.fuzz.answers import check_forecast
from tests.fuzz.harness import Nonsense
from tests.fuzz.targets.graph import BASES, QUESTIONS, prepare

__all__ = ["prepare"]
WEIGHT, QUICK_WEIGHT = 4, 1
SIDES = (0, 1, 1, 2, 3, 7, 16, 17, 64, 100, 1000, 4096, 65536, 10**6, 2**31)
COUNTS = (1, 1, 2, 3, 16, 1000, 65536)
MOST_USED, LARGEST = 2.2, 2**55  # the masked half of attention counts, as FLOP counters count it


@cache
def base(path: Path) -> Graph:
    return Graph.load(path)


def relaid(graph: Graph, change: Callable[[Layout], Layout]) -> Graph:
    """With other layouts everywhere, in storages that hold them."""
    known = {layout: change(layout) for layout in {tensor.layout for tensor in graph.tensors}}

    def of(layout: Layout) -> Layout:
        return known[layout] if layout in known else known.setdefault(layout, change(layout))

    tensors = [replace(tensor, layout=of(tensor.layout)) for tensor in graph.tensors]
    needed = [0] * len(graph.storages)
    for tensor in tensors:
        last = sum((side - 1) * stride for side, stride in zip(tensor.layout.shape, tensor.layout.strides, strict=True))
        end = (tensor.offset + last + 1) * ITEM_BYTES[tensor.layout.dtype] if tensor.layout.numel else 0
        needed[tensor.storage] = max(needed[tensor.storage], end)
    if sum(needed) > LARGEST:  # it would be refused before anything is asked of it
        return graph
    ops = [
        replace(
            op,
            signature=replace(
                op.signature,
                inputs=tuple(map(of, op.signature.inputs)),
                outputs=tuple(map(of, op.signature.outputs)),
            ),
        )
        for op in graph.ops
    ]
    storages = [replace(s, nbytes=max(s.nbytes, least)) for s, least in zip(graph.storages, needed, strict=True)]
    return replace(graph, ops=tuple(ops), tensors=tuple(tensors), storages=tuple(storages))


def other_side(rng: random.Random, graph: Graph) -> Graph:
    """One size is another wherever it occurs."""
    sides = [side for tensor in graph.tensors for side in tensor.layout.shape]
    old, new = rng.choice(sides), rng.choice((*SIDES, rng.choice(sides)))

    def changed(layout: Layout) -> Layout:
        if old not in layout.shape:
            return layout
        shape = tuple(new if side == old else side for side in layout.shape)
        order = sorted(range(len(shape)), key=lambda i: layout.strides[i])
        strides, step = [0] * len(shape), 1
        for i in order:
            strides[i] = step if layout.strides[i] else 0
            step *= max(shape[i], 1) if layout.strides[i] else 1
        return Layout(shape, tuple(strides), layout.dtype)

    return relaid(graph, changed)


def other_numbers(rng: random.Random, graph: Graph) -> Graph:
    """One kind of numbers is another wherever it occurs."""
    old, new = rng.choice(graph.tensors).layout.dtype, rng.choice([*ITEM_BYTES])
    return relaid(graph, lambda layout: replace(layout, dtype=new) if layout.dtype == old else layout)


def other_operator(rng: random.Random, graph: Graph) -> Graph:
    """One operator is another that takes and gives as many tensors, wherever it occurs."""
    one = rng.choice(graph.ops).signature
    shape = (len(one.inputs), len(one.outputs), one.mutates)
    like = [
        op.signature
        for path in BASES
        for op in base(path).ops
        if (len(op.signature.inputs), len(op.signature.outputs), op.signature.mutates) == shape
    ]
    other = rng.choice(like)
    arguments = other.arguments if rng.random() < 0.7 else one.arguments
    lie = replace(one, target=other.target, arguments=arguments)
    return replace(graph, ops=tuple(replace(op, signature=lie) if op.signature == one else op for op in graph.ops))


def _each(rng: random.Random, graph: Graph, change: Callable[[Op], Op]) -> Graph:
    share = rng.choice((0.01, 0.1, 1.0))
    return replace(graph, ops=tuple(change(op) if rng.random() < share else op for op in graph.ops))


def other_order(rng: random.Random, graph: Graph) -> Graph:
    """Ops of a stretch in another order, over storages that live throughout."""
    ops, begin = list(graph.ops), rng.randrange(len(graph.ops))
    part = ops[begin : begin + rng.choice((2, 10, len(ops)))]
    rng.shuffle(part)
    ops[begin : begin + len(part)] = part
    storages = tuple(replace(storage, born=-1, freed=len(ops)) for storage in graph.storages)
    return replace(graph, ops=tuple(ops), storages=storages)


def other_places(rng: random.Random, graph: Graph) -> Graph:
    """Phases and modules exchanged."""
    modules = sorted({op.module for op in graph.ops})
    if rng.random() < 0.5:
        return _each(rng, graph, lambda op: replace(op, phase=rng.choice(PHASES)))
    return _each(rng, graph, lambda op: replace(op, module=rng.choice(modules)))


def other_counts(rng: random.Random, graph: Graph) -> Graph:
    return _each(rng, graph, lambda op: replace(op, times=rng.choice(COUNTS)))


def other_roles(rng: random.Random, graph: Graph) -> Graph:
    """Memory that is something else; parameters and gradients stay paired, or are not recorded."""
    paired = graph.gradients or {}
    fixed = {*paired, *paired.values()} if rng.random() < 0.5 else set()
    storages = tuple(
        storage if i in fixed or rng.random() < 0.7 else replace(storage, role=rng.choice(ROLES))
        for i, storage in enumerate(graph.storages)
    )
    return replace(graph, storages=storages, gradients=graph.gradients if fixed else None)


def other_words(rng: random.Random, graph: Graph) -> Graph:
    """What is said of the whole step."""
    return replace(
        graph,
        training=rng.random() < 0.5,
        precision=Precision.parse(rng.choice([*PRECISIONS])),
        grad_accumulation=rng.choice(COUNTS),
        samples=rng.choice((None, *COUNTS, 2**40)),
        tokens=rng.choice((None, *COUNTS, 2**40)),
    )


LIES = (
    other_side, other_side, other_side, other_numbers, other_operator, other_operator, other_order, other_places, other_counts,
    other_roles, other_words,
)  # fmt: skip


def make(rng: random.Random) -> bytes:
    graph = base(rng.choice(BASES))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        graph = rng.choice(LIES)(rng, graph)
    return graph.to_bytes()


def use(data: bytes, rng: random.Random) -> None:
    graph = Graph.from_bytes(data, "a liar's graph")
    cluster, plan = rng.choice(QUESTIONS)
    answer = foretell.forecast(graph, cluster, plan, model=rng.choice(("roofline", DEFAULT)))
    check_forecast(answer)
    if (answer.throughput.mfu or 0) > MOST_USED:
        raise Nonsense(f"MFU is {answer.throughput.mfu}")
