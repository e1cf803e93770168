"""What is in pictures that are stood in for: numbers that scripts may divide by, and something that a mask shows."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

_PART: Final = 4  # of each side, that lies around what a mask shows


def painted(width: int, height: int, mode: str) -> Any:
    """A picture of mode RGB, RGBA or L, as bytes: its reader's own."""
    return _painted(width, height, mode).copy()


@functools.cache
def _painted(width: int, height: int, mode: str) -> Any:
    if mode == "L":
        return _mask(width, height)
    across, down = (np.linspace(0, 255, side, dtype=np.uint8) for side in (width, height))
    channels = (
        np.broadcast_to(across, (height, width)),
        np.broadcast_to(down[:, None], (height, width)),
        across // 2 + down[:, None] // 2,
        _mask(width, height) * 255,  # which parts shine through
    )
    return np.stack(channels[: len(mode)], axis=-1)


def _mask(width: int, height: int) -> Any:
    """One thing of the first kind amid the background."""
    mask = np.zeros((height, width), np.uint8)
    mask[height // _PART : height - height // _PART, width // _PART : width - width // _PART] = 1
    return mask
