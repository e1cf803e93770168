"""Lines of files that are not on this machine, and their parts: texts that are made up, as many as a reader takes a line apart into.

A part knows which file it is of, and where in its lines: where a table of the script's does not have it, the next run takes
names that the table has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from sys import _getframe
from typing import Any, Final, SupportsIndex

from foretell.capture.script.guesses import Guesses
from foretell.capture.script.pretend.files.taken import compared, stored, unpacked
from foretell.capture.script.prose import SENTENCE, TEXT
from foretell.capture.script.shapes import alike

WORDS: Final = SENTENCE
TOKENS: Final = (1,) * 24
CORNERS: Final = ("32", "32", "160", "160", "0")  # of a box, and its class
_OF_PATHS: Final = re.compile(r"path|pth|file|name|img|image|mask", re.IGNORECASE)
_OF_MASKS: Final = re.compile(r"(^|_)(lb|lbl|label|gt|mask|seg|ann|target)", re.IGNORECASE)
_OF_LABELS: Final = re.compile(r"^(label|lbl|cls|target|y|class_?id|num|count|idx|index)s?$", re.IGNORECASE)


_PROSE: Final = re.compile(r"\w+( \w+)*quick brown|fox jumps over")
NAMES: dict[str, Any] = {}  # which parts of files were shown to have, in an earlier run


def are_names(guesses: Guesses, path: str) -> None:
    """A line of a text that is made up is a part of a path: what was read last has names of files or folders in it, no words."""
    if found := _PROSE.search(path):
        kind = "folders" if "/" in path[found.end() :] else "names"
        for text in [what for what, made in guesses.made.items() if what.startswith(TEXT) and made == "words"][::-1]:
            guesses.contradict(text, kind)


def know(shown_before: Mapping[str, Any]) -> None:
    """Parts of lines have names that an earlier run of the script has shown them to have."""
    NAMES.update(shown_before)


def part_of(path: str, at: int) -> str:
    """What a guess about a part of each line of a file is called."""
    return f"part {at} of {alike(path.partition(' of ')[2] if path.startswith('part ') else path)}"


def shown(origin: str, row: int, usual: str) -> str:
    names = NAMES.get(origin)
    return str(names[row % len(names)]) if names else usual


class Word(str):
    """A text that is 0 where a number is read from it."""

    origin: str | None = None  # what a guess about it is called

    def like(self, text: str) -> Word:
        made = type(self)(text)
        made.__dict__.update(self.__dict__)
        return made

    def strip(self, chars: str | None = None) -> Word:
        return self.like(str.strip(self, chars))

    def rstrip(self, chars: str | None = None) -> Word:
        return self.like(str.rstrip(self, chars))

    def lstrip(self, chars: str | None = None) -> Word:
        return self.like(str.lstrip(self, chars))

    def lower(self) -> Word:
        return self.like(str.lower(self))

    def __int__(self) -> int:
        return int(str(self)) if str(self).isdigit() else 0

    def __float__(self) -> float:
        return float(int(self))

    def __index__(self) -> int:
        return int(self)

    def __add__(self, other: Any) -> Any:
        return [*TOKENS, *other] if isinstance(other, list) else str.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        """A text that is added to a list was a list of tokens."""
        return [*other, *TOKENS] if isinstance(other, list) else str(other) + str(self)


class Value(Word):
    """What a line has behind its name: a number, or a box where it is taken apart once more."""

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return Corners(map(Word, CORNERS)) if sep == "," else list(super().split(sep, maxsplit))


class Corners(list[Any]):
    """Of a box, and its class: as many of them as its reader takes apart."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(list.__iter__(self))[: unpacked(_getframe(1))])


class Fields(list[Any]):
    """Parts of a line, as many as its reader takes it apart into."""

    def __init__(self, first: Word, other: str) -> None:
        self._other, self._file, self._row = other, first.origin, getattr(first, "row", 0)
        super().__init__([self._part(str(first), 0), self._part(other, 1)])

    def _part(self, text: str, at: int) -> Word:
        kind = Value if at else Word
        if self._file is None:
            return kind(text)
        origin = part_of(self._file, at)
        made = kind(shown(origin, self._row, text))
        made.origin = origin
        return made

    def __iter__(self) -> Iterator[Any]:
        frame = _getframe(1)
        count = unpacked(frame) or list.__len__(self)
        names = [*stored(frame), *[""] * count][:count] if unpacked(frame) else [""] * count
        return iter([self._named(name, i) for i, name in enumerate(names)])

    def _named(self, name: str, at: int) -> Any:
        """A part by the name that it gets: the path of a mask has one of its own, a label is a number."""
        first = str(list.__getitem__(self, 0))
        if self._file is not None and part_of(self._file, at) in NAMES:
            return self[at]
        if at and _OF_MASKS.search(name) and _OF_PATHS.search(name):
            return Word("labels/" + first.rpartition("/")[2].rpartition(".")[0] + ".png")
        if _OF_PATHS.search(name):
            return Word(first)
        return Word("0") if at == 0 and _OF_LABELS.search(name) else self[at]

    def __len__(self) -> int:
        return compared(_getframe(1)) or list.__len__(self)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, SupportsIndex):
            return list(self)[index]
        whole = list.__len__(self)
        if -whole <= index.__index__() < whole:
            return list.__getitem__(self, index)
        return self._part(self._other, index.__index__())


class Pieces(list[Any]):
    """Parts of a name: at least as many as its reader takes it apart into, of which the last are the name's own."""

    def __iter__(self) -> Iterator[Any]:
        more = (unpacked(_getframe(1)) or 0) - list.__len__(self)
        return iter([*[Word("0")] * more, *list.__iter__(self)])

    def __getitem__(self, index: Any) -> Any:
        there = not isinstance(index, SupportsIndex) or -len(self) <= index.__index__() < len(self)
        return list.__getitem__(self, index) if there else Word("0")


class Line(Word):
    """A line of a list of files: a name, and what belongs to it."""

    row = 0

    @classmethod
    def of(cls, text: str, path: str, row: int) -> Line:
        """The line of that number in a file, of a name that the script is known to look for where it is."""
        made = cls(shown(part_of(path, 0), row, text.rstrip("\n")) + "\n" * text.endswith("\n"))
        made.origin, made.row = part_of(path, 0), row
        return made

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Word:
        return self.like(str.replace(self, old, new, count))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        if sep in ("/", ".", "_", "-", "\n", "\\", "#"):  # parts of a name
            return Pieces(Line(part) for part in str.split(self, sep, maxsplit))
        return Fields(self.strip(), WORDS.strip() if sep in ("|", "\t") else "0")
