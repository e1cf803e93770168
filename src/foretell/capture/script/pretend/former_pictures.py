"""Names and arguments that albumentations had when a script was written: sizes of what comes out are as they were then."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

# Those that were dropped and change no size, and what is nearest to each.
_DROPPED: Final[Mapping[str, str]] = {
    "Flip": "HorizontalFlip", "RandomBrightness": "RandomBrightnessContrast", "RandomContrast": "RandomBrightnessContrast",
    "JpegCompression": "ImageCompression", "Cutout": "CoarseDropout", "IAAAdditiveGaussianNoise": "GaussNoise",
    "IAASharpen": "Sharpen", "IAAEmboss": "Emboss", "IAAPerspective": "Perspective", "IAAAffine": "Affine",
    "IAAPiecewiseAffine": "PiecewiseAffine", "IAAFliplr": "HorizontalFlip", "IAAFlipud": "VerticalFlip",
    "IAASuperpixels": "Superpixels",
}  # fmt: skip
_CROPS: Final = ("RandomResizedCrop", "RandomSizedCrop")


def install(session: Session) -> None:
    once_imported("albumentations", _albumentations)


def _albumentations(module: Any) -> None:
    for former, name in _DROPPED.items():
        if former not in vars(module) and hasattr(module, name):
            setattr(module, former, _without_settings(getattr(module, name)))
    for name in _CROPS:
        if (crop := getattr(module, name, None)) is not None and "height" not in inspect.signature(crop).parameters:
            setattr(module, name, _of_two_sides(crop))
    inner = sys.modules.get(f"{module.__name__}.augmentations")
    if inner is not None and not hasattr(inner, "transforms"):
        former_module = types.ModuleType(f"{inner.__name__}.transforms")
        vars(former_module).update({name: value for name, value in vars(module).items() if not name.startswith("__")})
        sys.modules[former_module.__name__] = former_module
        inner.transforms = former_module  # type: ignore[attr-defined]


def _without_settings(kind: Any) -> Any:
    """Of what was set, only the probability means the same."""

    def make(*settings: Any, p: float = 0.5, **others: Any) -> Any:
        return kind(p=p)

    return make


def _of_two_sides(crop: Any) -> Any:
    """A crop that takes height and width apart from each other, in place of the pair that it takes now."""

    def make(*given: Any, height: int | None = None, width: int | None = None, **others: Any) -> Any:
        sides = [at for at in range(len(given) - 1) if isinstance(given[at], int) and isinstance(given[at + 1], int)]
        if height is not None and width is not None:
            return crop(*given, size=(height, width), **others)
        if sides:
            at = sides[0]
            return crop(*given[:at], (given[at], given[at + 1]), *given[at + 2 :], **others)
        return crop(*given, **others)

    return make
