"""How large pictures of well-known sets are, by a word in their path; scripts cut them to less."""

from __future__ import annotations

import os
import re
from typing import Final

from foretell.capture.script.guesses import Guesses
from foretell.capture.script.meant import SIDES
from foretell.capture.script.pretend.files import kinds
from foretell.capture.script.shapes import PICTURE

_NEAR: Final = 3  # parts of a picture's path, of which each may say how large it is
_KNOWN: Final = (
    (re.compile(r"depths_raw"), (1600, 1200)), (re.compile(r"depth_(map|visual)_\d{4}\."), (160, 128)),  # DTU for MVSNet
    (re.compile(r"rect_\d{3}_\w+_r5000"), (640, 512)),
    (re.compile(r"nerf[_-]synthetic|blender"), (800, 800)),
    (re.compile(r"scene_?flow|frames_(clean|final)pass|monkaa|driving|flyingthings|disparity|\.pfm$"), (960, 540)),
    (re.compile(r"kitti"), (1242, 375)), (re.compile(r"sintel"), (1024, 436)), (re.compile(r"cityscapes|leftimg8bit"), (2048, 1024)),
    (re.compile(r"div2k|flickr2k"), (2040, 1356)), (re.compile(r"celeba[_-]?hq|celebamask|ffhq"), (1024, 1024)),
    (re.compile(r"omniglot"), (105, 105)), (re.compile(r"mnist"), (28, 28)), (re.compile(r"cifar|svhn"), (32, 32)),
    (re.compile(r"tiny[_-]?imagenet"), (64, 64)), (re.compile(r"celeba"), (178, 218)), (re.compile(r"(^|[/_-])lfw"), (250, 250)),
    (re.compile(r"nyu"), (640, 480)), (re.compile(r"market|duke.*reid|cuhk03|bounding_box_train"), (64, 128)),
)  # fmt: skip


_GREY: Final = re.compile(r"omniglot|mnist(?!-?m)|depth_visual")  # MNIST-M's are coloured


_unknown: list[Guesses] = []  # who knows how large pictures of other sets were shown to be


def ask(guesses: Guesses) -> None:
    """Pictures of sets that are not known are as large as an earlier run has shown."""
    _unknown[:] = [guesses]


def _guessed(what: str, usual: tuple[int, int]) -> tuple[int, int]:
    width, height = _unknown[0].about(what, list(usual)) if _unknown else usual
    return width, height


def _own(path: str) -> str:
    """A path without the folder that the script runs in, whose name says nothing of data."""
    start = os.path.join(os.getcwd(), "")
    return os.path.normpath(path).removeprefix(start).lower()


def is_grey(path: str) -> bool:
    """Whether pictures of that set have one channel."""
    return _GREY.search(_own(path)) is not None


def size_of(path: str) -> tuple[int, int]:
    """Width and height: a picture of low resolution is a part of the other's."""
    words = _own(path)
    parts = words.replace("\\", "/").split("/")[::-1]
    for name in parts[:_NEAR] if kinds.ending_of(words) in kinds.PICTURES else parts[:1]:
        if sides := re.search(r"(?<![0-9])([0-9]{2,4})x([0-9]{2,4})(?![0-9])", name):
            return _guessed(f"{SIDES} of {sides[0]}", (int(sides[1]), int(sides[2])))
    width, height = next((size for known, size in _KNOWN if known.search(words)), None) or _guessed(SIDES, PICTURE)
    factor = re.search(r"[_/\\-]x([2348])(?![0-9])", words)
    low = re.search(r"(^|[_/\\-])(lr|low|lq|lrs|low_resolution)([_/\\-]|$|_bicubic)", words)
    part = int(factor[1]) if factor and low else 4 if low else 1
    return width // part, height // part
