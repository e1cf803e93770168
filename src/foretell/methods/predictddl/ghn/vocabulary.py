"""Captured steps as the hypernetwork reads them, in the fifteen kinds of GHN-2.

Only the forward pass is read; the backward pass mirrors it. What no kind stands for (activations, casts, views) is left
out, and whatever reads it is joined to whatever it read, as DeepNets-1M does with its ReLUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from foretell.errors import InputError
from foretell.graph import Graph, Op, Signature
from foretell.graph.operators import operator_of
from foretell.methods.predictddl.ghn.architecture import Architecture, Node

_MAX_POOLS: Final = frozenset({f"aten.max_pool{n}d_with_indices" for n in (1, 2, 3)} | {"aten.adaptive_max_pool2d"})
_MEANS: Final = frozenset({"aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d", "aten.mean",
                           "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d"})  # fmt: skip
_SUMS: Final = frozenset({"aten.add", "aten.add_"})
_SCALES: Final = frozenset({"aten.mul", "aten.mul_"})


@dataclass(slots=True)
class Reader:
    """The nodes so far, and which of them each tensor's values come from; a parameter's come from none."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    makers: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, kind: str, inputs: Sequence[int], shape: tuple[int, ...] = (), work: tuple[float, ...] = ()) -> int:
        self.nodes.append(Node(kind=kind, inputs=tuple(dict.fromkeys(inputs)), shape=shape, work=work))
        return len(self.nodes) - 1

    def came_from(self, tensor: int) -> tuple[int, ...]:
        if tensor not in self.makers and self._role(tensor) == "input":
            layout = self.graph.tensors[tensor].layout
            self.makers[tensor] = (self.add("input", (), four(layout.shape[1:])),)
        return self.makers.get(tensor, ())

    def is_parameter(self, tensor: int) -> bool:
        return not self.came_from(tensor) and self._role(tensor) == "parameter"

    def _role(self, tensor: int) -> str:
        return self.graph.storages[self.graph.tensors[tensor].storage].role


def _as_kind(reader: Reader, op: Op, sources: tuple[int, ...]) -> int | None:
    signature, name = op.signature, op.signature.name
    facts = operator_of(name)
    if facts.family == "convolution":
        return _convolution(reader, signature, sources)
    if facts.family == "matmul" and facts.kind != "grouped":
        return _product(reader, op, sources)
    if facts.family == "norm":
        at = reader.add("bn" if facts.kind == "batch" else "ln", sources, _vector(signature, "weight"))
        return reader.add("bias", (at,), _vector(signature, "bias")) if signature.tensor("bias") else at
    if name in _MAX_POOLS:
        return reader.add("max_pool", sources)
    if name in _MEANS:
        shape = signature.outputs[0].shape
        whole = all(side == 1 for side in shape[2:]) and len(signature.inputs[0].shape) > 2
        return reader.add("glob_avg" if whole else "avg_pool", sources)
    if facts.family == "attention" or name == "aten._softmax":
        return reader.add("msa", sources)
    if name == "aten.cat" and len(sources) > 1:
        return reader.add("concat", sources)
    if name in _SUMS:
        return _sum(reader, op, sources)
    if name in _SCALES and len(sources) > 1 and len({layout.numel for layout in signature.inputs}) > 1:
        return reader.add("cse", sources)  # a map of features times one number per channel
    return None


def _convolution(reader: Reader, signature: Signature, sources: tuple[int, ...]) -> int:
    weight = signature.tensor("weight") or signature.inputs[1]
    groups, dilation = signature.argument("groups", 1), signature.argument("dilation", ())
    kind = "conv"
    if isinstance(groups, int) and groups > 1:
        kind = "sep_conv"
    elif isinstance(dilation, tuple) and any(isinstance(d, int) and d > 1 for d in dilation):
        kind = "dil_conv"
    at = reader.add(kind, sources, four(weight.shape))
    return reader.add("bias", (at,), _vector(signature, "bias")) if signature.tensor("bias") else at


def _product(reader: Reader, op: Op, sources: tuple[int, ...]) -> int | None:
    """A product with a parameter is a linear layer; one of two activations belongs to attention and is passed on."""
    layouts = op.signature.inputs
    fixed = [layout for tensor, layout in zip(op.inputs, layouts, strict=True) if not reader.came_from(tensor)]
    matrix = next((layout for layout in reversed(fixed) if len(layout.shape) > 1), None)
    if matrix is None:
        return None
    into, out = matrix.shape[-2:]
    at = reader.add("conv", sources, (out, into, 1, 1))
    has_bias = any(len(layout.shape) == 1 for layout in fixed)
    return reader.add("bias", (at,), (out,)) if has_bias else at


def _sum(reader: Reader, op: Op, sources: tuple[int, ...]) -> int | None:
    if len(sources) > 1:
        return reader.add("sum", sources)
    added = [tensor for tensor in op.inputs if reader.is_parameter(tensor)]
    if not added:
        return None
    shape = reader.graph.tensors[added[0]].layout.shape
    if len([side for side in shape if side > 1]) > 1:
        return reader.add("pos_enc", sources, four(shape))
    return reader.add("bias", sources, (max(shape, default=1),))


def _vector(signature: Signature, name: str) -> tuple[int, ...]:
    layout = signature.tensor(name)
    return (layout.numel,) if layout else ()


def four(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Four sides: missing ones are 1, those past the fourth are taken together with it."""
    sides = (*shape, 1, 1, 1, 1)[: max(4, len(shape))]
    return (*sides[:3], math.prod(sides[3:]))


Step = Callable[[Reader, Op, tuple[int, ...]], int | None]


def read(graph: Graph, step: Step = _as_kind) -> Architecture:
    """A step's network; `step` says which node an op becomes, or None where it passes values on."""
    reader = Reader(graph)
    for op in graph.ops:
        if op.phase != "forward":
            continue
        sources = tuple(dict.fromkeys(node for tensor in op.inputs for node in reader.came_from(tensor)))
        if not sources:
            continue  # it computes on parameters alone
        made = step(reader, op, sources)
        for tensor in op.outputs:
            reader.makers[tensor] = sources if made is None else (made,)
    found = _without_unused_inputs(reader.nodes)
    if len(found) < 2:
        raise InputError(f"{graph.name} has no forward operators that can be read. Capture a step of a whole network.")
    return found


def _without_unused_inputs(nodes: list[Node]) -> Architecture:
    """Labels are inputs too, but only the loss reads them."""
    used = {source for node in nodes for source in node.inputs}
    kept = [i for i, node in enumerate(nodes) if node.kind != "input" or i in used]
    place = {old: new for new, old in enumerate(kept)}
    return tuple(replace(nodes[i], inputs=tuple(place[s] for s in nodes[i].inputs)) for i in kept)
