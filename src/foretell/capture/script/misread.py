"""Stand-ins of another kind than the script reads them as: prose for lists or JSON, numbers for pictures, arrays that are too small."""

from __future__ import annotations

import json
import linecache
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import COLUMNS, Guesses
from foretell.capture.script.meant import SIDES, sides_meant
from foretell.capture.script.prose import PROSE, QUOTED_WORD, TABLE, TEXT
from foretell.capture.script.shapes import LARGER, arrays, is_made_up, picture_of, replaced
from foretell.capture.script.sides_taken import TAKEN
from foretell.capture.script.unread import frames_in

_NUMBERS: Final = re.compile(r"invalid literal for int|could not convert string to float")
_TAKEN_APART: Final = re.compile(r"values to unpack")
_NO_NUMBERS: Final = re.compile(r"could not convert string|type numpy\.object_|unsupported operand|not supported for")
_EMPTY: Final = re.compile(
    r"empty range (for|in) rand|low >= high|stack expects each tensor to be equal size|high <= 0"
)
_NOTHING_LEFT: Final = re.compile(r"empty sequence|num_samples|division by zero|index out of range|must be non-empty")
_SIZES: Final = re.compile(
    r"size|shape|dimension|broadcast|match|divisible|multiple|must be equal|same reduction dim", re.IGNORECASE
)
# A layer that is given rows of another length than it takes: of pictures that were made flat, as a rule.
_FLAT: Final = re.compile(
    r"reduction dim, but got \[\d+, (\d+)\] X \[(\d+), \d+\]|shapes cannot be multiplied \(\d+x(\d+) and (\d+)x"
)
_SHAPE: Final = re.compile(r"Size\(\[([\d, ]+)\]\)|shape \(([\d, ]+)\)")
# Features of a picture to which a net adds others, for as many positions as it was made for.
_POSITIONS: Final = re.compile(
    r"had torch\.Size\(\[([\d, ]+)\]\); but expected shape should be broadcastable to \[([\d, ]+)\]"
)
_STRIDES: Final = (1, 2, 4, 8, 16, 32, 64)  # of the last features of a net
# Two matrices, or a matrix and a vector, of which one is as wide as the other should be high.
_PRODUCT: Final = re.compile(r"\(\d+x(\d+)(?: and |\), vec \()(\d+)[x)]")
_BEYOND: Final = re.compile(r"index (\d+) is out of bounds for axis \d+ with size (\d+)")
_LONGEST: Final = 3  # sides to one
_SQUARE: Final = (512, 512)  # sides that most nets can halve as often as they do
_PICTURES: Final = {
    "to_pil_image": "pic",
    "fromarray": "obj",
}  # functions that make a picture of an array, and its name there


def misread_texts(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Prose that is read as numbers, or taken apart, has lines of parts, and prose read as JSON a record in each line."""
    error = ended.error
    if isinstance(error, json.JSONDecodeError):
        kind, words = "records", error.doc
    else:
        kind, words = "names", str(error) if isinstance(error, ValueError) and _NUMBERS.search(str(error)) else ""
    texts = [what for what, made in guesses.made.items() if what.startswith(TEXT) and made == "words"]
    if isinstance(error, ValueError) and _TAKEN_APART.search(str(error)) and ".split(" in _line_of(error):
        return dict.fromkeys(texts[::-1][:1], "names")
    is_prose = isinstance(words, str) and (PROSE.search(words) or QUOTED_WORD.search(words))
    return dict.fromkeys(texts[::-1][:1], kind) if is_prose else {}


def _line_of(error: BaseException) -> str:
    """The line that an error came in."""
    frame, line = frames_in(error)[-1]
    return linecache.getline(frame.f_code.co_filename, line)


def lines_too_long(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Prose of which nothing is left, as where long sentences are left out: its lines are shorter."""
    is_empty = isinstance(ended.error, IndexError | ValueError | ZeroDivisionError)
    if not is_empty or not _NOTHING_LEFT.search(str(ended.error)):
        return {}
    return {what: "short" for what, made in guesses.made.items() if what.startswith(TEXT) and made == "words"}


def tables_too_long(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """A table whose rows are counted up, and that an array has no place for from some row on: it has so many rows."""
    found = _BEYOND.search(str(ended.error)) if isinstance(ended.error, IndexError) else None
    if found is None or found[1] != found[2]:
        return {}
    tables = {what: made for what, made in guesses.made.items() if what.startswith(TABLE)}
    return {what: int(found[2]) for what, rows in tables.items() if rows > int(found[2]) > 0}


def tables_of_numbers(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """A table none of whose columns is named, that is computed with: its columns are numbers, not files and labels."""
    is_computed = isinstance(ended.error, ValueError | TypeError) and _NO_NUMBERS.search(str(ended.error))
    return {COLUMNS: "numbers"} if is_computed and guesses.made.get(COLUMNS) == "files" else {}


def arrays_of_pictures(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """An array that a picture is made of: bytes of three channels, which come last."""
    at = ended.error.__traceback__
    while at is not None:
        code, frame = at.tb_frame.f_code, at.tb_frame
        array = frame.f_locals.get(_PICTURES.get(code.co_name, ""))
        about = getattr(array, "about", None)
        if isinstance(array, np.ndarray) and about in guesses.made:
            before = max(len(guesses.made[about]["shape"]) - array.ndim, 0)
            return {about: picture_of(guesses, about, before)}
        at = at.tb_next
    return {}


def arrays_too_small(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Arrays out of which a part is cut that they do not have: all that were made up are several times as large."""
    if not isinstance(ended.error, ValueError | RuntimeError | AssertionError) or not _EMPTY.search(str(ended.error)):
        return {}
    small = {about: made for about, made in arrays(guesses).items() if len(made["shape"]) > 1}
    return {about: {**made, "shape": list(map(_larger, made["shape"]))} for about, made in small.items()}


def _larger(extent: int) -> int:
    return LARGER.get(extent, extent) if is_made_up(extent) else extent


def pictures_of_other_sides(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Pictures that a net refuses: as large as the script's settings say, or square; where a name says it, turned."""
    error = ended.error
    is_of_sizes = isinstance(error, RuntimeError | ValueError) and _SIZES.search(str(error))
    if guesses.known.get(TAKEN) or (not is_of_sizes and not isinstance(error, AssertionError)):
        return {}
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    height, width = sides_meant(at.tb_frame if at else None) or _SQUARE
    for what, sides in [(what, made) for what, made in guesses.made.items() if what.startswith(SIDES)]:
        fitting = _sides_made_flat(str(error), sides)
        for other in (*fitting, [width, height], list(_SQUARE)) if what == SIDES else (*fitting, sides[::-1]):
            if guesses.is_new(what, other):
                return {what: other}
    return {}


def arrays_of_other_sides(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Pictures in arrays, of whose features a net wants more or fewer: as large as gives it what it has positions for."""
    if (found := _POSITIONS.search(str(ended.error))) is None:
        return {}
    wanted, got = ([int(number) for number in part.split(",")] for part in found.groups())
    differ = [(a, b) for a, b in zip(got, wanted, strict=False) if a != b and b != 1]
    if len(wanted) != len(got) or len(differ) != 2:
        return {}
    have, want = (list(each) for each in zip(*differ, strict=True))
    for about, made in arrays(guesses).items():
        shape = made["shape"]
        for at in range(len(shape) - 1):
            sides = shape[at : at + 2]
            strides = [s for s in _STRIDES for r in (math.floor, math.ceil) if [r(side / s) for side in sides] == have]
            if strides and all(map(is_made_up, sides)):
                return {about: {**made, "shape": [*shape[:at], *(n * strides[0] for n in want), *shape[at + 2 :]]}}
    return {}


def extents_in_words(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """A library that names two shapes which should be one: of two extents, the one that was made up becomes the other."""
    if not isinstance(ended.error, AssertionError | ValueError | RuntimeError):
        return {}
    shapes = [
        [int(number) for number in re.findall(r"\d+", found)]
        for found in map("".join, _SHAPE.findall(str(ended.error)))
    ]
    if found := _PRODUCT.search(str(ended.error)):
        shapes = [[int(number)] for number in found.groups()]
    shown: dict[str, Any] = {}
    for one, other in pairwise(shapes):
        for a, b in zip(one, other, strict=False) if len(one) == len(other) else ():
            if is_made_up(a) != is_made_up(b):
                shown |= replaced(guesses, *((a, b) if is_made_up(a) else (b, a)))
    return shown


def _sides_made_flat(words: str, sides: list[int]) -> Iterator[list[int]]:
    """Width and height with which features that were made flat are as many as a layer takes: as near to a square as they can be."""
    if (found := _FLAT.search(words)) is None:
        return
    got, wanted = (int(number) for number in found.groups() if number is not None)
    for stride in _STRIDES:
        for rounded in (math.ceil, math.floor):
            cells = math.prod(rounded(side / stride) for side in sides)
            channels = got // max(cells, 1)
            if not cells or got % cells or wanted % channels:
                continue
            area = wanted // channels
            short = next(n for n in range(math.isqrt(area), 0, -1) if area % n == 0)
            if area // short <= _LONGEST * short:
                yield [short * stride, area // short * stride]
