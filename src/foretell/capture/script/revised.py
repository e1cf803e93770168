"""What a script that ended in an error has shown of its stand-ins: it is run again with what it would have taken."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final

from foretell.capture.reads import OWN, is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.shapes import arrays, ranked, replaced, with_rank
from foretell.capture.script.taking import contradictions

_RANKS: Final = (2, 3, 1, 4)  # of arrays, those that most have first
_Shown = dict[str, Any]


def revised(ended: Ended, guesses: Guesses) -> _Shown:
    """What to take stand-ins to be in the next run; nothing where the error shows nothing new."""
    for find in (_refused_tensors, _unknown_names, _other_kinds):
        shown = {what: value for what, value in find(ended, guesses).items() if guesses.is_new(what, value)}
        if shown:
            return shown
    return {}


def frames_of(error: BaseException) -> list[types.FrameType]:
    """Of an error, the innermost first."""
    found, at = [], error.__traceback__
    while at is not None:
        found.append(at.tb_frame)
        at = at.tb_next
    return found[::-1]


def _refused_tensors(ended: Ended, guesses: Guesses) -> _Shown:
    """A module, a loss or an operator that takes other shapes than it was given."""
    if not arrays(guesses):
        return {}
    for frame in frames_of(ended.error):
        for given in contradictions(frame):
            shown: _Shown = {}
            if given.more:
                shown = ranked(guesses, given.shape, given.more)
            for got, wanted in given.extents:
                shown |= replaced(guesses, got, wanted)
            if any(guesses.is_new(what, value) for what, value in shown.items()):
                return shown
    return {}


def _unknown_names(ended: Ended, guesses: Guesses) -> _Shown:
    """A name that was made up, and that a table of the script's does not have: the next run has names of that table."""
    key = ended.error.args[0] if isinstance(ended.error, KeyError) and ended.error.args else None
    origin = getattr(key, "origin", None)
    if origin is None:
        return {}
    for frame in frames_of(ended.error):
        if is_library(frame.f_code.co_filename):
            continue
        line = next((f.line or "" for f in ended.frames[::-1] if f.filename == frame.f_code.co_filename), "")
        tables = [table for name, table in _tables(frame) if f"{name}[" in line and table and key not in table]
        if tables:
            return {origin: [name for name in list(tables[0])[:4096] if isinstance(name, str | int)]}
    return {}


def _tables(frame: types.FrameType) -> Iterator[tuple[str, dict[Any, Any]]]:
    owners = {**frame.f_globals, **frame.f_locals}
    for name, value in owners.items():
        if isinstance(value, dict):
            yield name, value
    for name, value in getattr(owners.get("self"), "__dict__", {}).items():
        if isinstance(value, dict):
            yield f"self.{name}", value


def _other_kinds(ended: Ended, guesses: Guesses) -> _Shown:
    """An array that a function refused, nobody knows why: whole numbers where it was an index, or another rank."""
    frames = frames_of(ended.error)
    if frames[0].f_code.co_filename.startswith(OWN):
        return {}  # a mistake of ours
    for frame in frames:
        for value in list(frame.f_locals.values()):
            about = getattr(value, "about", None)
            if not isinstance(about, str) or about not in guesses.made:
                continue
            made = guesses.made[about]
            if isinstance(ended.error, IndexError | TypeError) and made["dtype"] != "int64":
                return {about: {**made, "dtype": "int64"}}
            for rank in _RANKS:
                other = {**made, "shape": with_rank(made["shape"], rank, guesses)}
                if rank != len(made["shape"]) and not _was_tried(guesses, about, rank):
                    return {about: other}
        if not is_library(frame.f_code.co_filename):
            return {}
    return {}


def _was_tried(guesses: Guesses, about: str, rank: int) -> bool:
    return any(len(tried["shape"]) == rank for tried in guesses.tried(about))
