"""Products of matrices: convolutions, linear layers, batched and grouped products, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretell.design.pool.single import Shape, Values, applied, check, operator, workload
from foretell.precision import HALVES, PrecisionName
from foretell.workload import Workload

# Convolutions.


@operator(dims=(1, 3), kernel=(1, 63), stride=(1, 32), dilation=(1, 64))
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
    precision: PrecisionName = "fp32",
) -> Workload:
    """A convolution over `dims` equal sides; without `input_gradient` it is a network's first.

    A flat kernel is 1 wide along the first side or along the rest, as separable convolutions are. Where images are made
    of tokens, or a norm returns them row-major, either they or the weight alone are channels-last.
    """
    check(channels % groups == filters % groups == 0, f"groups={groups} must divide channels and filters")
    check(dims == 2 or not channels_last, "channels_last needs dims=2")
    check(dims == 2 or alone_last == "no", "alone_last needs dims=2")
    thin = [(flat == "first") if i == 0 else (flat == "rest") for i in range(dims)]
    kernels, strides, dilations = (tuple(1 if t else n for t in thin) for n in (kernel, stride, dilation))
    padding = tuple(0 if t else _padding(kernel, dilation, padded) for t in thin)
    side = convolved(size, kernel, stride, dilation, padded, transposed)
    check(side >= 1, f"kernel={kernel} with dilation={dilation} is larger than size={size}")

    def layer() -> nn.Module:
        plain, turned = (nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        kind: type[Any] = (turned if transposed else plain)[dims - 1]
        options = {"stride": strides, "padding": padding, "dilation": dilations, "groups": groups, "bias": bias}
        made: nn.Module = kind(channels, filters, kernels, **options)
        return made.to(memory_format=torch.channels_last) if alone_last == "weight" else made  # type: ignore[call-overload]

    def images(*shape: int) -> Callable[[], torch.Tensor]:
        last = alone_last == "images"
        return lambda: torch.randn(shape).contiguous(memory_format=torch.channels_last) if last else torch.randn(shape)

    x, out = images(batch, channels, *[size] * dims), images(batch, filters, *(size if t else side for t in thin))
    wanted = ("x",) if input_gradient else ()
    options: dict[str, Any] = {"wanted": wanted, "training": training, "channels_last": channels_last}
    return workload(applied, {"x": x}, [out], layer=layer, precision=precision, **options)


def _padding(kernel: int, dilation: int, padded: bool) -> int:
    return dilation * (kernel - 1) // 2 if padded else 0


def convolved(size: int, kernel: int, stride: int, dilation: int, padded: bool, transposed: bool) -> int:
    """The side of the output."""
    beyond = dilation * (kernel - 1) - 2 * _padding(kernel, dilation, padded)
    return (size - 1) * stride + beyond + 1 if transposed else (size - beyond - 1) // stride + 1


# Matrix products.


@operator()
def linear(
    *,
    rows: int = 1024,
    inputs: int = 1024,
    outputs: int = 1024,
    bias: bool = True,
    input_gradient: bool = True,
    training: bool = True,
    precision: PrecisionName = "fp32",
) -> Workload:
    """A linear layer: addmm forward, two products backward."""

    def layer() -> nn.Module:
        return nn.Linear(inputs, outputs, bias=bias)

    x, out, wanted = {"x": (rows, inputs)}, [(rows, outputs)], ("x",) if input_gradient else ()
    return workload(applied, x, out, layer=layer, wanted=wanted, training=training, precision=precision)


@operator()
def matmul(
    *,
    batch: int = 8,
    m: int = 256,
    n: int = 256,
    k: int = 256,
    first_transposed: bool = False,
    second_transposed: bool = False,
    second_shared: bool = False,
    precision: PrecisionName = "fp32",
) -> Workload:
    """(m × k) times (k × n), `batch` of them: bmm, or mm where batch is 1. A shared second matrix is one for all."""

    def shape(rows: int, columns: int, turned: bool = False) -> Shape:
        sides = (columns, rows) if turned else (rows, columns)
        return sides if batch == 1 else (batch, *sides)

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.mT if first_transposed else x) @ (y.mT if second_transposed else y)

    def second() -> torch.Tensor:
        sides = shape(k, n, second_transposed)
        return torch.randn(sides[-2:]).expand(sides) if second_shared else torch.randn(sides)

    factors: dict[str, Values] = {"x": shape(m, k, first_transposed), "y": second}
    return workload(product, factors, [shape(m, n)], wanted=("x", "y"), precision=precision)


@operator()
def grouped_matmul(
    *,
    groups: int = 8,
    rows: int = 2048,
    inputs: int = 1024,
    outputs: int = 1024,
    skewed: bool = False,
    training: bool = True,
    precision: PrecisionName = "bf16",
) -> Workload:
    """Rows of one matrix, each group times a matrix of its own, as experts do; skewed: the first groups get most."""
    check(rows >= groups, f"rows={rows} must be at least groups={groups}")
    check(inputs % 8 == outputs % 8 == 0, "inputs and outputs must be multiples of 8")
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    exponent = 2.0 if skewed else 1.0
    ends = [rows - round(rows * (1 - i / groups) ** exponent) for i in range(1, groups + 1)]  # where a group's rows end

    def multiply(x: Any, experts: Any, ends: Any) -> Any:
        return product(x, experts, offs=ends)

    x: dict[str, Values] = {"x": (rows, inputs), "experts": (groups, inputs, outputs)}
    x["ends"] = lambda: torch.tensor(ends, dtype=torch.int32)
    return workload(multiply, x, [(rows, outputs)], wanted=("x", "experts"), training=training, precision=precision)


# Attention.

_BACKENDS: Final = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@operator()
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
    backend: Literal["auto", "cudnn", "flash", "efficient", "math"] = "auto",
    training: bool = True,
    precision: PrecisionName = "bf16",
) -> Workload:
    """Scaled dot-product attention; with `heads_inside` its inputs are stored as (batch, length, heads, head_dim)."""
    half = precision in HALVES
    check(heads % kv_heads == 0, f"kv_heads={kv_heads} must divide heads={heads}")
    check(mask == "none" or not causal, "causal attention takes no mask")
    check(0 <= dropout < 1, f"dropout must be from 0 up to 1, got {dropout}")
    check(backend != "flash" or (mask == "none" and half), "the flash backend takes bf16 or fp16 and no mask")
    check(backend != "cudnn" or half, "the cuDNN backend takes bf16 or fp16")
    check(backend != "efficient" or heads == kv_heads, "the efficient backend takes no grouped heads")

    def tensor(count: int, length: int) -> Callable[[], torch.Tensor]:
        inside, outside = (batch, length, count, head_dim), (batch, count, length, head_dim)
        return lambda: torch.randn(inside).transpose(1, 2) if heads_inside else torch.randn(outside)

    masks: dict[str, dict[str, Any]] = {
        "none": {},
        "bool": {"mask": lambda: torch.rand(batch, 1, queries, keys) < 0.9},
        "float": {"mask": (batch, 1, queries, keys)},
    }
    options: dict[str, Any] = {"is_causal": causal, "dropout_p": dropout, "enable_gqa": heads != kv_heads}

    def attend(q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
        if backend == "auto":
            return F.scaled_dot_product_attention(q, k, v, mask, **options)
        with sdpa_kernel(_BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, mask, **options)

    x = {"q": tensor(heads, queries), "k": tensor(kv_heads, keys), "v": tensor(kv_heads, keys), **masks[mask]}
    out = [tensor(heads, queries)]
    return workload(attend, x, out, wanted=("q", "k", "v"), training=training, precision=precision)


# Recurrent layers.


@operator(layers=(1, 16))
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
    precision: PrecisionName = "fp32",
) -> Workload:
    """Recurrent layers over a sequence, as cuDNN runs them: all layers and steps in one call."""
    kind: type[Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell]
    sides = (batch, seq) if batch_first else (seq, batch)

    def layer() -> nn.Module:
        made: nn.Module = kind(inputs, hidden, layers, batch_first=batch_first, bidirectional=bidirectional)
        return made

    out = [(*sides, hidden * (2 if bidirectional else 1))]
    return workload(lambda layer, x: layer(x)[0], {"x": (*sides, inputs)}, out, layer=layer, precision=precision)
