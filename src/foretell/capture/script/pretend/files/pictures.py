"""Pictures and videos that are not on this machine, by the libraries that decode them themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files.painted import painted
from foretell.capture.script.pretend.files.sizes import is_grey, size_of
from foretell.capture.script.pretend.reading import or_else
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import PICTURE

_WIDTH, _HEIGHT = PICTURE
_FRAMES: Final = 64  # of a video
_RATE: Final = 25.0
_MASKS: Final = re.compile(r"mask|label|segmentation|_gt|annotation|^gt")
_RENDERED: Final = re.compile(r"nerf_synthetic|nerf-synthetic|blender")  # with what shines through
_NEAR: Final = 2  # folders that say what is in them; one above names the data, unless it says no more than masks
_MASKS_ALONE: Final = re.compile(r"(?:gt_?)?(?:masks?|labels?|annotations?|segmentations?)|gt")
_PHOTOS: Final = re.compile(r"img|image|photo|rgb")


def install(session: Session) -> None:
    once_imported("PIL.Image", lambda module: _opened(session, module))
    once_imported("PIL.ImageFont", lambda module: _drawn(session, module))
    once_imported("cv2", lambda module: _read_by_opencv(session, module))
    for name in (
        "imageio",
        "imageio.v2",
        "imageio.v3",
        "skimage.io",
        "tifffile",
        "matplotlib.pyplot",
        "matplotlib.image",
    ):
        once_imported(name, lambda module: _read_as_arrays(session, module))
    once_imported("torchvision.io", lambda module: _decoded(session, module))


def _drawn(session: Session, fonts: Any) -> None:
    """Letters of a font that is not here are drawn in the one that Pillow brings: pictures of them are as large."""

    def own(font: Any = None, size: float = 10, *args: Any, **how: Any) -> Any:
        session.stand_in(f"font {font}", "Pillow's own")
        return fonts.load_default(size)

    or_else(fonts, "truetype", own, OSError)


def _is_missing(file: Any) -> bool:
    return isinstance(file, str | os.PathLike) and not overlay.is_there(file)


def _size(file: Any) -> tuple[int, int]:
    return size_of(os.fspath(file))


def _array(file: Any, flat: bool = False) -> Any:
    """Of one channel, or of those that the file has: a mask that is read in colours has the same in each."""
    mode = _mode(file)
    made = painted(*_size(file), "L" if flat else mode)
    return made if flat or mode != "L" else np.repeat(made[..., None], 3, axis=-1)


def _note(session: Session, file: Any, what: str = "pictures") -> None:
    width, height = _size(file)
    session.stand_in(f"{what} in {os.path.dirname(os.fspath(file)) or '.'}", f"{width} × {height}")


def _mode(file: Any) -> str:
    """Masks have one number for each point: by the name, or by the nearest folder that is of masks or of pictures."""
    if is_grey(os.fspath(file)):
        return "L"
    if _RENDERED.search(os.fspath(file).lower()):
        return "RGBA"
    *folders, name = os.fspath(file).lower().replace(os.sep, "/").split("/")
    if _MASKS.search(name):
        return "L"
    for folder in reversed(folders[-_NEAR:]):  # `annotations/training` is of masks, `images/training` is not
        if _PHOTOS.search(folder):
            return "RGB"
        if _MASKS.search(folder):
            return "L"
    return "L" if any(map(_MASKS_ALONE.fullmatch, folders[-_NEAR - 1 : -_NEAR])) else "RGB"


def _opened(session: Session, image: Any) -> None:
    read: Callable[..., Any] = image.open

    def either(fp: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(fp, str | os.PathLike) and _is_missing(fp):
            _note(session, fp)
            made = image.fromarray(painted(*_size(fp), _mode(fp)))
            made.filename = os.fspath(fp)
            made.format = "PNG" if made.filename.lower().endswith(".png") else "JPEG"
            return made
        return read(fp, *args, **kwargs)

    replace(image, "open", either)


def _read_by_opencv(session: Session, cv2: Any) -> None:
    read, capture = cv2.imread, cv2.VideoCapture

    def imread(filename: Any, flags: int = 1, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(filename) and (found := read(os.fspath(filename), flags, *args, **kwargs)) is not None:
            return found
        _note(session, filename)
        return _array(filename, flat=flags == 0 or (_mode(filename) == "L" and flags < 0))

    class Video:
        """As cv2's: it has some frames."""

        def __init__(self, *args: Any) -> None:
            self._left = _FRAMES
            _note(session, args[0] if args and isinstance(args[0], str) else "a camera", "videos")

        def isOpened(self) -> bool:  # its name there
            return True

        def read(self, *_: Any) -> tuple[bool, Any]:
            self._left -= 1
            return self._left >= 0, painted(_WIDTH, _HEIGHT, "RGB") if self._left >= 0 else None

        def get(self, which: int) -> float:
            known = {cv2.CAP_PROP_FRAME_COUNT: _FRAMES, cv2.CAP_PROP_FPS: _RATE}
            known |= {cv2.CAP_PROP_FRAME_WIDTH: _WIDTH, cv2.CAP_PROP_FRAME_HEIGHT: _HEIGHT}
            return float(known.get(which, 0))

        def set(self, *_: Any) -> bool:
            return True

        def release(self) -> None:
            return None

    cv2.imread = imread
    cv2.VideoCapture = lambda *args: capture(*args) if args and not _is_missing(args[0]) else Video(*args)


def _read_as_arrays(session: Session, module: Any) -> None:
    """Libraries that give a picture as an array."""
    for name in ("imread",):
        read: Callable[..., Any] | None = getattr(module, name, None)
        if read is None:
            continue

        def either(file: Any, *args: Any, read: Callable[..., Any] = read, **kwargs: Any) -> Any:
            if not _is_missing(file):
                return read(file, *args, **kwargs)
            _note(session, file)
            return _array(file, flat=_mode(file) == "L")

        setattr(module, name, either)


def _decoded(session: Session, module: Any) -> None:
    def decoding(read: Callable[..., Any]) -> Callable[..., Any]:
        def decode(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, torch.Tensor) or not _is_missing(file):
                return read(file, *args, **kwargs)
            _note(session, file)
            return torch.from_numpy(np.atleast_3d(_array(file, flat=_mode(file) == "L"))).permute(2, 0, 1)

        return decode

    for name in ("read_image", "decode_image"):
        replace(module, name, decoding(getattr(module, name)))
    read_video: Callable[..., Any] | None = getattr(module, "read_video", None)

    def video(file: Any, *args: Any, **kwargs: Any) -> Any:
        if read_video is not None and not _is_missing(file):
            return read_video(file, *args, **kwargs)
        _note(session, file, "videos")
        shape = (3, _HEIGHT, _WIDTH) if kwargs.get("output_format") == "TCHW" else (_HEIGHT, _WIDTH, 3)
        return (
            torch.zeros(_FRAMES, *shape, dtype=torch.uint8),
            torch.zeros(1, 2**16),
            {"video_fps": _RATE, "audio_fps": 16_000},
        )

    module.read_video = video
