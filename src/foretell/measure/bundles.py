"""Many operators of one kind in one step: building and recording a step takes the host far longer than running it.

`bundle` is a SOURCE, `foretell.measure.bundles:bundle`; what is in it follows from its settings. Shapes are the pool's,
except for convolutions, which are drawn as networks have them: the narrower the image, the more channels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from foretell.capture.zoo.optimizers import OPTIMIZERS
from foretell.errors import WorkloadError, did_you_mean
from foretell.measure import pool
from foretell.measure.record import Point
from foretell.units import GIB
from foretell.workload import Precision, Workload

SOURCE: Final = "foretell.measure.bundles:bundle"
_KINDS: Final = tuple(name for name in pool.OPERATORS if name not in ("optimizer", "cast"))  # with a step of their own
_BYTES: Final = 3 * GIB  # of all together, so that several bundles fit beside each other
_SECONDS: Final = 0.1


def bundle(*, of: str = "convolution", count: int = 24, seed: int = 0, precision: Precision = "bf16") -> Workload:
    """Up to `count` operators, each forward and backward."""
    if of not in _KINDS:
        raise WorkloadError(
            f"of={of!r} is no kind of operator here. {did_you_mean(of, _KINDS)}Allowed: {', '.join(_KINDS)}."
        )
    if count < 1:
        raise WorkloadError(f"count must be at least 1, got {count}. Give another --set count=….")
    parts = [getattr(pool, of)(**settings) for settings in _drawn(of, count, seed, precision)]

    def model() -> nn.Module:
        made = [part.model() for part in parts]
        return nn.ModuleList(_as(part, module) for part, module in zip(parts, made, strict=True))

    def batch() -> dict[str, Any]:
        return {
            str(i): _channels_last(part.batch()) if part.channels_last else part.batch() for i, part in enumerate(parts)
        }

    def loss(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        return torch.stack([part.loss(model[i], b[str(i)]) for i, part in enumerate(parts)]).sum()

    return Workload(
        name=f"bundle of {of}", model=model, batch=batch, loss=loss, optimizer=OPTIMIZERS["sgd"], precision=precision, samples=1
    )  # fmt: skip


def points(seed: int, shares: Mapping[str, int]) -> list[Point]:
    """Bundles in all precisions, as many of each kind as `shares` says, kinds mixed."""
    made = [
        Point(source=SOURCE, kind="operators", settings={"of": of, "seed": f"{seed}{i:04}", "precision": precision})
        for of, share in shares.items()
        for i in range(share)
        for precision in (("bf16",) if of == "grouped_matmul" else ("fp32", "tf32", "bf16", "fp16"))
    ]
    random.Random(seed).shuffle(made)
    return made


def _as(part: Workload, module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last) if part.channels_last else module  # type: ignore[call-overload]


def _channels_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
    if isinstance(value, Mapping):
        return {name: _channels_last(item) for name, item in value.items()}
    return [_channels_last(item) for item in value] if isinstance(value, list) else value


def _drawn(of: str, count: int, seed: int, precision: str) -> list[pool.Settings]:
    draw = random.Random(f"{of}/{seed}/{precision}")
    one: Callable[[random.Random, str], pool.Drawn] = (
        _convolution if of == "convolution" else lambda d, p: pool.drawn(of, d)
    )
    chosen: list[pool.Settings] = []
    size, left, seconds = (2 if precision.endswith("16") else 4), float(_BYTES), _SECONDS
    for _ in range(20 * count):
        settings, numbers, flops = one(draw, precision)
        if "precision" in settings:
            settings["precision"] = precision
        if "training" in settings:
            settings["training"] = True
        takes = pool.seconds_of(precision, numbers, flops)
        if len(chosen) == count or not _is_possible(of, settings):
            continue
        if numbers * size < left / 4 and takes < seconds / 4:
            chosen.append(settings)
            left, seconds = left - numbers * size, seconds - takes
    return chosen


def _is_possible(of: str, settings: pool.Settings) -> bool:
    """Some backends of attention take half precision alone."""
    return not (
        of == "attention" and settings["backend"] in ("cudnn", "flash") and not settings["precision"].endswith("16")
    )


def _convolution(draw: random.Random, precision: str) -> pool.Drawn:
    """A convolution as some stage of some network has it."""
    kind = draw.choices(
        ("pointwise", "dense", "depthwise", "grouped", "first", "squeeze", "flat", "line", "volume", "transposed", "dilated"),
        (28, 20, 14, 10, 5, 4, 4, 4, 5, 3, 3),
    )[0]  # fmt: skip
    stage = draw.randrange(5)
    dims = {"line": 1, "volume": 3}.get(kind, 2)
    size = {1: draw.choice((64, 128, 197, 512, 1000, 3000, 6000)), 3: draw.choice((4, 7, 8, 14, 16, 28, 56))}.get(
        dims, 112 >> stage
    )
    if dims == 2 and draw.random() < 0.35:
        size = max(4, round(size * draw.uniform(0.6, 1.5)))
    widest = (64, 192, 512, 1024, 2048)[stage] if dims == 2 else 512
    channels, filters = pool.usual_width(draw, 8, widest), pool.usual_width(draw, 8, widest)
    if draw.random() < 0.35:
        filters = channels
    kernel, stride, dilation, groups, flat = (
        draw.choice((3, 3, 3, 3, 5, 7)),
        1 if draw.random() < 0.75 else 2,
        1,
        1,
        "no",
    )
    padded, transposed, first = True, False, kind == "first"
    if kind in ("pointwise", "squeeze"):
        kernel = 1
    if kind == "squeeze":
        size, stride = 1, 1
    if kind == "depthwise":
        kernel, filters, groups = draw.choice((3, 3, 3, 5, 5, 7, 7, 9, 11)), channels, channels
        filters *= 2 if draw.random() < 0.06 else 1
    if kind == "grouped":
        width = draw.choice((4, 8, 8, 16, 16, 24, 32, 32, 40, 48, 64, 96, 120, 128))
        groups = max(2, min(64, channels // width))
        channels = filters = groups * width
        kernel = 1 if draw.random() < 0.25 else 3
    if first:
        kernel, stride, padded = draw.choice(
            ((7, 2, True), (3, 2, True), (3, 1, True), (4, 4, False), (16, 16, False), (14, 14, False))
        )
        channels, size, filters = (
            draw.choice((1, 3, 3, 3)),
            draw.choice((112, 160, 224, 224, 256, 320)),
            pool.usual_width(draw, 16, 1024),
        )
    if kind in ("flat", "volume"):
        flat = draw.choice(("first", "rest") if kind == "flat" else ("no", "no", "first", "rest"))
        kernel = draw.choice((3, 3, 7, 7, 5)) if kind == "flat" else draw.choice((3, 3, 3, 7, 1))
        if kind == "volume" and draw.random() < 0.15:
            channels, size = 3, draw.choice((56, 112))
    if kind == "line":
        kernel, stride = draw.choice(((1, 1), (2, 2), (3, 1), (3, 2), (5, 1), (10, 5), (31, 1)))
        if draw.random() < 0.3:
            filters = groups = channels
    if kind == "transposed":
        kernel, stride, transposed, padded = draw.choice(((2, 2, True, False), (4, 2, True, True), (3, 1, True, True)))
    if kind == "dilated":
        kernel, stride, dilation = 3, 1, draw.choice((2, 4, 6, 12, 18))
    if not padded and kernel > size:
        kernel = stride = 1
    few = draw.random() < 0.4  # steps of a few samples leave the device idle, and take other kernels
    batch = draw.randint(1, 8) if few else pool.usual_count(draw, 4, 24 if dims == 3 else 512)
    return pool.convolution_drawn(
        dims=dims, batch=batch, channels=channels, filters=filters, size=size, kernel=kernel, stride=stride,
        dilation=dilation, groups=groups, padded=padded, flat=flat, transposed=transposed, bias=draw.random() < 0.3,
        channels_last=dims == 2 and draw.random() < 0.35, input_gradient=not first, precision=precision,
    )  # fmt: skip
