"""What a script that ended in an error has shown of its stand-ins: it is run again with what it would have taken."""

from __future__ import annotations

import linecache
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

from foretell.capture.reads import OWN, is_library
from foretell.capture.script.asserted_extents import asserted_extents
from foretell.capture.script.batches import batches_wanted, batches_wanted_soon, refused_batches, refused_made_batches
from foretell.capture.script.broken import broken
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import FIRST_OF_ONE, Guesses
from foretell.capture.script.keywords import keywords_left_out
from foretell.capture.script.misread import (
    arrays_of_other_sides,
    arrays_of_pictures,
    arrays_too_small,
    extents_in_words,
    lines_too_long,
    misread_texts,
    pictures_of_other_sides,
    tables_of_numbers,
    tables_too_long,
)
from foretell.capture.script.samples import samples_wanted
from foretell.capture.script.scalars import one_number_wanted
from foretell.capture.script.set_aside import set_aside
from foretell.capture.script.shapes import apart, arrays, ranked, replaced, with_rank
from foretell.capture.script.sides_taken import pictures_that_a_net_takes
from foretell.capture.script.taking import contradictions, indexed, taken_apart
from foretell.capture.script.unread import frames_in, unread

_NAMES: Final = 2048  # of a table, that are used
_RANKS: Final = (2, 3, 1, 4)  # of arrays, those that most have first
_Shown = dict[str, Any]


def revised(ended: Ended, guesses: Guesses) -> _Shown:
    """What to take stand-ins to be in the next run; nothing where the error shows nothing new."""
    for find in _FINDERS:
        shown = {what: value for what, value in find(ended, guesses).items() if guesses.is_new(what, value)}
        if shown:
            return shown
    return {}


def frames_of(error: BaseException) -> list[tuple[types.FrameType, int]]:
    """Of an error, the innermost first, each with the line that it came to."""
    return frames_in(error)[::-1]


def _former_indices(ended: Ended, guesses: Guesses) -> _Shown:
    is_first = isinstance(ended.error, IndexError) and "invalid index of a 0-dim tensor" in str(ended.error)
    return {FIRST_OF_ONE: True} if is_first else {}


def _refused_tensors(ended: Ended, guesses: Guesses) -> _Shown:
    """A module, a loss or an operator that takes other shapes than it was given."""
    if not arrays(guesses):
        return {}
    for frame, line in frames_of(ended.error):
        for given in (*contradictions(frame), *taken_apart(frame, line), *indexed(frame, line, ended.error)):
            shown: _Shown = {}
            if given.more:
                shown = ranked(guesses, given.shape, given.more)
            for got, wanted in given.extents:
                shown |= apart(guesses, got, wanted) or replaced(guesses, got, wanted)
            if any(guesses.is_new(what, value) for what, value in shown.items()):
                return shown
    return {}


def _unknown_names(ended: Ended, guesses: Guesses) -> _Shown:
    """A name that was made up, and that a table of the script's does not have: the next run has names of that table."""
    key = ended.error.args[0] if isinstance(ended.error, KeyError) and ended.error.args else None
    origin = getattr(key, "origin", None)
    if origin is None:
        return {}
    for frame, number in frames_of(ended.error):
        line = linecache.getline(frame.f_code.co_filename, number)
        for name, table in _tables(frame) if not is_library(frame.f_code.co_filename) else ():
            names = [name for name in list(table)[:_NAMES] if isinstance(name, str | int)]
            indices = re.findall(rf"(?<![\w.]){re.escape(name)}\[(\w*)", line)
            fits = any(frame.f_locals.get(index, key) is key for index in indices)
            if fits and names and key not in table and guesses.is_new(origin, names):
                return {origin: names}
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
    if frames[0][0].f_code.co_filename.startswith(OWN):
        return {}  # a mistake of ours
    for frame, _ in frames:
        for value in list(frame.f_locals.values()):
            about = getattr(value, "about", None)
            if not isinstance(about, str) or about not in guesses.made:
                continue
            made = guesses.made[about]
            if isinstance(ended.error, IndexError | TypeError) and made["dtype"] != "int64":
                return {about: {**made, "dtype": "int64"}}
            if shown := _another_rank(about, guesses):
                return shown
        if not is_library(frame.f_code.co_filename):
            return {}
    return {}


def _another_rank(about: str, guesses: Guesses) -> _Shown:
    """As another array of its file has; else one that neither was tried with, for all of them that have the same shape."""
    file = about.rpartition(": ")[0] or about
    near = {what: made for what, made in arrays(guesses).items() if (what.rpartition(": ")[0] or what) == file}
    largest = max(near.values(), key=lambda made: len(made["shape"]))["shape"]
    equal = {what: {**made, "shape": largest} for what, made in near.items() if made["shape"] != largest}
    if equal and all(guesses.is_new(what, made) for what, made in equal.items()):
        return equal
    shape = near[about]["shape"]
    for rank in _RANKS:
        if rank != len(shape) and not any(len(tried["shape"]) == rank for tried in guesses.tried(about)):
            same = {what: made for what, made in near.items() if made["shape"] == shape}
            return {what: {**made, "shape": with_rank(shape, rank, guesses)} for what, made in same.items()}
    return {}


_FINDERS: Final[tuple[Callable[[Ended, Guesses], _Shown], ...]] = (
    _former_indices, keywords_left_out, one_number_wanted, pictures_that_a_net_takes, misread_texts,
    tables_of_numbers, tables_too_long, arrays_of_pictures, arrays_of_other_sides, asserted_extents,
    refused_made_batches, _refused_tensors, _unknown_names, arrays_too_small, _other_kinds, extents_in_words,
    pictures_of_other_sides, lines_too_long, samples_wanted,
    batches_wanted_soon, unread, refused_batches, batches_wanted, broken, set_aside,
)  # fmt: skip
