"""What a stand-in says when it is asked for something that it cannot give: that it was ours, and the way out."""

from __future__ import annotations

import linecache
from sys import _getframe
from typing import Any

from foretell.capture.reads import is_library
from foretell.errors import WorkloadError


class StandInError(WorkloadError):
    """A stand-in of Foretell's, not the script, is at fault."""

    def __init__(self, what: str, lacks: str, way_out: str) -> None:
        super().__init__(f"Foretell's stand-in for {what} has no {lacks}{_where()}. {way_out}")


def _where() -> str:
    """The line of the user's that wanted it."""
    frame: Any = _getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f", which line {line} of {path} wants ({linecache.getline(path, line).strip()})"
