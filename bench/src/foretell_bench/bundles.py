"""Many operators of one kind in one step: building and recording a step takes the host far longer than running it.

`bundle` is a SOURCE, `foretell_bench.bundles:bundle`; what is in it follows from its settings. Shapes are the pool's,
except for kinds that are drawn as networks have them: convolutions have more channels the narrower the image is, and
some operators come in shapes that the pool meets too seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from foretell.design.pool import operators as pool
from foretell.design.pool.shapes import (
    OPERATORS,
    Draw,
    OperatorDraw,
    Settings,
    bytes_of,
    convolution_drawn,
    drawn,
    seconds_of,
)
from foretell.errors import WorkloadError, did_you_mean
from foretell.precision import PrecisionName
from foretell.sources.named.optimizers import OPTIMIZERS
from foretell.units import GIB
from foretell.workload import Workload

SOURCE: Final = "foretell_bench.bundles:bundle"
_BYTES: Final = 3 * GIB  # of all together, so that several bundles fit next to each other
_SECONDS: Final = 0.1


def bundle(*, of: str = "convolution", count: int = 24, seed: int = 0, precision: PrecisionName = "bf16") -> Workload:
    """Up to `count` operators, each forward and backward."""
    check_bundle(of, count, _KINDS)
    operator = getattr(pool, _KINDS[of][0])
    parts = [operator(**settings) for settings in _drawn(of, count, seed, precision)]
    return together(f"bundle of {of}", parts, precision, trains=of not in _INFERENCE)


def check_bundle(of: str, count: int, kinds: Mapping[str, object]) -> None:
    if of not in kinds:
        raise WorkloadError(
            f"of={of!r} is no kind of operator here. {did_you_mean(of, kinds)}Allowed: {', '.join(kinds)}."
        )
    if count < 1:
        raise WorkloadError(f"count must be at least 1, got {count}. Give another --set count=….")


def together(name: str, parts: Sequence[Workload], precision: PrecisionName, *, trains: bool = True) -> Workload:
    """Workloads of single operators as one step."""

    def model() -> nn.Module:
        made = [part.model() for part in parts]
        return nn.ModuleList(_as(part, module) for part, module in zip(parts, made, strict=True))

    def batch() -> dict[str, Any]:
        made = enumerate((part, part.batch()) for part in parts)
        return {str(i): _channels_last(b) if part.channels_last else b for i, (part, b) in made}

    def loss(model: Any, b: Mapping[str, Any]) -> Any:
        each = [part.loss(model[i], b[str(i)]) for i, part in enumerate(parts)]
        # Some operators have no gradient, as an order of numbers has none: they run forward alone.
        losses = [found for part, found in zip(parts, each, strict=True) if part.optimizer is not None]
        return torch.stack(losses).sum() if trains and losses else each

    optimizer = OPTIMIZERS["sgd"] if trains else None
    return Workload(name=name, model=model, batch=batch, loss=loss, optimizer=optimizer, precision=precision, samples=1)


def _as(part: Workload, module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last) if part.channels_last else module  # type: ignore[call-overload]


def _channels_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
    if isinstance(value, Mapping):
        return {name: _channels_last(item) for name, item in value.items()}
    return [_channels_last(item) for item in value] if isinstance(value, list) else value


def _drawn(of: str, count: int, seed: int, precision: str) -> list[Settings]:
    draw = Draw(f"{of}/{seed}/{precision}")
    operator, one = _KINDS[of]
    chosen: list[Settings] = []
    left, seconds = float(_BYTES), _SECONDS
    for _ in range(20 * count):
        settings, numbers, flops = one(draw)
        if "precision" in settings:
            settings["precision"] = precision
        if "training" in settings:
            settings["training"] = of not in _INFERENCE
        size, needed = bytes_of(precision, numbers), seconds_of(precision, numbers, flops)
        if len(chosen) == count or not _is_possible(operator, settings):
            continue
        if size < left / 4 and needed < seconds / 4:
            chosen.append(settings)
            left, seconds = left - size, seconds - needed
    return chosen


def _is_possible(operator: str, settings: Settings) -> bool:
    """Some backends of attention take half precision alone."""
    half = settings["precision"].endswith("16")
    return not (operator == "attention" and settings["backend"] in ("cudnn", "flash") and not half)


_STAGES: Final = {  # what a convolution is for, and how often
    "pointwise": 28, "dense": 20, "depthwise": 14, "grouped": 10, "first": 5, "squeeze": 4, "flat": 4, "line": 4,
    "volume": 5, "transposed": 3, "dilated": 3,
}  # fmt: skip


def _convolution(draw: Draw, kinds: Mapping[str, int] = _STAGES, *, mixed: bool = False) -> OperatorDraw:
    """A convolution as some stage of some network has it; `mixed`: images and weight need not lie alike."""
    kind = draw.weighted(kinds)
    stage = draw.randrange(5)
    dims = {"line": 1, "volume": 3}.get(kind, 2)
    line, volume = draw.choice((64, 128, 197, 512, 1000, 3000, 6000)), draw.choice((4, 7, 8, 14, 16, 28, 56))
    size = {1: line, 2: 112 >> stage, 3: volume}[dims]
    if dims == 2 and draw.chance(0.35):
        size = max(4, round(size * draw.uniform(0.6, 1.5)))
    widest = (64, 192, 512, 1024, 2048)[stage] if dims == 2 else 512
    channels, filters = draw.width(8, widest), draw.width(8, widest)
    if draw.chance(0.35):
        filters = channels
    kernel, stride = draw.choice((3, 3, 3, 3, 5, 7)), 1 if draw.chance(0.75) else 2
    more: Settings = {"dilation": 1, "groups": 1, "padded": True, "flat": "no", "transposed": False}
    if kind in ("pointwise", "squeeze"):
        kernel = 1
    if kind == "squeeze":
        size, stride = 1, 1
    if kind in ("depthwise", "multiplied"):
        kernel, filters, more["groups"] = draw.choice((3, 3, 3, 5, 5, 7, 7, 9, 11)), channels, channels
        filters *= 2 if kind == "multiplied" or draw.chance(0.06) else 1
    if kind == "grouped":
        width = draw.choice((4, 8, 8, 16, 16, 24, 32, 32, 40, 48, 64, 96, 120, 128))
        more["groups"] = max(2, min(64, channels // width))
        channels = filters = more["groups"] * width
        kernel = 1 if draw.chance(0.25) else 3
    if kind == "first":
        ways = ((7, 2, True), (3, 2, True), (3, 1, True), (4, 4, False), (16, 16, False), (14, 14, False))
        kernel, stride, more["padded"] = draw.choice(ways)
        channels, size = draw.choice((1, 3, 3, 3)), draw.choice((112, 160, 224, 224, 256, 320))
        filters = draw.width(16, 1024)
    if kind in ("flat", "volume"):
        more["flat"] = draw.choice(("first", "rest") if kind == "flat" else ("no", "no", "first", "rest"))
        kernel = draw.choice((3, 3, 7, 7, 5) if kind == "flat" else (3, 3, 3, 7, 1))
        if kind == "volume" and draw.chance(0.15):
            channels, size = 3, draw.choice((56, 112))
    if kind == "line":
        kernel, stride = draw.choice(((1, 1), (2, 2), (3, 1), (3, 2), (5, 1), (10, 5), (31, 1)))
        if draw.chance(0.3):
            filters = more["groups"] = channels
    if kind == "transposed":
        kernel, stride, more["padded"] = draw.choice(((2, 2, False), (4, 2, True), (3, 1, True)))
        more["transposed"] = True
    if kind == "dilated":
        kernel, stride, more["dilation"] = 3, 1, draw.choice((2, 4, 6, 12, 18))
    if not more["padded"] and kernel > size:
        kernel = stride = 1
    alone = draw.choice(("no", "images", "weight")) if mixed else "no"
    few = draw.chance(0.4)  # steps of a few samples leave the device idle, and take other kernels
    batch = draw.randint(1, 8) if few else draw.count(4, 24 if dims == 3 else 512)
    more |= {"dims": dims, "batch": batch, "channels": channels, "filters": filters, "size": size, "kernel": kernel}
    more |= {"stride": stride, "bias": draw.chance(0.3), "alone_last": alone, "input_gradient": kind != "first"}
    more["channels_last"] = dims == 2 and alone == "no" and draw.chance(0.35)
    return convolution_drawn(**more, precision="fp32")


def _thin_linear(draw: Draw) -> OperatorDraw:
    """Many rows and few columns on one side, as heads that mix, gates and projections of single numbers have them."""
    thin, wide = draw.choice((1, 2, 3, 4, 6, 8, 9, 12, 16, 21, 24, 32)), draw.width(2, 1024)
    inputs, outputs = (thin, wide) if draw.chance(0.5) else (wide, thin)
    rows = draw.count(64, 30_000_000)
    settings: Settings = {"rows": rows, "inputs": inputs, "outputs": outputs, "bias": draw.chance(0.6)}
    settings |= {"input_gradient": True, "training": True, "precision": "fp32"}
    return settings, 2.0 * rows * (inputs + outputs), 6.0 * rows * inputs * outputs


def _head_product(draw: Draw) -> OperatorDraw:
    """Scores or values of attention, and windows of it: many small products."""
    lengths = (4, 16, 49, 50, 64, 98, 128, 144, 196, 197, 256, 384, 512, 785, 1024)
    length, other = (draw.choice(lengths) for _ in range(2))
    if draw.chance(0.75):
        other = length
    head = draw.choice((8, 16, 24, 32, 32, 48, 64, 64, 64, 80, 96, 128))
    m, n, k = (length, other, head) if draw.chance(0.5) else (length, head, other)
    batch = draw.count(2, 16384)
    settings: Settings = {"batch": batch, "m": m, "n": n, "k": k, "first_transposed": draw.chance(0.15)}
    settings |= {"second_transposed": draw.chance(0.5), "precision": "fp32"}
    return settings, 2.0 * batch * (m * k + k * n + m * n), 6.0 * batch * m * n * k


def _tiny_product(draw: Draw) -> OperatorDraw:
    """Heads mixed with each other, sums written as products: sides of a few numbers, many times."""
    sides = [draw.choice((1, 1, 2, 3, 4, 4, 6, 8, 8, 12, 16)) for _ in range(2)]
    m, n, k = draw.sample((draw.choice((1, 4, 16, 49, 64, 196, 197, 384, 577)), *sides), 3)
    batch = draw.count(64, 4_000_000)
    settings: Settings = {"batch": batch, "m": m, "n": n, "k": k, "first_transposed": draw.chance(0.15)}
    settings |= {"second_transposed": draw.chance(0.5), "second_shared": draw.chance(0.4), "precision": "fp32"}
    return settings, 2.0 * batch * (m * k + k * n + m * n), 200.0 * batch * m * n * k


def _norm(kind: str, batch: int, channels: int, size: int, channels_last: bool) -> OperatorDraw:
    settings: Settings = {"kind": kind, "batch": batch, "channels": channels, "size": size, "groups": 1, "affine": True}
    settings |= {"channels_last": channels_last, "training": True, "precision": "fp32"}
    return settings, 4.0 * batch * channels * size**2, 0.0


def _row_norm(draw: Draw) -> OperatorDraw:
    """A batch norm without images."""
    return _norm("rows", draw.count(8, 400_000), draw.width(16, 2560), 1, False)


def _batch_norm(draw: Draw) -> OperatorDraw:
    """Over images: the narrower, the more channels."""
    stage = draw.randrange(5)
    size = max(1, round((112 >> stage) * (1 if draw.chance(0.6) else draw.uniform(0.5, 1.5))))
    batch, channels = draw.count(1, 512), draw.width(8, (96, 256, 640, 1280, 2560)[stage])
    return _norm("batch", batch, channels, size, draw.chance(0.35))


def _resize(draw: Draw) -> OperatorDraw:
    """Images enlarged as segmentation and detection do, by two up to thirty-two times, or brought to any size."""
    op = draw.choice(("nearest", "bilinear", "bilinear", "bilinear", "bicubic"))
    size = draw.choice((1, 2, 4, 7, 8, 14, 16, 20, 28, 32, 33, 40, 56, 64, 65, 112, 128))
    factor = draw.choice((0.5, 2, 2, 4, 8, 8, 16, 32, draw.uniform(0.4, 8)))
    target = min(1024, max(1, round(size * factor)))
    batch, channels = draw.count(1, 64), draw.width(1, 1024)
    settings: Settings = {"op": op, "batch": batch, "channels": channels, "size": size, "target": target}
    settings |= {"channels_last": draw.chance(0.3), "precision": "fp32"}
    return settings, 6.0 * batch * channels * (size**2 + target**2), 0.0


_GROUPED: Final = {"grouped": 6, "depthwise": 4}
_DENSE: Final = {"dense": 5, "pointwise": 3, "dilated": 1, "first": 1}
_MIXED: Final = {"pointwise": 3, "dense": 3, "multiplied": 3, "depthwise": 2}
_KINDS: Final[
    Mapping[str, tuple[str, Callable[[Draw], OperatorDraw]]]
] = {  # name → operator of the pool, and its shapes
    **{name: (name, partial(drawn, name)) for name in OPERATORS if name not in ("optimizer", "cast")},
    "convolution": ("convolution", _convolution),
    "grouped_convolution": ("convolution", partial(_convolution, kinds=_GROUPED)),
    "dense_convolution": ("convolution", partial(_convolution, kinds=_DENSE)),
    "mixed_convolution": ("convolution", partial(_convolution, kinds=_MIXED, mixed=True)),
    "volume_convolution": ("convolution", partial(_convolution, kinds={"volume": 1})),
    "thin_linear": ("linear", _thin_linear),
    "head_product": ("matmul", _head_product),
    "tiny_product": ("matmul", _tiny_product),
    "resize": ("interpolation", _resize),
    "batch_norm": ("norm", _batch_norm),
    "batch_norm_inference": ("norm", _batch_norm),
    "row_norm": ("norm", _row_norm),
    "row_norm_inference": ("norm", _row_norm),
    "norm_inference": ("norm", partial(drawn, "norm")),
}
_INFERENCE: Final = ("batch_norm_inference", "row_norm_inference", "norm_inference")
