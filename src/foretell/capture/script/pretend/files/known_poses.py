"""Poses of people as Human3.6M's are kept for training: arrays by subject and action, in an array of one object."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

_FILE: Final = re.compile(r"data_[23]d_h36m\w*\.npz$", re.IGNORECASE)
_SUBJECTS: Final = ("S1", "S5", "S6", "S7", "S8", "S9", "S11")
_ACTIONS: Final = (
    "Directions Discussion Eating Greeting Phoning Photo Posing Purchases Sitting SittingDown Smoking Waiting WalkDog Walking "
    "WalkTogether"
).split()  # each twice
_CAMERAS: Final = 4
_FRAMES: Final = 256  # of each: fewer than there are, as they only count for how long training takes
_JOINTS, _SEEN = 32, 17  # that were recorded, and that are found in a picture
_LEFT, _RIGHT = [4, 5, 6, 11, 12, 13], [1, 2, 3, 14, 15, 16]  # of those that are seen
ASSUMED: Final = f"{len(_SUBJECTS)} subjects, {2 * len(_ACTIONS)} actions of {_FRAMES} frames, {_SEEN} joints"


def poses(path: str, key: str) -> Any:
    """What such a file has under a key; None where it is another file, or has none."""
    if not _FILE.search(path) or key not in _PARTS:
        return None
    made = np.empty((), object)
    made[()] = _PARTS[key]()
    return made


def _by_subject(one: Any) -> dict[str, dict[str, Any]]:
    actions = [f"{action}{again}" for action in _ACTIONS for again in ("", " 1")]
    return {subject: {action: one() for action in actions} for subject in _SUBJECTS}


_PARTS: Final[dict[str, Any]] = {
    "positions_3d": lambda: _by_subject(lambda: np.ones((_FRAMES, _JOINTS, 3), np.float32)),
    "positions_2d": lambda: _by_subject(lambda: [np.ones((_FRAMES, _SEEN, 2), np.float32) for _ in range(_CAMERAS)]),
    "metadata": lambda: {"layout_name": "h36m", "num_joints": _SEEN, "keypoints_symmetry": [_LEFT, _RIGHT]},
}
