"""Texts of pictures of one thing from many sides, as MVSNet and what came after it read them: cameras, and which views go together."""

from __future__ import annotations

import os
import re
from typing import Final

_PAIRS: Final = "pair.txt"
_CAMERA: Final = re.compile(r"^\d+_cam\.txt$")
_VIEWS, _SOURCES = 49, 10  # of a scene of DTU, and for each view those that fit best
_NEAR, _STEP, _DEPTHS = 425.0, 2.5, 192  # millimetres, as published, and how many
PAIRS: Final = f"{_VIEWS} views, {_SOURCES} sources of each"
CAMERA: Final = "a camera each"


def is_of_pairs(path: str) -> bool:
    return os.path.basename(path).lower() == _PAIRS


def is_of_a_camera(path: str) -> bool:
    return _CAMERA.search(os.path.basename(path).lower()) is not None


def pairs() -> str:
    """How many views there are; then each, and its sources with their scores."""
    lines = [str(_VIEWS)]
    for view in range(_VIEWS):
        sources = [f"{(view + 1 + i) % _VIEWS} {1000 - 50 * i}.0" for i in range(_SOURCES)]
        lines += [str(view), f"{_SOURCES} {' '.join(sources)} "]
    return "\n".join(lines) + "\n"


def camera() -> str:
    """Where it stands, how it sees, and which depths count."""
    stands = "1.0 0.0 0.0 10.0\n0.0 1.0 0.0 10.0\n0.0 0.0 1.0 600.0\n0.0 0.0 0.0 1.0\n"
    sees = "360.0 0.0 80.0\n0.0 360.0 64.0\n0.0 0.0 1.0\n"
    return f"extrinsic\n{stands}\nintrinsic\n{sees}\n{_NEAR} {_STEP} {_DEPTHS} {_NEAR + _STEP * (_DEPTHS - 1)}\n"
