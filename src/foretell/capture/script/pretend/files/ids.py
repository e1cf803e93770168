"""Texts of whole numbers that are not on this machine, as of who has rated what: lines with as many as their reader takes."""

from __future__ import annotations

import io
import os
import re
from typing import Final

from foretell.capture.script.pretend.files.known_tables import ratings_in
from foretell.capture.script.session import Session

_TAKEN: Final = re.compile(r"^[ \t]*(\w+(?:[ \t]*,[ \t]*\w+)+)[ \t]*=[^=\n]*\.split\(([^)\n]*)\)", re.MULTILINE)
_FIRST: Final = re.compile(r"^[ \t]*(\w+)[ \t]*=[^=\n]*\.split\(([^)\n]*)\)", re.MULTILINE)
_EACH: Final = re.compile(
    r"(?:map\([ \t]*int[ \t]*,|\bint\([ \t]*(\w+)[ \t]*\)[ \t]+for[ \t]+\1[ \t]+in\b)[^\n\[]*\.split\(([^)\n]*)\)(?!\[)"
)
# Of lists of files, whose lines have numbers behind a name.
_FILES: Final = re.compile(
    r"imread|Image\.open|\.(jpe?g|png|wav|npy)\b|\bx_?min\b|\bx1\b|\bboxe?s?\b|\bbbox", re.IGNORECASE
)
_MARK: Final = re.compile(r"""^[rb]?(["'])(.+)\1$""")
_LABELS: Final = re.compile(r"label|class|target|rating|score|stars", re.IGNORECASE)
_LINES: Final = 16_384
_OF_EACH: Final = 16  # lines with the same first number, and numbers in a line that is not taken apart by name
_ITEMS: Final = 1999  # a prime, so that no two lines of the same first number have the same second one
_STEP: Final = 7919
_CLASSES: Final = 10


def numbers(session: Session, path: str, source: str) -> io.StringIO | None:
    """A text whose lines the code in `source` reads as whole numbers from the first part on; None where it does not."""
    found = _names_and_mark(source)
    if found is None:
        return None
    names, mark = found
    if (known := ratings_in(os.path.basename(path))) is not None:
        users, items = known["userId"].max(), known["movieId"].max()
        session.stand_in(f"text of {path}", f"{users:,} users, {items:,} items")
        columns = list(known.values())[: len(names)]
        return io.StringIO("\n".join(mark.join(map(str, row)) for row in zip(*columns, strict=True)) + "\n")
    session.stand_in(
        f"text of {path}",
        f"{_LINES:,} lines of numbers, up to {_LINES // _OF_EACH:,} and {_ITEMS:,}",
        decides_size=True,
    )
    lines = (mark.join(str(_number(name, row, at)) for at, name in enumerate(names)) for row in range(_LINES))
    return io.StringIO("\n".join(lines) + "\n")


def _number(name: str, row: int, at: int) -> int:
    if _LABELS.search(name):
        return row % _CLASSES
    return (row * _STEP + at - 1) % _ITEMS + 1 if at else row // _OF_EACH + 1


def _names_and_mark(source: str) -> tuple[list[str], str] | None:
    """What the parts of a line are called, and what lies between them."""
    if _FILES.search(source):
        return None
    for taken in _TAKEN.finditer(source):
        names = re.split(r"[ \t]*,[ \t]*", taken[1])
        if all(_is_counted(name, source) for name in names[:2]):
            return names, _mark(taken[2])
    for first in _FIRST.finditer(source):
        if _is_counted(f"{first[1]}[0]", source):
            return [""] * _OF_EACH, _mark(first[2])
    each = _EACH.search(source)
    return ([""] * _OF_EACH, _mark(each[2])) if each else None


def _is_counted(name: str, source: str) -> bool:
    return re.search(rf"\bint\([ \t]*{re.escape(name)}[ \t]*\)", source) is not None


def _mark(argument: str) -> str:
    """What a line is split at, as code writes it."""
    written = _MARK.match(argument.strip())
    return written[2].replace("\\t", "\t") if written else " "
