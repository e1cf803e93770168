"""Batch sweeps: the same network at many batches, as DNNAbacus and ScaleDL learn from them.

`classics` are the 29 networks of DNNAbacus's table, each with three settings of precision, optimizer and size of input, at
eight batches: the time and peaks of the step alone. `five` are the networks of ScaleDL's, in one precision at thirty
batches, with the times of their ops. Batches keep the device busy for as long as the table of architectures.py foresees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.measure.record import Point
from foretell_bench.measuring.h200.architectures import ARCHITECTURES
from foretell_bench.measuring.h200.points import ONE_SIZE, SPEED
from foretell_bench.tables.classics import NETWORKS

FIVE: Final = (
    "timm/resnet50",
    "torchvision/vgg16",
    "hf/bert-base",
    "hf/gpt2",
    "timm/vit_base_patch16_224",
)
_OF: Final = {a.source: a for a in ARCHITECTURES}
_BASE_MILLISECONDS: Final = 200.0
_CLASSIC_MILLISECONDS: Final = (10, 14, 20, 28, 36, 44, 56, 70)
_DENSE: Final = 30  # batches of each of the five
_DENSE_MILLISECONDS: Final = (4, 120)
_AT_ONCE: Final = 2  # of those, by one worker
_TEXT: Final = ("encoder", "decoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep's points, how much of each is measured, and by how many workers."""

    parts: list[list[Point]]  # of different batches alone, which share a model
    light: bool  # the time and peaks of a step alone
    workers: int  # among which a source may be divided


def _classic_settings(source: str) -> list[dict[str, str]]:
    """Precision, optimizer and size of input, none of them with the others."""
    family = _OF[source].family
    mixed = {"precision": "amp-bf16", "optimizer": "sgd-momentum"}
    plain = {"precision": "tf32", "optimizer": "adam"}
    if family in _TEXT:
        whole = {"precision": "fp32", "optimizer": "sgd-momentum"}
        return [mixed | {"seq": "128"}, plain | {"seq": "256"}, whole | {"seq": "64"}]
    if family not in ("cnn", "depthwise-cnn") or source in ONE_SIZE:
        return [mixed, plain, {"precision": "amp-fp16", "optimizer": "adamw"}]
    return [mixed, plain, {"precision": "fp32", "optimizer": "sgd-momentum", "image_size": "160"}]


def _batches(source: str, settings: dict[str, str], milliseconds: list[float]) -> list[int]:
    """That keep the device busy for about so long, all different."""
    base = _OF[source].base * SPEED[settings["precision"]] / _BASE_MILLISECONDS
    if "seq" in settings:
        base /= int(settings["seq"])
    if "image_size" in settings:
        base *= (224 / int(settings["image_size"])) ** 2
    found: list[int] = []
    for each in milliseconds:
        found.append(max(round(base * each), found[-1] + 1 if found else 2))
    return found


def _points(source: str, settings: dict[str, str], batches: list[int]) -> list[Point]:
    return [Point(source=source, settings={"batch": str(batch), **settings}) for batch in batches]


def _classics() -> list[list[Point]]:
    """Largest batches first for every second part: not all that are prepared side by side fill the memory at once."""
    parts = []
    for number in range(3):
        for i, source in enumerate(NETWORKS):
            settings = _classic_settings(source)[number]
            points = _points(source, settings, _batches(source, settings, list(map(float, _CLASSIC_MILLISECONDS))))
            parts.append(points[:: -1 if i % 2 else 1])
    return parts


def _five() -> list[list[Point]]:
    """Every fifteenth batch first, then those between: stopping early leaves a coarser sweep."""
    first, last = _DENSE_MILLISECONDS
    milliseconds = [first * (last / first) ** (i / (_DENSE - 1)) for i in range(_DENSE)]
    stride = _DENSE // _AT_ONCE
    order = sorted(range(stride), key=lambda i: f"{i:04b}"[::-1])
    parts = []
    for i in order:
        for source in FIVE:
            settings = {"precision": "amp-bf16", "optimizer": "adamw-fused"}
            settings |= {"seq": "128"} if _OF[source].family in _TEXT else {}
            parts.append(_points(source, settings, _batches(source, settings, milliseconds)[i::stride]))
    return parts


SWEEPS: Final = {
    "classics": Sweep(parts=_classics(), light=True, workers=1),
    "five": Sweep(parts=_five(), light=False, workers=3),
}
