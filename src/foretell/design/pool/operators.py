"""The pool: tiny workloads of one operator each, and the shapes of them that are worth a measurement.

Each public function below is a SOURCE, as `foretell.design.pool.operators:convolution`; its settings are the shape. The operator
runs forward and, with a dense gradient that is part of the batch, backward; nothing else of weight runs beside it.
`candidates` draws shapes from what real networks use, none larger than 4 GiB or slower than about 20 ms on an H200.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretell.errors import WorkloadError, did_you_mean
from foretell.measure.record import Point
from foretell.sources.named.optimizers import OPTIMIZERS, optimizer_named
from foretell.workload import Precision, Workload

Settings = dict[str, Any]
_LARGEST: Final = 2**31 - 1
_SGD: Final = OPTIMIZERS["sgd"]


# One operator as a workload.


class _Seeded(torch.autograd.Function):
    """A loss of zero whose gradient with respect to the outputs is what was given: no kernels between it and them."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors[:count])
        return tensors[count].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return None, *[None] * len(ctx.saved_tensors), *ctx.saved_tensors


class _Operator(nn.Module):
    def __init__(self, call: Callable[..., Any], layer: nn.Module | None) -> None:
        super().__init__()
        self.call = call
        self.layer = layer
        self.unused = nn.Parameter(torch.zeros(1))  # a step has something to train, though it gets no gradient

    def forward(self, **inputs: Any) -> Any:
        layer = () if self.layer is None else (self.layer,)
        return self.call(*layer, *inputs.values())


def _workload(
    name: str,
    call: Callable[..., Any],
    batch: Callable[[], dict[str, Any]],
    *,
    layer: Callable[[], nn.Module] | None = None,
    gradients: Callable[[], list[torch.Tensor]] | None,
    wanted: tuple[str, ...] = ("x",),
    precision: Precision,
    channels_last: bool = False,
) -> Workload:
    """`gradients` are those of the outputs, None for inference; `wanted` names the inputs that get one."""

    def loss(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        # A fresh leaf each time, so that its gradient is neither added up nor copied.
        inputs = {n: v.detach().requires_grad_() if n in wanted else v for n, v in b.items() if n != "gradients"}
        out = model(**inputs)
        outputs = out if isinstance(out, tuple | list) else (out,)
        seeded: torch.Tensor = _Seeded.apply(len(outputs), *b["gradients"], *outputs)  # type: ignore[no-untyped-call]
        return seeded

    def with_gradients() -> dict[str, Any]:
        assert gradients is not None
        return {**batch(), "gradients": gradients()}

    trains = gradients is not None
    return Workload(
        name=name,
        model=lambda: _Operator(call, layer() if layer else None),
        batch=with_gradients if trains else batch,
        loss=loss if trains else lambda model, b: model(**b),
        optimizer=_SGD if trains else None,
        precision=precision,
        channels_last=channels_last,
        samples=1,
    )


def _check(**ranges: tuple[int, int, int]) -> None:
    """Each setting as (value, least, most)."""
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            raise WorkloadError(f"{name} must be from {least} to {most}, got {value}. Give another --set {name}=….")


def _check_positive(**values: int) -> None:
    _check(**{name: (value, 1, _LARGEST) for name, value in values.items()})


def _check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    allowed = tuple(allowed)
    if value not in allowed:
        raise WorkloadError(
            f"{name} {value!r} is not known. {did_you_mean(value, allowed)}Allowed: {', '.join(allowed)}."
        )


def _check_that(condition: bool, problem: str) -> None:
    if not condition:
        raise WorkloadError(f"{problem}.")


# Convolutions.


def convolution(
    *,
    dims: int = 2,
    batch: int = 8,
    channels: int = 64,
    filters: int = 64,
    size: int = 56,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    padded: bool = True,
    flat: Literal["no", "first", "rest"] = "no",
    transposed: bool = False,
    bias: bool = False,
    channels_last: bool = False,
    alone_last: Literal["no", "images", "weight"] = "no",
    input_gradient: bool = True,
    training: bool = True,
    precision: Precision = "fp32",
) -> Workload:
    """A convolution over `dims` equal sides; without `input_gradient` it is a network's first.

    A flat kernel is 1 wide along the first side or along the rest, as separable convolutions are. Where images are made
    of tokens, or a norm returns them row-major, either they or the weight alone are channels-last.
    """
    _check(dims=(dims, 1, 3), kernel=(kernel, 1, 63), stride=(stride, 1, 32), dilation=(dilation, 1, 64))
    _check_positive(batch=batch, channels=channels, filters=filters, size=size, groups=groups)
    _check_that(channels % groups == filters % groups == 0, f"groups={groups} must divide channels and filters")
    _check_that(dims == 2 or not channels_last, "channels_last needs dims=2")
    _check_choice("alone_last", alone_last, ("no", "images", "weight"))
    _check_that(dims == 2 or alone_last == "no", "alone_last needs dims=2")
    _check_choice("flat", flat, ("no", "first", "rest"))
    thin = [(flat == "first") if i == 0 else (flat == "rest") for i in range(dims)]
    kernels, strides, dilations = (tuple(1 if t else n for t in thin) for n in (kernel, stride, dilation))
    padding = tuple(0 if t else _padding(kernel, dilation, padded) for t in thin)
    side = _convolved(size, kernel, stride, dilation, padded, transposed)
    _check_that(side >= 1, f"kernel={kernel} with dilation={dilation} is larger than size={size}")
    sides = [size if t else side for t in thin]

    def layer() -> nn.Module:
        kinds: tuple[type[Any], ...] = (
            (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
            if transposed
            else (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        )
        made: nn.Module = kinds[dims - 1](
            channels, filters, kernels, stride=strides, padding=padding, dilation=dilations, groups=groups, bias=bias,
        )  # fmt: skip
        return made.to(memory_format=torch.channels_last) if alone_last == "weight" else made  # type: ignore[call-overload]

    def images(*shape: int) -> torch.Tensor:
        made = torch.randn(shape)
        return made.contiguous(memory_format=torch.channels_last) if alone_last == "images" else made

    return _workload(
        "convolution", lambda layer, x: layer(x), lambda: {"x": images(batch, channels, *[size] * dims)}, layer=layer,
        gradients=(lambda: [images(batch, filters, *sides)]) if training else None,
        wanted=("x",) if input_gradient else (), precision=precision, channels_last=channels_last,
    )  # fmt: skip


def _padding(kernel: int, dilation: int, padded: bool) -> int:
    return dilation * (kernel - 1) // 2 if padded else 0


def _convolved(size: int, kernel: int, stride: int, dilation: int, padded: bool, transposed: bool) -> int:
    """The side of the output."""
    beyond = dilation * (kernel - 1) - 2 * _padding(kernel, dilation, padded)
    return (size - 1) * stride + beyond + 1 if transposed else (size - beyond - 1) // stride + 1


# Matrix products.


def linear(
    *,
    rows: int = 1024,
    inputs: int = 1024,
    outputs: int = 1024,
    bias: bool = True,
    input_gradient: bool = True,
    training: bool = True,
    precision: Precision = "fp32",
) -> Workload:
    """A linear layer: addmm forward, two products backward."""
    _check_positive(rows=rows, inputs=inputs, outputs=outputs)
    return _workload(
        "linear", lambda layer, x: layer(x), lambda: {"x": torch.randn(rows, inputs)},
        layer=lambda: nn.Linear(inputs, outputs, bias=bias),
        gradients=(lambda: [torch.randn(rows, outputs)]) if training else None,
        wanted=("x",) if input_gradient else (), precision=precision,
    )  # fmt: skip


def matmul(
    *,
    batch: int = 8,
    m: int = 256,
    n: int = 256,
    k: int = 256,
    first_transposed: bool = False,
    second_transposed: bool = False,
    second_shared: bool = False,
    precision: Precision = "fp32",
) -> Workload:
    """(m × k) times (k × n), `batch` of them: bmm, or mm where batch is 1. A shared second matrix is one for all."""
    _check_positive(batch=batch, m=m, n=n, k=k)

    def shape(rows: int, columns: int, turned: bool) -> tuple[int, ...]:
        sides = (columns, rows) if turned else (rows, columns)
        return sides if batch == 1 else (batch, *sides)

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.mT if first_transposed else x) @ (y.mT if second_transposed else y)

    def second() -> torch.Tensor:
        sides = shape(k, n, second_transposed)
        return torch.randn(sides[-2:]).expand(sides) if second_shared else torch.randn(sides)

    return _workload(
        "matmul", product, lambda: {"x": torch.randn(shape(m, k, first_transposed)), "y": second()},
        gradients=lambda: [torch.randn(shape(m, n, False))], wanted=("x", "y"), precision=precision,
    )  # fmt: skip


def grouped_matmul(
    *,
    groups: int = 8,
    rows: int = 2048,
    inputs: int = 1024,
    outputs: int = 1024,
    skewed: bool = False,
    training: bool = True,
    precision: Precision = "bf16",
) -> Workload:
    """Rows of one matrix, each group times a matrix of its own, as experts do; skewed: the first groups get most."""
    _check_positive(groups=groups, rows=rows, inputs=inputs, outputs=outputs)
    _check_that(rows >= groups, f"rows={rows} must be at least groups={groups}")
    _check_that(inputs % 8 == outputs % 8 == 0, "inputs and outputs must be multiples of 8")
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm

    def batch() -> dict[str, Any]:
        ends = torch.tensor(_group_ends(groups, rows, skewed), dtype=torch.int32)
        return {"x": torch.randn(rows, inputs), "experts": torch.randn(groups, inputs, outputs), "ends": ends}

    return _workload(
        "grouped_matmul", lambda x, experts, ends: product(x, experts, offs=ends), batch,
        gradients=(lambda: [torch.randn(rows, outputs)]) if training else None, wanted=("x", "experts"),
        precision=precision,
    )  # fmt: skip


def _group_ends(groups: int, rows: int, skewed: bool) -> list[int]:
    """Where each group's rows end."""
    exponent = 2.0 if skewed else 1.0
    return [rows - round(rows * (1 - i / groups) ** exponent) for i in range(1, groups + 1)]


# Attention.

Backend = Literal["auto", "cudnn", "flash", "efficient", "math"]
_BACKENDS: Final = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(
    *,
    batch: int = 8,
    heads: int = 8,
    kv_heads: int = 8,
    queries: int = 256,
    keys: int = 256,
    head_dim: int = 64,
    causal: bool = False,
    mask: Literal["none", "bool", "float"] = "none",
    heads_inside: bool = True,
    dropout: float = 0.0,
    backend: Backend = "auto",
    training: bool = True,
    precision: Precision = "bf16",
) -> Workload:
    """Scaled dot-product attention; with `heads_inside` its inputs are stored as (batch, length, heads, head_dim)."""
    _check_positive(batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, head_dim=head_dim)
    _check_that(heads % kv_heads == 0, f"kv_heads={kv_heads} must divide heads={heads}")
    _check_that(mask == "none" or not causal, "causal attention takes no mask")
    _check_that(0 <= dropout < 1, f"dropout must be from 0 up to 1, got {dropout}")
    if backend == "flash":
        _check_that(
            mask == "none" and precision in ("bf16", "fp16"), "the flash backend takes bf16 or fp16 and no mask"
        )
    if backend == "cudnn":
        _check_that(precision in ("bf16", "fp16"), "the cuDNN backend takes bf16 or fp16")
    if backend == "efficient":
        _check_that(heads == kv_heads, "the efficient backend takes no grouped heads")

    def tensor(count: int, length: int) -> torch.Tensor:
        if heads_inside:
            return torch.randn(batch, length, count, head_dim).transpose(1, 2)
        return torch.randn(batch, count, length, head_dim)

    def batch_() -> dict[str, Any]:
        made = {"q": tensor(heads, queries), "k": tensor(kv_heads, keys), "v": tensor(kv_heads, keys)}
        if mask == "bool":
            made["mask"] = torch.rand(batch, 1, queries, keys) < 0.9
        if mask == "float":
            made["mask"] = torch.randn(batch, 1, queries, keys)
        return made

    def attend(q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
        options: Settings = {"is_causal": causal, "dropout_p": dropout, "enable_gqa": heads != kv_heads}
        if backend == "auto":
            return F.scaled_dot_product_attention(q, k, v, mask, **options)
        with sdpa_kernel(_BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, mask, **options)

    return _workload(
        "attention", attend, batch_, gradients=(lambda: [tensor(heads, queries)]) if training else None,
        wanted=("q", "k", "v"), precision=precision,
    )  # fmt: skip


# Recurrent layers.


def recurrent(
    *,
    cell: Literal["lstm", "gru", "rnn"] = "lstm",
    batch: int = 32,
    seq: int = 64,
    inputs: int = 256,
    hidden: int = 256,
    layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = True,
    precision: Precision = "fp32",
) -> Workload:
    """Recurrent layers over a sequence, as cuDNN runs them: all layers and steps in one call."""
    _check(layers=(layers, 1, 16))
    _check_positive(batch=batch, seq=seq, inputs=inputs, hidden=hidden)
    kinds: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
    sides = (batch, seq) if batch_first else (seq, batch)

    def layer() -> nn.Module:
        return kinds[cell](inputs, hidden, layers, batch_first=batch_first, bidirectional=bidirectional)  # type: ignore[arg-type]

    return _workload(
        "recurrent", lambda layer, x: layer(x)[0], lambda: {"x": torch.randn(*sides, inputs)}, layer=layer,
        gradients=lambda: [torch.randn(*sides, hidden * (2 if bidirectional else 1))], precision=precision,
    )  # fmt: skip


# Norms.

Norm = Literal["layer", "rms", "batch", "rows", "group", "instance"]


def norm(
    *,
    kind: Norm = "layer",
    batch: int = 32,
    channels: int = 256,
    size: int = 14,
    groups: int = 32,
    affine: bool = True,
    channels_last: bool = False,
    training: bool = True,
    precision: Precision = "fp32",
) -> Workload:
    """Over the last of (batch, size, channels) for layer and rms; of (batch, channels) for rows, a batch norm without
    images; of (batch, channels, size, size) for the others.

    A mixed precision, amp-bf16 or amp-fp16, means batch norm of half-precision images with weights in fp32.
    """
    _check_positive(batch=batch, channels=channels, size=size, groups=groups)
    over_last = kind in ("layer", "rms", "rows")
    _check_that(kind != "group" or channels % groups == 0, f"groups={groups} must divide channels={channels}")
    _check_that(not (over_last and channels_last), "channels_last is a layout of images")
    _check_that(kind in ("batch", "rows") or not precision.startswith("amp"), "mixed precision is for batch norm alone")
    shape: tuple[int, ...] = (batch, size, channels) if over_last else (batch, channels, size, size)
    if kind == "rows":
        shape = (batch, channels)
    layers: dict[str, Callable[[], nn.Module]] = {
        "layer": lambda: nn.LayerNorm(channels, elementwise_affine=affine),
        "rms": lambda: nn.RMSNorm(channels, elementwise_affine=affine),
        "batch": lambda: nn.BatchNorm2d(channels, affine=affine),
        "rows": lambda: nn.BatchNorm1d(channels, affine=affine),
        "group": lambda: nn.GroupNorm(groups, channels, affine=affine),
        "instance": lambda: nn.InstanceNorm2d(channels, affine=affine),
    }
    dtype = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(precision)

    return _workload(
        "norm", lambda layer, x: layer(x), lambda: {"x": torch.randn(shape, dtype=dtype)}, layer=layers[kind],
        gradients=(lambda: [torch.randn(shape, dtype=dtype)]) if training else None, precision=precision,
        channels_last=channels_last,
    )  # fmt: skip


# Elementwise operators.

_UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "softplus": F.softplus, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp,
    "sin": torch.sin, "square": torch.square, "pow": lambda x: x.pow(3), "neg": torch.neg, "scale": lambda x: x * 0.5,
    "clamp": lambda x: x.clamp(-1, 1), "dropout": lambda x: F.dropout(x, 0.1),
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": lambda x, y: x / (y + 8), "maximum": torch.maximum,
    "lerp": lambda x, y: torch.lerp(x, y, 0.1), "swiglu": lambda x, y: F.silu(x) * y,
}  # fmt: skip
_MASKED: dict[str, Callable[[Any, Any], Any]] = {
    "masked_fill": lambda x, mask: x.masked_fill(mask, 0.0),
    "where": lambda x, mask: torch.where(mask, x, 0.0),
}
_SPREADS: Final = ("none", "row", "column", "scalar")


def elementwise(
    *, op: str = "gelu", rows: int = 1024, columns: int = 1024, broadcast: str = "none", precision: Precision = "fp32"
) -> Workload:
    """One activation or arithmetic operator; `broadcast` is the shape of the second operand, where there is one."""
    _check_choice("op", op, (*_UNARY, *_BINARY, *_MASKED))
    _check_choice("broadcast", broadcast, _SPREADS)
    _check_positive(rows=rows, columns=columns)
    _check_that(op not in _UNARY or broadcast == "none", f"{op} has no second operand to broadcast")
    second = {"none": (rows, columns), "row": (1, columns), "column": (rows, 1), "scalar": (1, 1)}[broadcast]

    def batch() -> dict[str, Any]:
        made = {"x": torch.randn(rows, columns)}
        if op in _BINARY:
            made["y"] = torch.randn(second)
        if op in _MASKED:
            made["mask"] = torch.rand(second) < 0.5
        return made

    return _workload(
        "elementwise", (_UNARY | _BINARY | _MASKED)[op], batch, gradients=lambda: [torch.randn(rows, columns)],
        wanted=("x", "y"), precision=precision,
    )  # fmt: skip


# Casts and copies.

_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cast(*, rows: int = 1024, columns: int = 1024, source: str = "fp32", target: str = "bf16") -> Workload:
    """From one number format to another, and the gradient back."""
    _check_positive(rows=rows, columns=columns)
    _check_choice("source", source, _DTYPES)
    _check_choice("target", target, [name for name in _DTYPES if name != source])
    into = _DTYPES[target]
    return _workload(
        "cast", lambda x: x.to(into), lambda: {"x": torch.randn(rows, columns, dtype=_DTYPES[source])},
        gradients=lambda: [torch.randn(rows, columns, dtype=into)], precision="fp32",
    )  # fmt: skip


_ORDERS: Final = ("021", "102", "120", "201", "210")
_MOVES: Final = ("permute", "cat", "split", "stack", "pad", "roll", "flip", "repeat", "tril", "shuffle")


def copy(
    *, op: str = "permute", batch: int = 8, rows: int = 256, columns: int = 256, order: str = "021", parts: int = 3,
    precision: Precision = "fp32",
) -> Workload:  # fmt: skip
    """Numbers moved about: (batch, rows, columns) permuted in `order`, or joined or cut in `parts` along the columns."""
    _check_choice("op", op, _MOVES)
    _check_choice("order", order, _ORDERS)
    _check_positive(batch=batch, rows=rows, columns=columns)
    _check(parts=(parts, 2, 16))
    shape = (batch, rows, columns)
    axes = [int(axis) for axis in order]
    cut = columns * parts
    # Operator, shape of the input, shapes of the outputs.
    moves: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[tuple[int, ...]]]] = {
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
    others = [f"x{i}" for i in range(1, parts)] if op in ("cat", "stack") else []
    return _workload(
        "copy", call, lambda: {name: torch.randn(before) for name in ("x", *others)},
        gradients=lambda: [torch.randn(made) for made in after], wanted=("x", *others), precision=precision,
    )  # fmt: skip


# Reductions, softmax and losses.

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "var": torch.var, "norm": torch.linalg.vector_norm,
    "logsumexp": torch.logsumexp, "cumsum": torch.cumsum,
}  # fmt: skip


def reduction(
    *, op: str = "sum", outer: int = 64, size: int = 1024, inner: int = 1, precision: Precision = "fp32"
) -> Workload:
    """Over the middle of (outer, size, inner): inner=1 reduces rows, outer=1 columns, both 1 everything."""
    _check_choice("op", op, _REDUCTIONS)
    _check_positive(outer=outer, size=size, inner=inner)
    _check_that(op != "var" or size > 1, "the variance of one number is not a number; give a size of at least 2")
    result = (outer, size, inner) if op == "cumsum" else (outer, inner)
    return _workload(
        "reduction", lambda x: _REDUCTIONS[op](x, dim=1), lambda: {"x": torch.randn(outer, size, inner)},
        gradients=lambda: [torch.randn(result)], precision=precision,
    )  # fmt: skip


def softmax(
    *, rows: int = 1024, columns: int = 1024, logarithm: bool = False, in_fp32: bool = False, precision: Precision = "fp32"
) -> Workload:  # fmt: skip
    """Softmax over columns; `in_fp32` computes and returns fp32, as attention written by hand does."""
    _check_positive(rows=rows, columns=columns)
    function = F.log_softmax if logarithm else F.softmax
    dtype = torch.float32 if in_fp32 else None
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision) if in_fp32 else None
    return _workload(
        "softmax", lambda x: function(x, dim=-1, dtype=dtype), lambda: {"x": torch.randn(rows, columns, dtype=half)},
        gradients=lambda: [torch.randn(rows, columns)], precision="fp32" if in_fp32 else precision,
    )  # fmt: skip


_LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": F.cross_entropy, "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "bce": F.binary_cross_entropy_with_logits,
}  # fmt: skip


def loss(
    *, op: str = "cross_entropy", rows: int = 1024, classes: int = 1000, pixels: int = 1, precision: Precision = "fp32"
) -> Workload:
    """A loss over (rows, classes), or (rows, classes, pixels) with one label a pixel."""
    _check_choice("op", op, _LOSSES)
    _check_positive(rows=rows, classes=classes, pixels=pixels)
    shape, places = ((rows, classes), (rows,)) if pixels == 1 else ((rows, classes, pixels), (rows, pixels))

    def batch() -> dict[str, Any]:
        labels = op in ("cross_entropy", "smoothed")
        return {"x": torch.randn(shape), "y": torch.randint(classes, places) if labels else torch.rand(shape)}

    return _workload("loss", _LOSSES[op], batch, gradients=lambda: [torch.ones(())], precision=precision)


# Tables and indices.


def embedding(
    *, rows: int = 30_000, width: int = 256, picks: int = 4096, bag: int = 1, precision: Precision = "fp32"
) -> Workload:
    """Rows looked up in a table; with bag > 1, so many are summed each time."""
    _check_positive(rows=rows, width=width, picks=picks, bag=bag)
    together = bag > 1
    return _workload(
        "embedding", lambda layer, index: layer(index),
        lambda: {"index": torch.randint(rows, (picks, bag) if together else (picks,))},
        layer=lambda: nn.EmbeddingBag(rows, width, mode="sum") if together else nn.Embedding(rows, width),
        gradients=lambda: [torch.randn(picks, width)], wanted=(), precision=precision,
    )  # fmt: skip


_INDEXED: dict[str, Callable[..., Any]] = {
    "gather": lambda x, index: x.gather(0, index[:, None].expand(-1, x.shape[1])),
    "index_select": lambda x, index: x.index_select(0, index),
    "index": lambda x, index: x[index],
    "scatter": lambda x, index, y: x.scatter(0, index[:, None].expand_as(y), y),
    "scatter_add": lambda x, index, y: x.scatter_add(0, index[:, None].expand_as(y), y),
    "index_add": lambda x, index, y: x.index_add(0, index, y),
    "index_copy": lambda x, index, y: x.index_copy(0, index, y),
    "index_put": lambda x, index, y: x.index_put((index,), y),
    "index_put_accumulate": lambda x, index, y: x.index_put((index,), y, accumulate=True),
}
_TAKE: Final = ("gather", "index_select", "index")


def indexing(
    *, op: str = "gather", rows: int = 4096, width: int = 256, picks: int = 4096, precision: Precision = "fp32"
) -> Workload:
    """Rows taken from, or put into, a matrix (rows, width), `picks` of them at random."""
    _check_choice("op", op, _INDEXED)
    _check_positive(rows=rows, width=width, picks=picks)
    takes = op in _TAKE

    def batch() -> dict[str, Any]:
        made = {"x": torch.randn(rows, width), "index": torch.randint(rows, (picks,))}
        return made if takes else made | {"y": torch.randn(picks, width)}

    return _workload(
        "indexing", _INDEXED[op], batch, gradients=lambda: [torch.randn(picks if takes else rows, width)],
        wanted=("x", "y"), precision=precision,
    )  # fmt: skip


_SORTS: dict[str, Callable[..., Any]] = {
    "sort": lambda x, k: x.sort(-1)[0],
    "argsort": lambda x, k: x.argsort(-1),
    "topk": lambda x, k: x.topk(k, -1)[0],
    "argmax": lambda x, k: x.argmax(-1),
}
_ORDER_ONLY: Final = ("argsort", "argmax")  # no gradient goes through an order


def sorting(
    *, op: str = "sort", rows: int = 64, columns: int = 1024, k: int = 8, precision: Precision = "fp32"
) -> Workload:
    """Rows sorted, or the `k` largest of each."""
    _check_choice("op", op, _SORTS)
    _check_positive(rows=rows, columns=columns)
    _check(k=(k, 1, columns))
    found = k if op == "topk" else columns
    return _workload(
        "sorting", lambda x: _SORTS[op](x, k), lambda: {"x": torch.randn(rows, columns)},
        gradients=None if op in _ORDER_ONLY else lambda: [torch.randn(rows, found)], precision=precision,
    )  # fmt: skip


# Pooling and interpolation.


def pooling(
    *,
    op: Literal["max", "avg", "adaptive"] = "max",
    dims: int = 2,
    batch: int = 32,
    channels: int = 64,
    size: int = 56,
    kernel: int = 3,
    stride: int = 2,
    channels_last: bool = False,
    precision: Precision = "fp32",
) -> Workload:
    """Pooling over `dims` equal sides; adaptive averages to `kernel` places a side, whatever the stride."""
    _check(dims=(dims, 1, 3), kernel=(kernel, 1, 31), stride=(stride, 1, 32))
    _check_positive(batch=batch, channels=channels, size=size)
    _check_that(kernel <= size, f"kernel={kernel} is larger than size={size}")
    _check_that(dims == 2 or not channels_last, "channels_last needs dims=2")
    side = kernel if op == "adaptive" else (size + 2 * (kernel // 2) - kernel) // stride + 1
    layers: dict[str, tuple[type[nn.Module], ...]] = {
        "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
        "avg": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        "adaptive": (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    }
    made = layers[op][dims - 1]
    options: Settings = {} if op == "adaptive" else {"stride": stride, "padding": kernel // 2}
    return _workload(
        "pooling", lambda layer, x: layer(x), lambda: {"x": torch.randn(batch, channels, *[size] * dims)},
        layer=lambda: made(kernel, **options), gradients=lambda: [torch.randn(batch, channels, *[side] * dims)],
        precision=precision, channels_last=channels_last,
    )  # fmt: skip


_RESIZES: Final = ("nearest", "bilinear", "bicubic", "grid")


def interpolation(
    *, op: str = "bilinear", batch: int = 8, channels: int = 64, size: int = 32, target: int = 64,
    channels_last: bool = False, precision: Precision = "fp32",
) -> Workload:  # fmt: skip
    """Images of one size made another; `grid` samples them at places of its own."""
    _check_choice("op", op, _RESIZES)
    _check_positive(batch=batch, channels=channels, size=size, target=target)

    def resize(x: torch.Tensor, places: Any = None) -> torch.Tensor:
        if op == "grid":
            return F.grid_sample(x, places, align_corners=False)
        return F.interpolate(x, size=(target, target), mode=op)

    def batch_() -> dict[str, Any]:
        made = {"x": torch.randn(batch, channels, size, size)}
        return made | {"places": torch.rand(batch, target, target, 2) * 2 - 1} if op == "grid" else made

    return _workload(
        "interpolation", resize, batch_, gradients=lambda: [torch.randn(batch, channels, target, target)],
        wanted=("x", "places"), precision=precision, channels_last=channels_last,
    )  # fmt: skip


# Optimizers.

_PARAMETERS: dict[str, Callable[[int], list[tuple[int, ...]]]] = {  # of one layer of a width
    "transformer": lambda w: [(3 * w, w), (3 * w,), (w, w), (w,), (4 * w, w), (4 * w,), (w, 4 * w), *[(w,)] * 5],
    "decoder": lambda w: [*[(w, w)] * 4, (8 * w // 3, w), (8 * w // 3, w), (w, 8 * w // 3), (w,), (w,)],
    "convolutions": lambda w: [(w, 4 * w, 1, 1), (w, w, 3, 3), (4 * w, w, 1, 1), *[(w,)] * 4, *[(4 * w,)] * 2],
    "depthwise": lambda w: [(6 * w, w, 1, 1), (6 * w, 1, 3, 3), (w, 6 * w, 1, 1), *[(6 * w,)] * 4, *[(w,)] * 2],
    "linear": lambda w: [(w, w), (w,)],
    "table": lambda w: [(64 * w, w)],
}


def optimizer(
    *,
    name: str = "adamw",
    kind: str = "transformer",
    width: int = 256,
    layers: int = 4,
    clip: bool = False,
    precision: Precision = "fp32",
) -> Workload:
    """One update of the parameters of so many layers, with gradients that are there already."""
    _check_choice("name", name, [n for n in OPTIMIZERS if n != "none"])
    _check_choice("kind", kind, _PARAMETERS)
    _check_positive(width=width, layers=layers)
    shapes = _PARAMETERS[kind](width) * layers

    def step(model: Any, optimizer: Any, b: Mapping[str, Any]) -> None:
        for parameter, gradient in zip(model.parameters(), b["gradients"], strict=True):
            parameter.grad = gradient
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Workload(
        name="optimizer", model=lambda: nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes]),
        batch=lambda: {"gradients": [torch.randn(shape) for shape in shapes]}, loss=lambda model, b: model[0].sum(),
        optimizer=optimizer_named(name), precision=precision, samples=1, step=step,
    )  # fmt: skip


# Candidates. Each function below draws the settings of one operator, and says what they would cost on an H200.

_PREFIX: Final = "foretell.design.pool.operators:"
_BYTES: Final = 4 * 2**30  # of tensors
_SECONDS: Final = 0.02
_TINY_SECONDS: Final = 1e-5
_FLOPS: Final = {"fp32": 3e13, "tf32": 1.5e14, "bf16": 3e14, "fp16": 3e14}  # a second, as far as large shapes get
_DEPTHWISE_FLOPS: Final = 4e12
_BANDWIDTH: Final = 2e12  # bytes a second
_WEIGHTED: Final = {"bf16": 35, "fp32": 25, "tf32": 20, "fp16": 20}

Drawn = tuple[Settings, float, float]  # settings; numbers in tensors, gradients too; floating-point operations


def candidates(seed: int = 0) -> list[Point]:
    """About six thousand points, always the same for a seed, operators mixed."""
    points: dict[str, Point] = {}
    for name, (count, drawn_by) in _DRAWS.items():
        draw = random.Random(f"{seed}/{name}")
        wanted, tries = len(points) + count, 0
        while len(points) < wanted and tries < 50 * count:
            tries += 1
            settings, numbers, flops = drawn_by(draw)
            if not _is_wanted(draw, str(settings.get("precision", "fp32")), numbers, flops):
                continue
            point = Point(source=_PREFIX + name, kind="operators", settings=_texts(settings))
            points.setdefault(point.key, point)
    mixed = list(points.values())
    random.Random(seed).shuffle(mixed)
    return mixed


def family_of(point: Point) -> str:
    """The kind of operator: the function, and for convolutions which kind of them."""
    prefix, _, name = point.source.rpartition(":")
    if f"{prefix}:" != _PREFIX or name not in _DRAWS:
        raise WorkloadError(
            f"{point.source!r} is not of this pool. Its sources are {_PREFIX}NAME: {', '.join(_DRAWS)}."
        )
    if name != "convolution":
        return name
    settings = point.settings
    if settings.get("transposed") == "true":
        return "transposed-convolution"
    groups = int(settings.get("groups", "1"))
    if groups == 1:
        return "convolution"
    return "depthwise-convolution" if groups == int(settings["channels"]) else "grouped-convolution"


def _texts(settings: Settings) -> dict[str, str]:
    return {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in settings.items()}


def _is_wanted(draw: random.Random, precision: str, numbers: float, flops: float) -> bool:
    """Neither too large nor too slow; and of the tiny ones, which all cost what a launch costs, only some."""
    size = 2 if precision.endswith("16") else 4
    seconds = seconds_of(precision, numbers, flops)
    if numbers * size > _BYTES or seconds > _SECONDS:
        return False
    return seconds > _TINY_SECONDS or _chance(draw, 0.2)


def seconds_of(precision: str, numbers: float, flops: float) -> float:
    """About what a training step of an operator takes: it reads and writes each number a few times."""
    size = 2 if precision.endswith("16") else 4
    return flops / _FLOPS[precision.removeprefix("amp-")] + 3 * numbers * size / _BANDWIDTH


def drawn(name: str, draw: random.Random) -> Drawn:
    """Settings of an operator of the pool, and what they hold and compute."""
    return _DRAWS[name][1](draw)


def _chance(draw: random.Random, probability: float) -> bool:
    return draw.random() < probability


def _precision(draw: random.Random) -> str:
    return _weighted(draw, _WEIGHTED)


def _weighted(draw: random.Random, weights: Mapping[str, int]) -> str:
    [choice] = draw.choices(list(weights), list(weights.values()))
    return choice


def _log(draw: random.Random, low: float, high: float) -> int:
    """Log-uniform, any whole number."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))))


def usual_count(draw: random.Random, low: int, high: int) -> int:
    """Log-uniform; mostly a power of two or half as much again, as people choose batches."""
    number = _log(draw, low, high)
    if _chance(draw, 0.3):
        return number
    power = 1 << (number.bit_length() - 1)
    rounded = power * 3 // 2 if number >= power * 3 // 2 else power
    return min(high, max(low, rounded))


def usual_width(draw: random.Random, low: int, high: int) -> int:
    """Log-uniform; mostly a multiple of 64, 32 or 8, as widths of layers are; sometimes anything."""
    number = _log(draw, low, high)
    multiple = draw.choices((64, 32, 8, 1), (50, 15, 20, 15))[0]
    while multiple > number:
        multiple //= 2
    return min(high, max(low, round(number / multiple) * multiple))


def _draw_convolution(draw: random.Random) -> Drawn:
    dims = draw.choices((2, 1, 3), (84, 8, 8))[0]
    kernel = draw.choices((1, 3, 5, 7, 2, 4, 9, 14, 16), (36, 36, 7, 7, 3, 4, 2, 2, 3))[0]
    stride = 1 if _chance(draw, 0.72) else 2
    dilation = draw.choice((2, 4, 6, 12)) if kernel == 3 and _chance(draw, 0.07) else 1
    widest = 512 if dims == 3 else 2048
    channels, filters, groups = usual_width(draw, 8, widest), usual_width(draw, 8, widest), 1
    first = kernel > 1 and _chance(draw, 0.08)  # the first of a network
    patches = kernel in (14, 16) or (kernel in (2, 4) and _chance(draw, 0.5))
    if patches:
        stride = kernel
    kind = draw.random()
    if first or kernel >= 14:
        channels, filters = draw.choice((1, 3, 3, 3, 4)), usual_width(draw, 16, 1024)
    elif kind < 0.22 and kernel > 1:
        filters = groups = channels
        if _chance(draw, 0.05):
            filters *= 2
    elif kind < 0.3:
        groups = draw.choice((2, 4, 8, 16, 32, 64))
        channels, filters = (max(1, side // groups) * groups for side in (channels, filters))
    transposed = groups == 1 and kernel in (2, 3, 4) and _chance(draw, 0.12)
    sides = {1: (64, 16384), 2: (4, 256), 3: (4, 64)}[dims]
    usual = [s for s in (7, 14, 28, 56, 112, 224) if s >= kernel]
    size = draw.choice(usual) if dims == 2 and _chance(draw, 0.5) else max(kernel, _log(draw, *sides))
    padded = not patches and _chance(draw, 0.93)
    batch = usual_count(draw, 1, 32 if dims == 3 else 512)
    if not padded and dilation * (kernel - 1) + 1 > size:
        dilation = 1
    return convolution_drawn(
        dims=dims, batch=batch, channels=channels, filters=filters, size=size, kernel=kernel, stride=stride,
        dilation=dilation, groups=groups, padded=padded, transposed=transposed, bias=_chance(draw, 0.3),
        channels_last=dims == 2 and _chance(draw, 0.35), input_gradient=not (first or kernel >= 14), training=_chance(draw, 0.92),
        precision=_precision(draw),
    )  # fmt: skip


def convolution_drawn(**settings: Any) -> Drawn:
    """What a convolution of these settings holds and computes."""
    batch, channels, filters, groups = (settings[name] for name in ("batch", "channels", "filters", "groups"))
    dims, size, kernel = settings["dims"], settings["size"], settings["kernel"]
    side = _convolved(
        size, kernel, settings["stride"], settings["dilation"], settings["padded"], settings["transposed"]
    )
    wide = {"first": dims - 1, "rest": 1}.get(settings.get("flat", "no"), dims)  # sides along which the kernel is
    out = side**wide * size ** (dims - wide)
    weights = channels * filters // groups * kernel**wide
    numbers = 2 * (batch * (channels * size**dims + filters * out) + weights)
    positions = batch * (size**dims if settings["transposed"] else out)
    # What convolutions lose against plain products: a little, or with narrow groups nearly everything.
    slow = 6.0 if 1 < groups < channels else 1.5
    if groups == channels > 1:
        slow = _FLOPS[settings["precision"]] / _DEPTHWISE_FLOPS
    return settings, numbers, 6 * slow * positions * weights


def _draw_linear(draw: random.Random) -> Drawn:
    rows, inputs, outputs = usual_count(draw, 4, 131072), usual_width(draw, 16, 16384), usual_width(draw, 16, 16384)
    if _chance(draw, 0.08):
        outputs = draw.choice((1, 2, 10, 21, 1000, 21841, 30522, 32000, 50257, 128256))
    if _chance(draw, 0.3):  # tokens of images or texts
        rows = usual_count(draw, 1, 128) * draw.choice((49, 50, 128, 196, 197, 256, 257, 512, 577, 1024))
    settings: Settings = {"rows": rows, "inputs": inputs, "outputs": outputs, "bias": _chance(draw, 0.65),
                          "input_gradient": _chance(draw, 0.92), "training": _chance(draw, 0.9),
                          "precision": _precision(draw)}  # fmt: skip
    return settings, 2 * (rows * (inputs + outputs) + inputs * outputs), 6.0 * rows * inputs * outputs


def _draw_matmul(draw: random.Random) -> Drawn:
    batch = 1 if _chance(draw, 0.25) else usual_count(draw, 2, 4096)
    m, n, k = (usual_width(draw, 1, 8192) if batch == 1 else usual_width(draw, 1, 2048) for _ in range(3))
    settings = {"batch": batch, "m": m, "n": n, "k": k, "first_transposed": _chance(draw, 0.2),
                "second_transposed": _chance(draw, 0.4), "precision": _precision(draw)}  # fmt: skip
    return settings, 2.0 * batch * (m * k + k * n + m * n), 6.0 * batch * m * n * k


def _draw_grouped_matmul(draw: random.Random) -> Drawn:
    groups = draw.choice((2, 4, 8, 8, 16, 32, 60, 64, 64, 128))
    rows = usual_count(draw, max(groups, 64), 65536)
    inputs, outputs = (max(8, usual_width(draw, 64, 8192) // 8 * 8) for _ in range(2))
    settings: Settings = {"groups": groups, "rows": rows, "inputs": inputs, "outputs": outputs,
                          "skewed": _chance(draw, 0.4), "training": _chance(draw, 0.85), "precision": "bf16"}  # fmt: skip
    numbers = 2.0 * (rows * (inputs + outputs) + groups * inputs * outputs)
    return settings, numbers, 6.0 * rows * inputs * outputs


def _draw_attention(draw: random.Random) -> Drawn:
    backend = _weighted(draw, {"auto": 40, "cudnn": 14, "flash": 14, "efficient": 20, "math": 12})
    half = {"bf16": 60, "fp16": 40}
    precision = _weighted(
        draw, half if backend in ("cudnn", "flash") else {"bf16": 45, "fp16": 15, "fp32": 25, "tf32": 15}
    )
    head_dim = draw.choices(
        (64, 128, 32, 80, 96, 48, 16, 40, 72, 192, 256, 36), (34, 20, 12, 6, 6, 4, 4, 3, 3, 3, 3, 2)
    )[0]
    if head_dim % 8 and backend in ("cudnn", "flash", "efficient"):
        head_dim = 32
    if backend == "cudnn":
        head_dim = min(head_dim, 128)
    heads = draw.choice((1, 2, 3, 4, 6, 8, 12, 12, 16, 16, 20, 32, 32, 40))
    kv_heads = heads
    if backend not in ("efficient", "math") and _chance(draw, 0.2):
        kv_heads = draw.choice([n for n in (1, 2, 4, 8) if heads % n == 0])
    queries = (
        usual_count(draw, 16, 8192)
        if _chance(draw, 0.7)
        else draw.choice((49, 50, 64, 77, 144, 196, 197, 257, 577, 1500))
    )
    keys = queries if _chance(draw, 0.85) else usual_count(draw, 16, 4096)
    mask = _weighted(draw, {"none": 75, "bool": 12, "float": 13}) if backend != "flash" else "none"
    causal = mask == "none" and queries == keys and _chance(draw, 0.4)
    # Batches from one image or text to the many small windows of a windowed transformer.
    batch = usual_count(draw, 1, 128) if queries > 64 else usual_count(draw, 1, 4096)
    settings: Settings = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys, "head_dim": head_dim,
        "causal": causal, "mask": mask, "heads_inside": _chance(draw, 0.8), "dropout": 0.1 if _chance(draw, 0.12) else 0.0,
        "backend": backend, "training": _chance(draw, 0.85), "precision": precision,
    }  # fmt: skip
    scores = batch * heads * queries * keys
    numbers = 4.0 * batch * heads * head_dim * (queries + keys) + batch * queries * keys * (mask != "none")
    if backend == "math" or (backend == "auto" and kv_heads != heads and precision in ("fp32", "tf32")):
        numbers += 5 * scores
    return settings, numbers, (8 if causal else 16) * 1.5 * scores * head_dim


def _draw_recurrent(draw: random.Random) -> Drawn:
    cell = _weighted(draw, {"lstm": 60, "gru": 30, "rnn": 10})
    batch, seq, hidden = usual_count(draw, 1, 1024), usual_count(draw, 8, 512), usual_width(draw, 32, 2048)
    inputs = hidden if _chance(draw, 0.5) else usual_width(draw, 16, 1024)
    layers = draw.choice((1, 1, 1, 2, 2, 3, 4))
    both = _chance(draw, 0.3)
    settings: Settings = {"cell": cell, "batch": batch, "seq": seq, "inputs": inputs, "hidden": hidden, "layers": layers,
                          "bidirectional": both, "batch_first": _chance(draw, 0.7), "precision": _precision(draw)}  # fmt: skip
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell] * (2 if both else 1)
    weights = gates * hidden * (inputs + hidden + (layers - 1) * hidden * (3 if both else 2))
    numbers = 2 * (batch * seq * (inputs + hidden * (gates + 2) * layers) + weights)
    steps = seq * layers * 3e7 * 2  # each step of the sequence waits for the one before: about 2 µs at 3e13 a second
    return settings, numbers, 6.0 * batch * seq * weights * 2 + steps


def _draw_norm(draw: random.Random) -> Drawn:
    kind = _weighted(draw, {"layer": 30, "rms": 17, "batch": 33, "group": 14, "instance": 6})
    channels = usual_width(draw, 8, 8192 if kind in ("layer", "rms") else 2048)
    precision, affine, groups = _precision(draw), _chance(draw, 0.93), 1
    if kind == "batch" and _chance(draw, 0.4):
        precision = draw.choice(("amp-bf16", "amp-bf16", "amp-fp16"))
    if kind == "group":
        groups = draw.choice([g for g in (1, 4, 8, 16, 32, 32, 32) if g <= channels])
        channels -= channels % groups
    if kind in ("layer", "rms"):
        size, channels_last = _log(draw, 1, 4096), False
        positions = size
    else:
        size, channels_last = draw.choice((1, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128)), _chance(draw, 0.35)
        if kind == "instance":
            size = max(4, size)
        positions = size * size
    batch = usual_count(draw, 2, 512)
    settings: Settings = {"kind": kind, "batch": batch, "channels": channels, "size": size, "groups": groups,
                          "affine": affine, "channels_last": channels_last, "training": _chance(draw, 0.9),
                          "precision": precision}  # fmt: skip
    return settings, 4.0 * batch * positions * channels, 0.0


def _matrix(draw: random.Random, most: float = 2e8) -> tuple[int, int]:
    """Rows and columns of up to so many numbers in all."""
    numbers = math.exp(draw.uniform(math.log(256), math.log(most)))
    columns = usual_width(draw, 1, 16384)
    return max(1, round(numbers / columns)), columns


def _draw_elementwise(draw: random.Random) -> Drawn:
    rows, columns = _matrix(draw)
    ops = dict.fromkeys(_UNARY, 2) | dict.fromkeys(_BINARY, 4) | dict.fromkeys(_MASKED, 3)
    op = _weighted(draw, ops | {"add": 12, "mul": 10, "gelu": 5, "silu": 5, "relu": 5, "dropout": 6})
    broadcast = "none" if op in _UNARY else _weighted(draw, {"none": 55, "row": 20, "column": 20, "scalar": 5})
    settings = {"op": op, "rows": rows, "columns": columns, "broadcast": broadcast, "precision": _precision(draw)}
    return settings, (4.0 if op in _UNARY else 6.0) * rows * columns, 0.0


def _draw_cast(draw: random.Random) -> Drawn:
    rows, columns = _matrix(draw)
    source, target = draw.choice((("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp16"), ("fp16", "fp32")))
    return {"rows": rows, "columns": columns, "source": source, "target": target}, 4.0 * rows * columns, 0.0


def _draw_copy(draw: random.Random) -> Drawn:
    op = _weighted(draw, dict.fromkeys(_MOVES, 5) | {"permute": 40, "cat": 15, "split": 12})
    batch = usual_count(draw, 1, 512)
    rows, columns = usual_width(draw, 4, 4096), usual_width(draw, 4, 4096)
    parts = draw.choice((2, 3, 3, 4, 6))
    settings = {"op": op, "batch": batch, "rows": rows, "columns": columns, "order": draw.choice(_ORDERS), "parts": parts,
                "precision": _precision(draw)}  # fmt: skip
    times = parts if op in ("cat", "stack", "split", "repeat") else 4 if op == "shuffle" else 1
    return settings, 4.0 * times * batch * rows * columns, 0.0


def _draw_reduction(draw: random.Random) -> Drawn:
    rows, columns = _matrix(draw)
    way = _weighted(draw, {"rows": 40, "columns": 30, "all": 10, "middle": 20})
    outer, size, inner = {"rows": (rows, columns, 1), "columns": (1, rows, columns), "all": (1, rows * columns, 1),
                          "middle": (max(1, rows // 64), min(rows, 64), columns)}[way]  # fmt: skip
    op = _weighted(draw, {"sum": 30, "mean": 20, "amax": 10, "var": 10, "norm": 10, "logsumexp": 10, "cumsum": 10})
    settings = {"op": op, "outer": outer, "size": max(2, size), "inner": inner, "precision": _precision(draw)}
    return settings, 4.0 * outer * size * inner, 0.0


def _draw_softmax(draw: random.Random) -> Drawn:
    columns = _log(draw, 4, 8192) if _chance(draw, 0.8) else draw.choice((30522, 32000, 50257, 128256))
    rows = usual_count(draw, 1, 262144)
    precision = _precision(draw)
    settings: Settings = {"rows": rows, "columns": columns, "logarithm": _chance(draw, 0.3),
                          "in_fp32": precision in ("bf16", "fp16") and _chance(draw, 0.3), "precision": precision}  # fmt: skip
    return settings, 6.0 * rows * columns, 0.0


def _draw_loss(draw: random.Random) -> Drawn:
    op = _weighted(draw, {"cross_entropy": 50, "smoothed": 15, "mse": 10, "l1": 5, "smooth_l1": 5, "bce": 15})
    classes = draw.choice((2, 10, 1000, 1000, 21841, 30522, 32000, 50257, 128256, 151936, 250002))
    rows, pixels = usual_count(draw, 1, 32768), 1
    if _chance(draw, 0.15):
        classes, rows, pixels = draw.choice((19, 21, 150)), usual_count(draw, 1, 32), draw.choice((128, 256, 512)) ** 2
    settings = {"op": op, "rows": rows, "classes": classes, "pixels": pixels, "precision": _precision(draw)}
    return settings, 6.0 * rows * classes * pixels, 0.0


def _draw_embedding(draw: random.Random) -> Drawn:
    rows, width = _log(draw, 100, 2_000_000), usual_width(draw, 8, 4096)
    picks, bag = usual_count(draw, 1, 65536), draw.choice((1, 1, 1, 1, 8, 32))
    settings = {"rows": rows, "width": width, "picks": picks, "bag": bag, "precision": _precision(draw)}
    return settings, 2.0 * rows * width + 3.0 * picks * width * bag, 0.0


def _draw_indexing(draw: random.Random) -> Drawn:
    rows, width, picks = _log(draw, 16, 500_000), usual_width(draw, 1, 4096), usual_count(draw, 1, 200_000)
    settings = {"op": draw.choice(tuple(_INDEXED)), "rows": rows, "width": width, "picks": picks,
                "precision": _precision(draw)}  # fmt: skip
    return settings, 6.0 * width * (rows + picks), 0.0


def _draw_sorting(draw: random.Random) -> Drawn:
    op = _weighted(draw, {"sort": 30, "topk": 40, "argsort": 15, "argmax": 15})
    rows, columns = usual_count(draw, 1, 65536), _log(draw, 4, 100_000)
    settings = {"op": op, "rows": rows, "columns": columns, "k": min(columns, draw.choice((1, 2, 4, 8, 50, 1000))),
                "precision": draw.choice(("fp32", "bf16"))}  # fmt: skip
    return settings, 20.0 * rows * columns, 0.0


def _draw_pooling(draw: random.Random) -> Drawn:
    op = _weighted(draw, {"max": 45, "avg": 25, "adaptive": 30})
    dims = draw.choices((2, 1, 3), (84, 8, 8))[0]
    size = draw.choice((7, 14, 28, 56, 112)) if dims == 2 else _log(draw, *((16, 8192) if dims == 1 else (4, 32)))
    kernel = draw.choice((1, 1, 1, 7)) if op == "adaptive" else draw.choice((2, 3, 3, 3, 5))
    kernel = min(kernel, size)
    batch, channels = usual_count(draw, 1, 512), usual_width(draw, 8, 2048)
    settings: Settings = {"op": op, "dims": dims, "batch": batch, "channels": channels, "size": size, "kernel": kernel,
                          "stride": draw.choice((1, 2, 2)), "channels_last": dims == 2 and _chance(draw, 0.35),
                          "precision": _precision(draw)}  # fmt: skip
    return settings, 6.0 * batch * channels * size**dims, 0.0


def _draw_interpolation(draw: random.Random) -> Drawn:
    op = _weighted(draw, {"nearest": 35, "bilinear": 40, "bicubic": 12, "grid": 13})
    size = _log(draw, 4, 256)
    target = size * 2 if _chance(draw, 0.5) else _log(draw, 8, 512)
    batch, channels = usual_count(draw, 1, 128), usual_width(draw, 1, 1024)
    settings: Settings = {"op": op, "batch": batch, "channels": channels, "size": size, "target": target,
                          "channels_last": op != "grid" and _chance(draw, 0.25), "precision": _precision(draw)}  # fmt: skip
    return settings, 6.0 * batch * channels * (size**2 + target**2), 0.0


def _draw_optimizer(draw: random.Random) -> Drawn:
    name = draw.choice([n for n in OPTIMIZERS if n not in ("none", "adagrad-fused")])  # that one is for CPUs alone
    kind = draw.choice(tuple(_PARAMETERS))
    width, layers = usual_width(draw, 16, 4096), usual_count(draw, 1, 64)
    settings: Settings = {"name": name, "kind": kind, "width": width, "layers": layers, "clip": _chance(draw, 0.15),
                          "precision": _weighted(draw, {"fp32": 65, "bf16": 35})}  # fmt: skip
    shapes = _PARAMETERS[kind](width)
    numbers = 4.0 * layers * sum(map(math.prod, shapes))
    launches = 12 * len(shapes) * layers * 5e-6 if name.endswith("-forloop") else 0.0  # one after another from the host
    return settings, numbers, launches * _FLOPS["fp32"]


_DRAWS: Final[dict[str, tuple[int, Callable[[random.Random], Drawn]]]] = {
    "convolution": (1500, _draw_convolution),
    "linear": (600, _draw_linear),
    "matmul": (350, _draw_matmul),
    "grouped_matmul": (180, _draw_grouped_matmul),
    "attention": (650, _draw_attention),
    "recurrent": (180, _draw_recurrent),
    "norm": (450, _draw_norm),
    "elementwise": (420, _draw_elementwise),
    "cast": (100, _draw_cast),
    "copy": (300, _draw_copy),
    "reduction": (200, _draw_reduction),
    "softmax": (130, _draw_softmax),
    "loss": (150, _draw_loss),
    "embedding": (130, _draw_embedding),
    "indexing": (220, _draw_indexing),
    "sorting": (80, _draw_sorting),
    "pooling": (180, _draw_pooling),
    "interpolation": (100, _draw_interpolation),
    "optimizer": (240, _draw_optimizer),
}
OPERATORS: Final = tuple(_DRAWS)
