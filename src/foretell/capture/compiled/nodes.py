"""Nodes of Inductor's scheduler as entries of a schedule: fused kernels, and calls of a library's operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch._inductor import ir
from torch._inductor.scheduler import (
    ExternKernelSchedulerNode,
    NopKernelSchedulerNode,
)
from torch.utils import _pytree as pytree

from foretell.capture.compiled.draws import WITH_A_GENERATOR
from foretell.capture.compiled.in_place import InPlace
from foretell.capture.compiled.kernels import fused_of, origins_of
from foretell.capture.compiled.schedule import Buffer, Entry, Fused, Library, Picked, Schedule, View

_ROOT: Final = re.compile(r"^L\['\w+'\](\.__self__)?\.?")  # what Dynamo calls the model itself
aten = torch.ops.aten
# Inductor calls these by names of its own, with what they are given first.
_LIBRARY: Final = {
    "mm": aten.mm.default, "addmm": aten.addmm.default, "bias_addmm": aten.addmm.default, "bmm": aten.bmm.default,
    "baddbmm": aten.baddbmm.default, "convolution": aten.convolution.default, "_int_mm": aten._int_mm.default,
}  # fmt: skip


def schedule_of(graph: Any, scheduler: Any) -> Schedule:
    in_place = InPlace(graph, scheduler)
    entries = tuple(_entry(node, in_place) for node in scheduler.nodes)
    outputs = tuple(_view(out) for out in graph.graph_outputs)
    return Schedule(
        inputs=tuple(graph.graph_input_names),
        entries=entries,
        outputs=outputs,
        constants={name: (tuple(t.shape), tuple(t.stride()), t.dtype) for name, t in graph.constants.items()},
    )


def _entry(node: Any, in_place: InPlace) -> Entry:
    what: Fused | Library | Picked | None = None
    over: dict[str, str] = {}
    if isinstance(node, ExternKernelSchedulerNode):
        what = _library(node.node)
    elif not isinstance(node, NopKernelSchedulerNode):
        what, over = fused_of(node), in_place.buffers(node)
    in_place.passed(node)
    return Entry(
        name=str(node.node.get_name()) if node.node is not None else "",
        what=what,
        made=tuple(replace(b, over=b.over or over.get(b.name)) for b in _buffers(node)),
        ends=tuple(str(name) for name in node.last_usage),
        module=_module(node),
    )


def _library(node: Any) -> Library | Picked | None:
    """An operator with its arguments; of an operator that makes several tensors, one of them; None: a view."""
    if isinstance(node, ir.MultiOutput):
        made_by: Any = node.inputs[0]
        return Picked(of=str(made_by.get_name()), path=tuple(index for _, index in node.indices))
    given = [_view(each) for each in node.inputs]
    if isinstance(node, ir.ScatterFallback | ir.IndexPutFallback):
        return _scattered(node, given)
    if isinstance(node, ir.FallbackKernel):
        args, kwargs = node.unflatten_args(given, node.constant_args)
        args, kwargs = pytree.tree_map(_plain, (args, {**node.kwargs, **kwargs}))
        operator, *args = args if node.op_overload is WITH_A_GENERATOR else (node.op_overload, *args)
        return Library(operator=operator, args=tuple(args), kwargs=kwargs)
    name = str(node.python_kernel_name).rpartition(".")[2]
    if isinstance(node, ir.RandomSeeds):
        low, high, size = node.constant_args
        return Library(operator=aten.randint.low, args=(low, high, size), kwargs={"dtype": torch.int64})
    operator = _LIBRARY.get(name) or getattr(node, "op_overload", None)
    if operator is None:
        return None
    kwargs = {key: _plain(value) for key, value in node.kwargs.items()}
    if operator is aten.convolution.default:
        bias = [] if len(given) > 2 else [kwargs.pop("bias", None)]
        ordered = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        return Library(operator=operator, args=(*given, *bias, *(kwargs[key] for key in ordered)), kwargs={})
    return Library(operator=operator, args=(*given, *map(_plain, node.constant_args)), kwargs=kwargs)


def _scattered(node: Any, given: list[Any]) -> Library:
    """What is written in place where indices say, whose arguments Inductor has in another order."""
    constants = [_plain(each) for each in node.constant_args]
    if isinstance(node, ir.IndexPutFallback):
        target, values, *indices = given
        left = iter(indices)
        places = [None if index is None else next(left) for index in node.indices]
        return Library(operator=node.op_overload, args=(target, places, values, *constants), kwargs={})
    target, index, *source = given
    dim, *number = constants
    how = {} if node.kwargs.get("reduce") is None else dict(node.kwargs)
    return Library(operator=node.op_overload, args=(target, dim, index, *source, *number), kwargs=how)


def _buffers(node: Any) -> Iterator[Buffer]:
    """What a node makes: memory of its own, or a part of what is there."""
    for out in node.get_outputs():
        buffer, name = out.node, out.get_name()
        layout = buffer.get_output_spec()
        if not isinstance(layout, ir.Layout):
            continue
        changed = [str(n) for n in buffer.get_mutation_names()]
        over = changed[0] if changed else None
        offset = 0
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            over, layout = layout.get_buffer().get_name(), layout.real_layout()
        elif isinstance(layout, ir.NonOwningLayout):
            over, offset = layout.view.get_name(), int(layout.view.get_layout().offset)
        yield Buffer(
            name=name,
            size=_numbers(layout.size),
            stride=_numbers(layout.stride),
            dtype=layout.dtype,
            over=over,
            offset=offset,
        )


def _view(value: Any) -> Any:
    """A tensor as it is read: by its buffer, or a part of one; numbers and nothing stay what they are."""
    if isinstance(value, ir.NoneAsConstantBuffer):
        return None
    if isinstance(value, ir.ShapeAsConstantBuffer):
        return int(value.expr)
    if not isinstance(value, ir.IRNode):
        return _plain(value)
    layout = value.maybe_get_layout()
    if layout is None or not isinstance(layout, ir.Layout):
        return View(name=value.get_name())
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        layout = layout.real_layout()
    whole = not isinstance(getattr(value, "data", value), ir.BaseView) and not isinstance(value, ir.BaseView)
    if isinstance(layout, ir.NonOwningLayout) and whole:
        return View(name=value.get_name())
    return View(
        name=value.get_name(), size=_numbers(layout.size), stride=_numbers(layout.stride), offset=int(layout.offset)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, ir.IRNode):
        return _view(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if type(value).__module__.startswith("sympy"):
        return int(value)
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _module(node: Any) -> str:
    """Where the last of its ops was called, in the model's own names."""
    found = ""
    for part in node.get_nodes():
        for origin in origins_of(part):
            stack = origin.meta.get("nn_module_stack") or origin.meta.get("fwd_nn_module_stack")
            if stack:
                found = max(found, _ROOT.sub("", str(list(stack.values())[-1][0])), key=len)
    return found
