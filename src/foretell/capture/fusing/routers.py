"""Products of routers, whose scores are fp32: Transformer Engine takes rows and weights as they are, without copies in fp32."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretell.capture.fusing.edit import Fusing
from foretell.graph import Op, Tensor
from foretell.precision import HALF_DTYPES


def fuse_routers(step: Fusing) -> None:
    """Replace products of tensors that were cast to fp32 for them alone."""
    for position, op in list(step.named("forward", "aten.mm")):
        casts = [step.maker(step.storage(t), "aten._to_copy") for t in op.inputs]
        found = [p for p in casts if p is not None and step.at(p).signature.inputs[0].dtype in HALF_DTYPES]
        if op.signature.outputs[0].dtype != "float32" or len(found) != len(op.inputs):
            continue
        wide = {step.made(p): step.at(p).inputs[0] for p in found}
        readers = {p for s in wide for p in step.readers[s] if step.ops[p] is not None} - {position}
        if any(step.at(p).phase != "backward" or step.at(p).signature.name != "aten.mm" for p in readers):
            continue
        for p in found:
            step.ops[p] = None
        step.ops[position] = _with(step, op, _narrow(step, op.inputs, wide))
        step.fused.add(position)
        _narrow_gradients(step, sorted(readers), wide)


def _narrow(step: Fusing, tensors: Iterable[int], wide: dict[int, int]) -> list[int]:
    """Tensors, of which those in fp32 copies are as they were before."""
    found = []
    for t in tensors:
        own = step.tensors[t]
        if own.storage in wide:
            like = step.tensors[wide[own.storage]]
            step.tensors.append(
                Tensor(replace(own.layout, dtype=like.layout.dtype), like.storage, like.offset + own.offset)
            )
            t = len(step.tensors) - 1
        found.append(t)
    return found


def _narrow_gradients(step: Fusing, products: list[int], wide: dict[int, int]) -> None:
    """The gradient of the scores is cast for each product, which is little beside it."""
    for position in products:
        op = step.at(position)
        dtype = step.tensors[next(iter(wide.values()))].layout.dtype
        inputs = [
            t if step.storage(t) in wide else step.insert(position, "aten._to_copy.default", t, dtype)
            for t in op.inputs
        ]
        step.ops[position] = _with(step, op, _narrow(step, inputs, wide))
        step.fused.add(position)


def _with(step: Fusing, op: Op, inputs: list[int]) -> Op:
    read = tuple(step.tensors[t].layout for t in inputs)
    return replace(op, inputs=tuple(inputs), signature=replace(op.signature, inputs=read))
