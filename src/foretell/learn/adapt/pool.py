"""Steps to choose from where a user names none: small and medium networks of every kind, sized for the device."""

from __future__ import annotations

import random
from typing import Final

from foretell.hardware import Device
from foretell.measure.record import Point
from foretell.precision import PrecisionName
from foretell.sources.named import library
from foretell.units import FlopsPerSecond

_IMAGES: Final = (
    "torchvision/resnet18", "torchvision/mobilenet_v2", "torchvision/vgg11", "torchvision/squeezenet1_1",
    "torchvision/densenet121", "torchvision/efficientnet_b0", "torchvision/shufflenet_v2_x1_0", "torchvision/alexnet",
    "timm/convnext_atto", "timm/mixer_s32_224", "timm/resnet26d", "timm/vit_tiny_patch16_224",
)  # fmt: skip
_FIXED_SIZE: Final = frozenset({"timm/mixer_s32_224", "timm/vit_tiny_patch16_224"})  # of their images
_GENERATED: Final = range(24)  # seeds of networks nobody named: images, signals, tokens, tables, recurrent ones
_SIZES: Final = ((64, 128), (96, 160), (80, 112))  # of images, on a small device
_SMALL: Final[FlopsPerSecond] = 10e12  # a device below it gets single samples, and smaller images


def usual_points(device: Device) -> list[Point]:
    """In an order that mixes kinds, so that any first part of it is a sample of all."""
    small, precision = device.peak("fp32") < _SMALL, _precision(device)
    points = []
    for number, source in enumerate(_images()):
        for training in (True, False):
            batch = (2 if training else 8) if small else (32 if training else 128)
            settings = {"batch": str(batch), "precision": precision, "optimizer": "adamw" if training else "none"}
            sizes = (
                [{}]
                if source in _FIXED_SIZE
                else [{"image_size": str(s)} for s in (_SIZES[number % 3] if small else (224,))]
            )
            points += [Point(source=source, settings=settings | size) for size in sizes]
    for seed in _GENERATED:
        settings = {"precision": precision} | ({"batch": str(1 + seed % 4)} if small else {})
        points.append(Point(source=f"generated/{seed}", settings=settings))
    random.Random(0).shuffle(points)
    return points


def _precision(device: Device) -> PrecisionName:
    """Mixed, where the device has units for it."""
    return "amp-bf16" if "bf16" in device.peaks else "amp-fp16" if "fp16" in device.peaks else "fp32"


def _images() -> list[str]:
    """Of libraries that are installed, and names they still have."""
    found = []
    for prefix in ("torchvision", "timm"):
        try:
            names = frozenset(library(prefix).names())
        except ImportError:
            continue
        found += [source for source in _IMAGES if source.startswith(f"{prefix}/") and source.partition("/")[2] in names]
    return found
