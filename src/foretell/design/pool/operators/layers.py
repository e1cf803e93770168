"""Norms, pooling, resizing, lookups, orders, and the updates of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn import functional as F

from foretell.capture.dtypes import half_dtype
from foretell.design.pool.single import Shape, applied, check, check_range, operator, workload
from foretell.precision import Precision, PrecisionName
from foretell.sources.named.optimizers import OPTIMIZERS, optimizer_named
from foretell.workload import Workload

# Norms.


@operator()
def norm(
    *,
    kind: Literal["layer", "rms", "batch", "rows", "group", "instance"] = "layer",
    batch: int = 32,
    channels: int = 256,
    size: int = 14,
    groups: int = 32,
    affine: bool = True,
    channels_last: bool = False,
    training: bool = True,
    precision: PrecisionName = "fp32",
) -> Workload:
    """Over the last of (batch, size, channels) for layer and rms; of (batch, channels) for rows, a batch norm without
    images; of (batch, channels, size, size) for the others.

    A mixed precision, amp-bf16 or amp-fp16, means batch norm of half-precision images with weights in fp32.
    """
    check(kind != "group" or channels % groups == 0, f"groups={groups} must divide channels={channels}")
    check(not (kind in ("layer", "rms", "rows") and channels_last), "channels_last is a layout of images")
    autocast = Precision.parse(precision).autocast
    check(kind in ("batch", "rows") or not autocast, "mixed precision is for batch norm alone")
    images, tokens = (batch, channels, size, size), (batch, size, channels)
    layers: dict[str, tuple[Shape, Callable[[], nn.Module]]] = {
        "layer": (tokens, lambda: nn.LayerNorm(channels, elementwise_affine=affine)),
        "rms": (tokens, lambda: nn.RMSNorm(channels, elementwise_affine=affine)),
        "batch": (images, lambda: nn.BatchNorm2d(channels, affine=affine)),
        "rows": ((batch, channels), lambda: nn.BatchNorm1d(channels, affine=affine)),
        "group": (images, lambda: nn.GroupNorm(groups, channels, affine=affine)),
        "instance": (images, lambda: nn.InstanceNorm2d(channels, affine=affine)),
    }
    shape, layer = layers[kind]
    dtype = half_dtype(autocast)

    def numbers() -> torch.Tensor:
        return torch.randn(shape, dtype=dtype)

    options: dict[str, Any] = {"training": training, "precision": precision, "channels_last": channels_last}
    return workload(applied, {"x": numbers}, [numbers], layer=layer, **options)


# Pooling and interpolation.


@operator(dims=(1, 3), kernel=(1, 31), stride=(1, 32))
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
    precision: PrecisionName = "fp32",
) -> Workload:
    """Pooling over `dims` equal sides; adaptive averages to `kernel` places a side, whatever the stride."""
    check(kernel <= size, f"kernel={kernel} is larger than size={size}")
    check(dims == 2 or not channels_last, "channels_last needs dims=2")
    side = kernel if op == "adaptive" else (size + 2 * (kernel // 2) - kernel) // stride + 1
    kinds: dict[str, tuple[type[Any], ...]] = {
        "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
        "avg": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        "adaptive": (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    }
    options = {} if op == "adaptive" else {"stride": stride, "padding": kernel // 2}

    def layer() -> nn.Module:
        made: nn.Module = kinds[op][dims - 1](kernel, **options)
        return made

    x, out = {"x": (batch, channels, *[size] * dims)}, [(batch, channels, *[side] * dims)]
    return workload(applied, x, out, layer=layer, precision=precision, channels_last=channels_last)


RESIZES: Final = ("nearest", "bilinear", "bicubic", "grid")


@operator(op=RESIZES)
def interpolation(
    *,
    op: str = "bilinear",
    batch: int = 8,
    channels: int = 64,
    size: int = 32,
    target: int = 64,
    channels_last: bool = False,
    precision: PrecisionName = "fp32",
) -> Workload:
    """Images of one size made another; `grid` samples them at places of its own."""

    def resize(x: torch.Tensor, places: Any = None) -> torch.Tensor:
        if op == "grid":
            return F.grid_sample(x, places, align_corners=False)
        return F.interpolate(x, size=(target, target), mode=op)

    x: dict[str, Any] = {"x": (batch, channels, size, size)}
    if op == "grid":
        x["places"] = lambda: torch.rand(batch, target, target, 2) * 2 - 1
    out, wanted = [(batch, channels, target, target)], ("x", "places")
    return workload(resize, x, out, wanted=wanted, precision=precision, channels_last=channels_last)


# Tables and indices.


@operator()
def embedding(
    *, rows: int = 30_000, width: int = 256, picks: int = 4096, bag: int = 1, precision: PrecisionName = "fp32"
) -> Workload:
    """Rows looked up in a table; with bag > 1, so many are summed each time."""
    shape = (picks, bag) if bag > 1 else (picks,)

    def layer() -> nn.Module:
        return nn.EmbeddingBag(rows, width, mode="sum") if bag > 1 else nn.Embedding(rows, width)

    index = {"index": lambda: torch.randint(rows, shape)}
    return workload(applied, index, [(picks, width)], layer=layer, wanted=(), precision=precision)


_TAKE: Final[Mapping[str, Callable[..., Any]]] = {
    "gather": lambda x, index: x.gather(0, index[:, None].expand(-1, x.shape[1])),
    "index_select": lambda x, index: x.index_select(0, index),
    "index": lambda x, index: x[index],
}
INDEXED: Final[Mapping[str, Callable[..., Any]]] = {
    **_TAKE,
    "scatter": lambda x, index, y: x.scatter(0, index[:, None].expand_as(y), y),
    "scatter_add": lambda x, index, y: x.scatter_add(0, index[:, None].expand_as(y), y),
    "index_add": lambda x, index, y: x.index_add(0, index, y),
    "index_copy": lambda x, index, y: x.index_copy(0, index, y),
    "index_put": lambda x, index, y: x.index_put((index,), y),
    "index_put_accumulate": lambda x, index, y: x.index_put((index,), y, accumulate=True),
}


@operator(op=INDEXED)
def indexing(
    *, op: str = "gather", rows: int = 4096, width: int = 256, picks: int = 4096, precision: PrecisionName = "fp32"
) -> Workload:
    """Rows taken from, or put into, a matrix (rows, width), `picks` of them at random."""
    x: dict[str, Any] = {"x": (rows, width), "index": lambda: torch.randint(rows, (picks,))}
    if op not in _TAKE:
        x["y"] = (picks, width)
    out = [(picks if op in _TAKE else rows, width)]
    return workload(INDEXED[op], x, out, wanted=("x", "y"), precision=precision)


SORTS: Final[Mapping[str, Callable[..., Any]]] = {
    "sort": lambda x, k: x.sort(-1)[0],
    "argsort": lambda x, k: x.argsort(-1),
    "topk": lambda x, k: x.topk(k, -1)[0],
    "argmax": lambda x, k: x.argmax(-1),
}


@operator(op=SORTS)
def sorting(
    *, op: str = "sort", rows: int = 64, columns: int = 1024, k: int = 8, precision: PrecisionName = "fp32"
) -> Workload:
    """Rows sorted, or the `k` largest of each."""
    check_range("k", k, 1, columns)
    out, has_gradient = [(rows, k if op == "topk" else columns)], op not in ("argsort", "argmax")
    return workload(lambda x: SORTS[op](x, k), {"x": (rows, columns)}, out, training=has_gradient, precision=precision)


# Optimizers.

PARAMETERS: Final[Mapping[str, Callable[[int], list[Shape]]]] = {  # of one layer of a width
    "transformer": lambda w: [(3 * w, w), (3 * w,), (w, w), (w,), (4 * w, w), (4 * w,), (w, 4 * w), *[(w,)] * 5],
    "decoder": lambda w: [*[(w, w)] * 4, (8 * w // 3, w), (8 * w // 3, w), (w, 8 * w // 3), (w,), (w,)],
    "convolutions": lambda w: [(w, 4 * w, 1, 1), (w, w, 3, 3), (4 * w, w, 1, 1), *[(w,)] * 4, *[(4 * w,)] * 2],
    "depthwise": lambda w: [(6 * w, w, 1, 1), (6 * w, 1, 3, 3), (w, 6 * w, 1, 1), *[(6 * w,)] * 4, *[(w,)] * 2],
    "linear": lambda w: [(w, w), (w,)],
    "table": lambda w: [(64 * w, w)],
}


@operator(name=[name for name in OPTIMIZERS if name != "none"], kind=PARAMETERS)
def optimizer(
    *,
    name: str = "adamw",
    kind: str = "transformer",
    width: int = 256,
    layers: int = 4,
    clip: bool = False,
    precision: PrecisionName = "fp32",
) -> Workload:
    """One update of the parameters of so many layers, with gradients that are there already."""
    shapes = PARAMETERS[kind](width) * layers

    def step(model: Any, optimizer: Any, b: Mapping[str, Any]) -> None:
        for parameter, gradient in zip(model.parameters(), b["gradients"], strict=True):
            parameter.grad = gradient
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Workload(
        name="optimizer",
        model=lambda: nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes]),
        batch=lambda: {"gradients": [torch.randn(shape) for shape in shapes]},
        loss=lambda model, b: model[0].sum(),
        optimizer=optimizer_named(name),
        precision=precision,
        samples=1,
        step=step,
    )
