"""Operators on every number: arithmetic, casts, copies, reductions, softmax and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn import functional as F

from foretell.capture.dtypes import FLOATS, half_dtype
from foretell.design.pool.single import Shape, check, operator, workload
from foretell.errors import WorkloadError, check_choice
from foretell.precision import Precision, PrecisionName
from foretell.workload import Workload

# Elementwise operators.

UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "softplus": F.softplus, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp,
    "sin": torch.sin, "square": torch.square, "pow": lambda x: x.pow(3), "neg": torch.neg, "scale": lambda x: x * 0.5,
    "clamp": lambda x: x.clamp(-1, 1), "dropout": lambda x: F.dropout(x, 0.1),
}  # fmt: skip
BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": lambda x, y: x / (y + 8), "maximum": torch.maximum,
    "lerp": lambda x, y: torch.lerp(x, y, 0.1), "swiglu": lambda x, y: F.silu(x) * y,
}  # fmt: skip
MASKED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "masked_fill": lambda x, mask: x.masked_fill(mask, 0.0),
    "where": lambda x, mask: torch.where(mask, x, 0.0),
}
_ELEMENTWISE: Final[Mapping[str, Callable[..., Any]]] = {**UNARY, **BINARY, **MASKED}
BROADCASTS: Final = ("none", "row", "column", "scalar")


@operator(op=_ELEMENTWISE, broadcast=BROADCASTS)
def elementwise(
    *,
    op: str = "gelu",
    rows: int = 1024,
    columns: int = 1024,
    broadcast: str = "none",
    precision: PrecisionName = "fp32",
) -> Workload:
    """One activation or arithmetic operator; `broadcast` is the shape of the second operand, where there is one."""
    check(op not in UNARY or broadcast == "none", f"{op} has no second operand to broadcast")
    second = {"none": (rows, columns), "row": (1, columns), "column": (rows, 1), "scalar": (1, 1)}[broadcast]
    x: dict[str, Any] = {"x": (rows, columns)}
    if op in BINARY:
        x["y"] = second
    if op in MASKED:
        x["mask"] = lambda: torch.rand(second) < 0.5
    return workload(_ELEMENTWISE[op], x, [(rows, columns)], wanted=("x", "y"), precision=precision)


# Casts and copies.

_DTYPES: Final[dict[str, torch.dtype]] = {name: dtype for dtype, name in FLOATS.items()}


@operator(source=_DTYPES, target=_DTYPES)
def cast(*, rows: int = 1024, columns: int = 1024, source: str = "fp32", target: str = "bf16") -> Workload:
    """From one number format to another, and the gradient back."""
    check_choice("target", target, [name for name in _DTYPES if name != source], WorkloadError)
    before, after = _DTYPES[source], _DTYPES[target]
    x, out = {"x": lambda: torch.randn(rows, columns, dtype=before)}, [lambda: torch.randn(rows, columns, dtype=after)]
    return workload(lambda x: x.to(after), x, out, precision="fp32")


ORDERS: Final = ("021", "102", "120", "201", "210")
MOVES: Final = ("permute", "cat", "split", "stack", "pad", "roll", "flip", "repeat", "tril", "shuffle")


@operator(op=MOVES, order=ORDERS, parts=(2, 16))
def copy(
    *,
    op: str = "permute",
    batch: int = 8,
    rows: int = 256,
    columns: int = 256,
    order: str = "021",
    parts: int = 3,
    precision: PrecisionName = "fp32",
) -> Workload:
    """Numbers moved about: (batch, rows, columns) permuted in `order`, or joined or cut in `parts` along the columns."""
    shape = (batch, rows, columns)
    axes = [int(axis) for axis in order]
    cut = columns * parts
    # Operator, shape of the input, shapes of the outputs.
    moves: dict[str, tuple[Callable[..., Any], Shape, list[Shape]]] = {
        "permute": (lambda x: x.permute(axes).contiguous(), shape, [tuple(shape[axis] for axis in axes)]),
        "cat": (lambda *parts: torch.cat(parts, -1), shape, [(batch, rows, cut)]),
        "stack": (lambda *parts: torch.stack(parts, 1), shape, [(batch, parts, rows, columns)]),
        "split": (lambda x: x.chunk(parts, -1), (batch, rows, cut), [shape] * parts),
        "pad": (lambda x: F.pad(x, (0, 8, 1, 1)), shape, [(batch, rows + 2, columns + 8)]),
        "roll": (lambda x: x.roll((rows // 2, columns // 2), (1, 2)), shape, [shape]),
        "flip": (lambda x: x.flip(1), shape, [shape]),
        "repeat": (lambda x: x.repeat_interleave(parts, 1), shape, [(batch, rows * parts, columns)]),
        "tril": (torch.tril, shape, [shape]),
        "shuffle": (lambda x: F.pixel_shuffle(x, 2), (batch, 4, rows, columns), [(batch, 1, 2 * rows, 2 * columns)]),
    }
    call, before, after = moves[op]
    names = ["x", *(f"x{i}" for i in range(1, parts))] if op in ("cat", "stack") else ["x"]
    return workload(call, dict.fromkeys(names, before), after, wanted=names, precision=precision)


# Reductions, softmax and losses.

REDUCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "var": torch.var, "norm": torch.linalg.vector_norm,
    "logsumexp": torch.logsumexp, "cumsum": torch.cumsum,
}  # fmt: skip


@operator(op=REDUCTIONS)
def reduction(
    *, op: str = "sum", outer: int = 64, size: int = 1024, inner: int = 1, precision: PrecisionName = "fp32"
) -> Workload:
    """Over the middle of (outer, size, inner): inner=1 reduces rows, outer=1 columns, both 1 everything."""
    check(op != "var" or size > 1, "the variance of one number is not a number; give a size of at least 2")
    shape, out = (outer, size, inner), (outer, size, inner) if op == "cumsum" else (outer, inner)
    return workload(lambda x: REDUCTIONS[op](x, dim=1), {"x": shape}, [out], precision=precision)


@operator()
def softmax(
    *,
    rows: int = 1024,
    columns: int = 1024,
    logarithm: bool = False,
    in_fp32: bool = False,
    precision: PrecisionName = "fp32",
) -> Workload:
    """Softmax over columns; `in_fp32` computes and returns fp32, as attention written by hand does."""
    function = F.log_softmax if logarithm else F.softmax
    dtype, half = (torch.float32, half_dtype(Precision.parse(precision).parameters)) if in_fp32 else (None, None)
    x = {"x": lambda: torch.randn(rows, columns, dtype=half)}
    precision = "fp32" if in_fp32 else precision
    return workload(lambda x: function(x, dim=-1, dtype=dtype), x, [(rows, columns)], precision=precision)


LOSSES: Final[Mapping[str, Callable[..., Any]]] = {
    "cross_entropy": F.cross_entropy, "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "bce": F.binary_cross_entropy_with_logits,
}  # fmt: skip


@operator(op=LOSSES)
def loss(
    *,
    op: str = "cross_entropy",
    rows: int = 1024,
    classes: int = 1000,
    pixels: int = 1,
    precision: PrecisionName = "fp32",
) -> Workload:
    """A loss over (rows, classes), or (rows, classes, pixels) with one label a pixel."""
    shape, places = ((rows, classes), (rows,)) if pixels == 1 else ((rows, classes, pixels), (rows, pixels))

    def targets() -> torch.Tensor:
        return torch.randint(classes, places) if op in ("cross_entropy", "smoothed") else torch.rand(shape)

    return workload(LOSSES[op], {"x": shape, "y": targets}, [lambda: torch.ones(())], precision=precision)
