"""Graphs of a single op: every operator that something is known of, called with tensors and arguments of all kinds.

The other graphs have the operators that their networks have; this one has all of the table, with arguments as torch's
own description of the operator names them, some of another kind.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Final, get_args

import torch

import foretell
from foretell import Graph
from foretell.cost.model import DEFAULT
from foretell.graph import ITEM_BYTES, Input, Layout, Op, Signature, Storage, Tensor
from foretell.graph.operators import Family, names_of
from foretell.graph.types import PHASES, Value
from foretell.precision import PRECISIONS, Precision
from tests.fuzz.answers import check_forecast

WEIGHT, QUICK_WEIGHT = 3, 1
SIDES: Final = (0, 1, 1, 2, 3, 4, 8, 8, 17, 64, 64, 1000, 10**6)
LARGEST: Final = 2**36  # bytes of a tensor, so that most fit into memory
DTYPES: Final = ("float32", "float32", "bfloat16", "float16", *ITEM_BYTES)
DEVICES: Final = ("h200", "a100-sxm-40g", "t4", "v100-sxm-16g", "gaudi2", "cpu")
NUMBERS: Final = (0, 1, 1, 2, 2, 3, -1, 7, 64, 1000, 2**31, -(2**63))


@cache
def names() -> tuple[str, ...]:
    families = (name for family in get_args(Family) for name in names_of(family))
    return tuple(dict.fromkeys(families))


@cache
def parameters(name: str) -> tuple[tuple[str, str, bool], ...]:
    """Name and kind of each argument, and whether it is written to; none for operators that are not torch's."""
    package, _, operator = name.partition(".")
    overloads = getattr(getattr(torch.ops, package), operator, None) if package == "aten" else None
    if overloads is None:
        return (("self", "Tensor", False), ("other", "Optional[Tensor]", False))
    described = getattr(overloads, overloads.overloads()[0])._schema.arguments
    return tuple((a.name, str(a.type), bool(a.alias_info and a.alias_info.is_write)) for a in described)


def layout(rng: random.Random, known: list[Layout]) -> Layout:
    """A tensor; often one that is there already, or one with as many sides, else hardly an operator takes it."""
    if known and rng.random() < 0.5:
        return rng.choice(known)
    rank = (
        len(rng.choice(known).shape) if known and rng.random() < 0.7 else rng.choice((0, 1, 2, 2, 3, 3, 4, 4, 4, 5, 7))
    )
    shape = [rng.choice(SIDES) for _ in range(rank)]
    made = Layout.contiguous(shape, rng.choice(DTYPES))
    while made.nbytes > LARGEST:
        shape[shape.index(max(shape))] = 2
        made = Layout.contiguous(shape, made.dtype)
    if rank > 1 and rng.random() < 0.3:
        order = rng.sample(range(rank), rank)
        strides = [0] * rank
        step = 1
        for side in order:
            strides[side] = step if rng.random() < 0.9 else 0
            step *= max(shape[side], 1)
        made = Layout(tuple(shape), tuple(strides), made.dtype)
    return made


class _Call:
    """The tensors and arguments of one call, as they are made up."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.inputs: list[Layout] = []

    def tensor(self) -> Input:
        self.inputs.append(layout(self.rng, self.inputs))
        return Input(len(self.inputs) - 1)

    def value(self, kind: str) -> Value:
        rng = self.rng
        if rng.random() < 0.05:
            return rng.choice((None, True, -1, 1.5, "x", (), (1,), (None,), Input(0) if self.inputs else 0))
        if kind.startswith("Optional["):
            return None if rng.random() < 0.4 else self.value(kind[len("Optional[") : -1])
        if kind.startswith("List["):
            inner = kind[len("List[") : -1]
            return tuple(self.value(inner) for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4))))
        match kind:
            case "Tensor":
                return self.tensor()
            case "bool":
                return rng.random() < 0.5
            case "float" | "number":
                return rng.choice((0.0, 1.0, 0.5, -1.0, 1e300))
            case "str":
                return rng.choice(("mean", "none", "x"))
            case _:
                return rng.choice(NUMBERS[:8]) if rng.random() < 0.9 else rng.choice(NUMBERS)


def call(rng: random.Random) -> Signature:
    name = rng.choice(names())
    made = _Call(rng)
    arguments: list[tuple[str, Value]] = []
    mutates: list[int] = []
    for parameter, kind, written in parameters(name):
        before = len(made.inputs)
        if rng.random() < 0.05:
            continue
        arguments.append((parameter, made.value(kind)))
        mutates += range(before, len(made.inputs)) if written else ()
    count = 0 if mutates and rng.random() < 0.9 else rng.choice((0, 1, 1, 1, 1, 2, 3, 3))
    outputs = tuple(layout(rng, made.inputs) for _ in range(count))
    return Signature(f"{name}.default", tuple(made.inputs), outputs, tuple(arguments), tuple(mutates))


def make(rng: random.Random) -> bytes:
    """Several calls that are read one by one: a file with one that cannot be is refused whole."""
    graph = _graph(rng, call(rng))
    return graph.to_bytes()


def _graph(rng: random.Random, signature: Signature) -> Graph:
    layouts = (*signature.inputs, *signature.outputs)
    storages = tuple(Storage(_extent(each), "activation", -1, 1) for each in layouts)
    tensors = tuple(Tensor(each, i) for i, each in enumerate(layouts))
    inputs = tuple(range(len(signature.inputs)))
    op = Op(
        signature, rng.choice(PHASES), "net", inputs, tuple(range(len(inputs), len(layouts))), rng.choice((1, 1, 7))
    )
    return Graph(
        name="one op",
        training=True,
        precision=Precision.parse(rng.choice([*PRECISIONS])),
        ops=(op,),
        tensors=tensors,
        storages=storages,
        samples=8,
    )


def _extent(of: Layout) -> int:
    last = sum((side - 1) * stride for side, stride in zip(of.shape, of.strides, strict=True))
    return (last + 1) * ITEM_BYTES[of.dtype] if of.numel else 0


def prepare() -> None:
    names()


def use(data: bytes, rng: random.Random) -> None:
    graph = Graph.from_bytes(data, "a stranger's graph")
    answer = foretell.forecast(graph, rng.choice(DEVICES), model=rng.choice(("roofline", DEFAULT, DEFAULT)))
    check_forecast(answer)
