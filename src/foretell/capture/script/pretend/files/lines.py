"""Lists of files and tables that are not on this machine: lines with as many parts as their reader takes them apart into."""

from __future__ import annotations

import csv
import io
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files.line_parts import CORNERS, NAMES, Line, Word, part_of
from foretell.capture.script.pretend.files.unknown import ROWS, Record
from foretell.capture.script.session import Session

FEW_CLASSES: Final = 10
FOLDERS: Final = 16  # in a list of them
_CLASSES: Final = re.compile(r"class|names|label|categor|vocab|words|dict|shape_names|alphabet|chars", re.IGNORECASE)
# An ending that the reader adds to a name.
_ADDED: Final = re.compile(
    r"""\+\s*["'][^"'\n]*\.(jpe?g|png|wav|npy|txt|bmp|flac|xml)["']|(%s|%\d*d|\})[^"'\n]*\.(jpe?g|png|wav|npy|txt|bmp|flac|xml)["']"""
)
_BOXES: Final = re.compile(
    r"\bx_?min\b|\bx1\b|\bboxe?s?\b|\bbbox|num_boxes|num_faces|num_objs|\btruth\b", re.IGNORECASE
)
_OF_TESTS: Final = re.compile(r"(^|[_\-.])(test|eval)([_\-.]|$)", re.IGNORECASE)
_TESTED: Final = 256  # names of a list for tests, which some scripts read as a whole before they train
_COMMAS: Final = re.compile(r"""split\(["'],["']\)""")
_LATER: Final = re.compile(r"""\.split\((|["'][ \\t]+["'])\)""")
_MARKED: Final = re.compile(r"""startswith\(["']#["']\)|\[0\]\s*==\s*["']#["']""")
# A box of a face (left, top, width, height), five points with a flag each, and how clear it is.
_FACE: Final = " ".join(["32 32 128 128", *["64 64 0.0"] * 5, "0.9"])


class List(io.StringIO):
    """A list of files, whose lines have as many parts as they are taken apart into."""

    def __init__(self, names: list[str], path: str = "") -> None:
        self._names, self._path = names, path
        super().__init__("\n".join(names) + "\n")

    def __iter__(self) -> Iterator[Any]:
        return iter([Line.of(f"{name}\n", self._path, row) for row, name in enumerate(self._names)])

    def readlines(self, hint: int | None = -1, /) -> list[Any]:
        return list(self)

    def read(self, size: int | None = -1, /) -> str:
        made = _Lines(super().read(size))
        made.path = self._path
        return made


class _Lines(str):
    path = ""

    def splitlines(self, keepends: bool = False) -> list[str]:
        return [Line.of(line, self.path, row) for row, line in enumerate(str.splitlines(self, keepends))]

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return [Line.of(line, self.path, row) for row, line in enumerate(str.split(self, sep, maxsplit))]

    def strip(self, chars: str | None = None) -> _Lines:
        made = _Lines(str.strip(self, chars))
        made.path = self.path
        return made

    rstrip = strip


class Table(List):
    """A table that is not here, of columns whose names it does not know."""

    def __init__(self, rows: int) -> None:
        super().__init__([f"{i:05}" for i in range(rows)])


class _Rows:
    """As what `csv.reader` gives, of such a table."""

    line_num = 0

    def __init__(self, table: Table) -> None:
        self._lines = iter(table)

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> list[Any]:
        self.line_num += 1
        parts: list[Any] = next(self._lines).strip().split(",")
        return parts


class _Row(dict[str, str]):
    """A row of one, which has every column."""

    def __missing__(self, name: str) -> str:
        return Word(Record()[name]) if name.lower() in ("text", "sentence") else Word("0")


def list_of_files(session: Session, path: str, source: str, module: str = "") -> io.StringIO:
    """A list as the code in `source` reads it: of classes, of files, of files with boxes.

    Where another function of the module takes the lines apart, they have a label as they are.
    """
    if _CLASSES.search(os.path.basename(path)) and not _MARKED.search(source):
        digits = re.search(r"(?<![a-z])\d+|\d+(?![a-z\d])", os.path.basename(path))  # but not as in word2vec
        known = NAMES.get(part_of(path, 0), ())
        count = len(known) or (int(digits[0]) if digits and 2 <= int(digits[0]) <= 2000 else FEW_CLASSES)
        session.stand_in(f"names in {path}", f"{count} of them", decides_size=True)
        return List([f"{i:05}" for i in range(count)], path)
    names = _names(path, source)
    if _MARKED.search(source):
        session.stand_in(f"list of files {path}", f"{len(names):,} names, one box each")
        return io.StringIO("".join(f"# {name}\n{_FACE}\n" for name in names))
    if _BOXES.search(source) and re.search(r"\.split\(", source) and re.search(r"float\(|int\(", source):
        session.stand_in(f"list of files {path}", f"{len(names):,} names, one box each")
        mark = "," if _COMMAS.search(source) else " "
        return io.StringIO("".join(mark.join([name, *CORNERS]) + "\n" for name in names))
    session.stand_in(f"list of files {path}", f"{len(names):,} names")
    if ".split(" not in source and _LATER.search(module):
        return List([f"{name} {i % FEW_CLASSES}" for i, name in enumerate(names)], path)
    return List(names, path)


def list_of_folders(session: Session, path: str) -> io.StringIO:
    """A list whose lines are names of folders."""
    session.stand_in(f"list of folders {path}", f"{FOLDERS} names")
    return List([f"{i:05}" for i in range(FOLDERS)], path)


def _names(path: str, source: str) -> list[str]:
    ending, folder = ("", "") if _ADDED.search(source) else (".jpg", "./images/")
    first = zlib.crc32(path.encode()) % 97 * 10_000  # what is in one list is not in another
    # Some have the name of a class in them, before the last mark: one of the first in a list of classes.
    by_class = re.search(r"""split\(["']_["']\)""", source)
    count = _TESTED if _OF_TESTS.search(os.path.basename(path)) else ROWS
    return [f"{folder}{f'{i % FEW_CLASSES:05}_' if by_class else ''}{first + i:06}{ending}" for i in range(count)]


def read_tables() -> None:
    """Let the library for tables of commas read those that are not here."""
    make, following, read = csv.DictReader.__init__, csv.DictReader.__next__, csv.reader

    def rows(file: Any, *args: Any, **kwargs: Any) -> Any:
        return _Rows(file) if isinstance(file, Table) else read(file, *args, **kwargs)

    def init(self: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        make(self, file, *args, **kwargs)
        self.__dict__["unknown"] = isinstance(file, Table)

    def row(self: Any) -> Any:
        if not self.unknown:
            return following(self)
        next(self.reader)
        return _Row()

    replace(csv, "reader", rows)
    replace(csv.DictReader, "__init__", init)
    replace(csv.DictReader, "__next__", row)
