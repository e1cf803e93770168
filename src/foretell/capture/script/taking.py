"""What modules and losses of torch take, and how what they were given differs from it."""

from __future__ import annotations

import ast
import linecache
import math
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from foretell.capture.script.parsed import tree_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The shape of a tensor that was refused: dimensions that it lacks, and extents with those that were wanted."""

    shape: tuple[int, ...]
    more: int = 0
    extents: tuple[tuple[int, int], ...] = ()


def contradictions(frame: types.FrameType) -> Iterator[Given]:
    """Of a frame of a module's forward, or of a loss."""
    module = frame.f_locals.get("self")
    tensors = [value for value in frame.f_locals.values() if isinstance(value, torch.Tensor)]
    if isinstance(module, torch.nn.Module) and tensors:
        state = _state(frame.f_locals.get("hx"))
        batched = frame.f_locals.get("is_batched", True)  # else it was given one of its own since
        if isinstance(module, torch.nn.RNNBase) and state is not None and state.dim() == 3 and not batched:
            yield Given(shape=tuple(frame.f_locals["input"].squeeze(frame.f_locals["batch_dim"]).shape), more=1)
        for kind, check in _MODULES.items():
            if isinstance(module, kind):
                yield from check(module, tuple(tensors[0].shape))
    func, args = frame.f_locals.get("func"), frame.f_locals.get("args")
    if isinstance(func, torch._ops.OpOverload) and isinstance(args, tuple):
        yield from _of_operator(func, args)
    yield from _of_normalization(frame)
    if frame.f_code is torch.functional.einsum.__code__:
        yield from _of_sum(frame.f_locals.get("equation"), frame.f_locals.get("operands"))
    both = frame.f_locals.get("input"), frame.f_locals.get("target")
    if all(isinstance(tensor, torch.Tensor) for tensor in both) and frame.f_globals.get("__name__") == _FUNCTIONS:
        output, target = (tuple(tensor.shape) for tensor in both if tensor is not None)
        wanted = (output[0], *output[2:]) if frame.f_code.co_name in _OF_CLASSES and len(output) > 1 else output
        yield from _compared(target, wanted)
        yield from _compared(output, target if wanted is output else (target[0], output[1], *target[1:]))


def _state(hx: Any) -> torch.Tensor | None:
    """That a recurrent layer begins with; of several, the first."""
    first = hx[0] if isinstance(hx, tuple) and hx else hx
    return first if isinstance(first, torch.Tensor) else None


def _of_operator(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> Iterator[Given]:
    """Of an operator that was refused as it was dispatched."""
    shapes = [tuple(arg.shape) for arg in pytree.tree_leaves(args) if isinstance(arg, torch.Tensor)]
    name = func.overloadpacket.__name__
    if name in _PRODUCTS and len(shapes) >= 2:
        first, second = shapes[-2:]
        yield Given(shape=first, extents=((first[-1], second[-2]),))
        yield Given(shape=second, extents=((second[-2], first[-1]),))
    elif name in _VIEWS and all(isinstance(n, int) and n > 0 for n in args[1]):
        yield Given(shape=shapes[0], extents=((math.prod(shapes[0]), math.prod(args[1])),))
    elif name in _VIEWS and sum(n == -1 for n in args[1]) == 1:
        yield from _of_view(shapes[0], tuple(args[1]))
    elif name == "expand" and shapes and len(shapes[0]) > len(args[1]):
        yield Given(shape=shapes[0], more=len(args[1]) - len(shapes[0]))
    elif torch.Tag.pointwise in func.tags and len(shapes) == 2:
        for first, second in (shapes, shapes[::-1]):
            pairs = zip(reversed(first), reversed(second), strict=False)
            yield Given(shape=first, extents=tuple((a, b) for a, b in pairs if a != b and 1 not in (a, b)))


def _of_view(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Given]:
    """A view with one side left open: what comes after the sides that stay is a multiple of those that are named."""
    same = 0
    while same < min(len(shape), len(wanted)) and shape[same] == wanted[same]:
        same += 1
    rest, named = math.prod(shape[same:]), math.prod(n for n in wanted[same:] if n != -1)
    if rest and named and rest % named:
        yield Given(shape=shape, extents=((rest, named * max(1, round(rest / named))),))


def _of_normalization(frame: types.FrameType) -> Iterator[Given]:
    """Of a picture, by the mean of each channel, as torchvision's function has it."""
    tensor, mean = frame.f_locals.get("tensor"), frame.f_locals.get("mean")
    if frame.f_code.co_name != "normalize" or not isinstance(tensor, torch.Tensor) or mean is None:
        return
    channels = mean.numel() if isinstance(mean, torch.Tensor) else len(mean)
    if tensor.dim() < 3:
        yield Given(shape=tuple(tensor.shape), more=3 - tensor.dim())
    elif tensor.shape[-3] != channels:
        yield Given(shape=tuple(tensor.shape), extents=((tensor.shape[-3], channels),))


def _of_sum(equation: Any, operands: Any) -> Iterator[Given]:
    """Of `torch.einsum`: every letter has one extent."""
    tensors = operands[0] if operands and isinstance(operands[0], list | tuple) else operands
    terms = equation.partition("->")[0].replace(" ", "").split(",") if isinstance(equation, str) else []
    if "." in "".join(terms) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors or ()):
        return
    seen: dict[str, list[int]] = {}
    for term, tensor in zip(terms, tensors, strict=False):
        for letter, extent in zip(term, tensor.shape, strict=False):
            seen.setdefault(letter, []).append(extent)
    for extents in seen.values():
        for got in extents:
            others = tuple((got, other) for other in extents if other != got)
            yield from (Given(shape=(got,), extents=(pair,)) for pair in others)


def taken_apart(frame: types.FrameType, line: int) -> Iterator[Given]:
    """Of a line that takes the shape of a tensor apart into another number of extents than it has."""
    for node in ast.walk(tree_of(frame.f_code.co_filename)):
        if not isinstance(node, ast.Assign) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        target, value = node.targets[0], node.value
        value = value.func if isinstance(value, ast.Call) else value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Attribute) and value.attr in ("shape", "size"):
            tensor = frame.f_locals.get(value.value.id) if isinstance(value.value, ast.Name) else None
            if isinstance(tensor, torch.Tensor) and tensor.dim() != len(target.elts):
                yield Given(shape=tuple(tensor.shape), more=len(target.elts) - tensor.dim())


def indexed(frame: types.FrameType, line: int, error: BaseException) -> Iterator[Given]:
    """Of a line that gives a tensor more indices than it has dimensions."""
    if not isinstance(error, IndexError) or "too many indices for tensor" not in str(error):
        return
    text = linecache.getline(frame.f_code.co_filename, line)
    for name, value in frame.f_locals.items():
        if isinstance(value, torch.Tensor) and value.dim() and re.search(rf"\b{re.escape(name)}\[", text):
            yield Given(shape=tuple(value.shape), more=1)


def _compared(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Given]:
    if len(shape) != len(wanted):
        yield Given(shape=shape, more=len(wanted) - len(shape))
    elif shape != wanted:
        different = tuple((a, b) for a, b in zip(shape, wanted, strict=True) if a != b)
        yield Given(shape=shape, extents=different)


def _last(shape: tuple[int, ...], size: int) -> Iterator[Given]:
    if shape and shape[-1] != size:
        yield Given(shape=shape, extents=((shape[-1], size),))


def _channels(shape: tuple[int, ...], size: int, ranks: tuple[int, ...]) -> Iterator[Given]:
    if len(shape) not in ranks:
        yield Given(shape=shape, more=ranks[0] - len(shape))
    elif shape[1] != size:
        yield Given(shape=shape, extents=((shape[1], size),))


def _of_convolution(module: Any, shape: tuple[int, ...]) -> Iterator[Given]:
    return _channels(shape, module.in_channels, (len(module.kernel_size) + 2,))


def _of_batch_norm(module: Any, shape: tuple[int, ...]) -> Iterator[Given]:
    ranks = {"1d": (3, 2), "2d": (4,), "3d": (5,)}.get(type(module).__name__[-2:], (4, 3, 2, 5))
    return _channels(shape, module.num_features, ranks)


def _of_recurrence(module: Any, shape: tuple[int, ...]) -> Iterator[Given]:
    if len(shape) not in (2, 3):
        yield Given(shape=shape, more=3 - len(shape))
    else:
        yield from _last(shape, module.input_size)


def _of_layer_norm(module: Any, shape: tuple[int, ...]) -> Iterator[Given]:
    wanted = tuple(module.normalized_shape)
    yield from _compared(shape[-len(wanted) :], wanted)


_PRODUCTS: Final = frozenset(("mm", "bmm", "addmm", "baddbmm"))
_VIEWS: Final = frozenset(("view", "reshape", "_unsafe_view"))
_FUNCTIONS: Final = torch.nn.functional.__name__
_OF_CLASSES: Final = frozenset(("cross_entropy", "nll_loss"))
_MODULES: Final[dict[Any, Callable[[Any, tuple[int, ...]], Iterator[Given]]]] = {
    torch.nn.Linear: lambda module, shape: _last(shape, module.in_features),
    _ConvNd: _of_convolution,
    _NormBase: _of_batch_norm,
    torch.nn.RNNBase: _of_recurrence,
    torch.nn.LayerNorm: _of_layer_norm,
    torch.nn.GroupNorm: lambda module, shape: _channels(shape, module.num_channels, (len(shape),)),
    torch.nn.MultiheadAttention: lambda module, shape: _last(shape, module.embed_dim),
}
