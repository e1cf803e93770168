"""What Pillow, albumentations, SciPy and scikit-image took when a script was written: sizes of what comes out are as then."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.session import Session

# Those that were dropped and change no size, and what is nearest to each.
_DROPPED: Final[Mapping[str, str]] = {
    "Flip": "HorizontalFlip", "RandomBrightness": "RandomBrightnessContrast", "RandomContrast": "RandomBrightnessContrast",
    "JpegCompression": "ImageCompression", "Cutout": "CoarseDropout", "IAAAdditiveGaussianNoise": "GaussNoise",
    "IAASharpen": "Sharpen", "IAAEmboss": "Emboss", "IAAPerspective": "Perspective", "IAAAffine": "Affine",
    "IAAPiecewiseAffine": "PiecewiseAffine", "IAAFliplr": "HorizontalFlip", "IAAFlipud": "VerticalFlip",
    "IAASuperpixels": "Superpixels",
}  # fmt: skip
_SCORES: Final = {"compare_psnr": "peak_signal_noise_ratio", "compare_ssim": "structural_similarity",
                  "compare_mse": "mean_squared_error"}  # fmt: skip
_SSIM: Final = "structural_similarity"
_BLURS: Final = ("GaussianBlur", "BoxBlur")
_CROPS: Final = ("RandomResizedCrop", "RandomSizedCrop")


def install(session: Session) -> None:
    once_imported("PIL.ImageFilter", _blurs)
    once_imported("albumentations", _albumentations)
    once_imported("scipy.misc", _scipy)
    provide(lambda name: name == "scipy.misc", _scipy_misc)
    once_imported("skimage.measure", _skimage)
    once_imported("skimage.metrics", lambda m: setattr(m, _SSIM, _of_channels(getattr(m, _SSIM))))


def _blurs(module: Any) -> None:
    """Their radius may be anything that a number can be made of, such as a tensor."""
    for kind in (getattr(module, name) for name in _BLURS):
        kind.__init__ = _of_a_number(kind.__init__)


def _of_a_number(start: Any) -> Any:
    @functools.wraps(start)
    def init(self: Any, radius: Any = 2) -> None:
        start(self, radius if isinstance(radius, int | float | tuple | list) else float(radius))

    return init


def _scipy_misc(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    _scipy(module)
    return module


def _scipy(module: Any) -> None:
    """Pictures as arrays, which Pillow reads, writes and resizes."""
    import numpy as np
    from PIL import Image

    def picture(array: Any, *args: Any, **how: Any) -> Any:
        numbers = np.asarray(array)
        if numbers.ndim == 3 and numbers.shape[0] in (1, 3) and numbers.shape[2] not in (1, 3, 4):
            numbers = numbers.transpose(1, 2, 0)
        return Image.fromarray(numbers.squeeze().astype(np.uint8))

    def imread(name: Any, flatten: bool = False, mode: str | None = None) -> Any:
        read = Image.open(name)
        return np.array(read.convert(mode or "F") if flatten or mode else read)

    def imresize(arr: Any, size: Any, interp: str = "bilinear", mode: str | None = None) -> Any:
        made = picture(arr)
        if isinstance(size, int | float):
            part = size / 100 if isinstance(size, int) else size
            size = [int(side * part) for side in (made.height, made.width)]
        return np.array(
            made.resize((int(size[1]), int(size[0])), getattr(Image, interp.upper(), Image.Resampling.BILINEAR))
        )

    there = {
        "imread": imread, "imresize": imresize, "imsave": lambda name, arr, format=None: picture(arr).save(name, format),
        "toimage": picture, "fromimage": np.array, "bytescale": lambda data, *args, **how: np.asarray(data).astype(np.uint8),
        "imrotate": lambda arr, angle, interp="bilinear": np.array(picture(arr).rotate(angle)),
    }  # fmt: skip
    for name, function in there.items():
        vars(module).setdefault(name, function)


def _skimage(module: Any) -> None:
    metrics = importlib.import_module("skimage.metrics")
    for former, name in _SCORES.items():
        vars(module).setdefault(former, _of_channels(getattr(metrics, name)))


def _of_channels(score: Any) -> Any:
    @functools.wraps(score)
    def scored(*args: Any, multichannel: bool = False, **how: Any) -> Any:
        return score(*args, **({"channel_axis": -1} if multichannel else {}), **how)

    return scored


def _albumentations(module: Any) -> None:
    for former, name in _DROPPED.items():
        if former not in vars(module) and hasattr(module, name):
            setattr(module, former, _without_settings(getattr(module, name)))
    _let_pixels_change_as_before(module)
    for name in _CROPS:
        if (crop := getattr(module, name, None)) is not None and "height" not in inspect.signature(crop).parameters:
            setattr(module, name, _of_two_sides(crop))
    inner = sys.modules.get(f"{module.__name__}.augmentations")
    if inner is not None and not hasattr(inner, "transforms"):
        former_module = types.ModuleType(f"{inner.__name__}.transforms")
        vars(former_module).update({name: value for name, value in vars(module).items() if not name.startswith("__")})
        sys.modules[former_module.__name__] = former_module
        inner.transforms = former_module  # type: ignore[attr-defined]


def _let_pixels_change_as_before(module: Any) -> None:
    """What changes pixels alone leaves all sizes: set as an earlier version was, it is one of its kind with what is usual."""
    pixels = getattr(module, "ImageOnlyTransform", None)
    if pixels is None:
        return
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, pixels) and kind is not pixels and "__init__" in vars(kind):
            setattr(kind, "__init__", _as_set_before(vars(kind)["__init__"]))  # noqa: B010


def _as_set_before(start: Any) -> Any:
    @functools.wraps(start)
    def init(self: Any, *settings: Any, **named: Any) -> None:
        try:
            start(self, *settings, **named)
        except (TypeError, ValueError):
            start(self, p=named.get("p", 0.5))

    return init


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
