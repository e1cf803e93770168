"""Values that nobody knows, and that are what they are used as: words that count as numbers, rows with every column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from sys import _getframe
from typing import Any, Final

from foretell.capture.script.pretend.files.as_used import AsUsed
from foretell.capture.script.pretend.files.line_parts import TOKENS, WORDS, Line, Word
from foretell.capture.script.pretend.files.taken import stored, unpacked

ROWS: Final = 2048
_CLASSES: Final = 64
_PROSE: Final = frozenset(
    "text sentence sentence1 sentence2 question answer context premise hypothesis instruction input output prompt completion "
    "content document summary caption captions value title body article review comment target response transcript raw sent "
    "tokens chosen rejected query passage utterance description message abstract story en de fr zh src tgt normalized_text".split()
)
_PATHS: Final = re.compile(r"(file_?name|path|file|image|img|picture|wav|audio|video|mask|url)s?$", re.IGNORECASE)
# Names of numbers and of tables of words: not of arrays.
_OF_NO_ARRAY: Final = re.compile(
    r"^(num|n|nb)_|size|length|count|^max|^min|vocab|word|dict|2|to_?i|stoi|itos|names?$|path|file|meta|_id|token|class",
    re.IGNORECASE,
)
# Of pictures of one thing from many sides, as scripts for radiance fields read them.
_OF_CAMERAS: Final[dict[str, Any]] = {
    "camera_angle_x": 0.6911, "camera_angle_y": 0.6911, "fl_x": 1111.1, "fl_y": 1111.1, "cx": 400.0, "cy": 400.0, "w": 800, "h": 800,
    "near": 2.0, "far": 6.0,
    "transform_matrix": [[1.0, 0.0, 0.0, 0.0], [0.0, 0.8, -0.6, -2.4], [0.0, 0.6, 0.8, 3.2], [0.0, 0.0, 0.0, 1.0]],
}  # fmt: skip
_MANY: Final = re.compile(
    r"(images|annotations|categories|questions|data|items|examples|samples|records|conversations|messages|train|val|"
    r"test|dataset|frames|shapes|objects|paragraphs|qas|dialog|sentences|rows|entries)$", re.IGNORECASE,
)  # fmt: skip


_OF_TEXTS: Final = frozenset(
    "split rsplit strip rstrip lstrip lower upper replace startswith endswith partition rpartition find encode format".split()
)
_OF_LENGTHS: Final = re.compile(r"(^|_)(len|length|frames|duration)s?$", re.IGNORECASE)
_FRAMES: Final = 400  # of a sound whose spectrum is stood in for


def value_of(key: str, row: int) -> Any:
    """What a column of that name may have."""
    name = key.lower()
    if name in ("bbox", "box"):
        return [32.0, 32.0, 128.0, 128.0]
    if name in ("boxes", "bboxes"):
        return [[32.0, 32.0, 128.0, 128.0]]
    if name == "segmentation":
        return [[32.0, 32.0, 160.0, 32.0, 160.0, 160.0, 32.0, 160.0]]
    if name in ("width", "height"):
        return {"width": 500, "height": 375}[name]
    if name in _OF_CAMERAS:
        return _OF_CAMERAS[name]
    if name == "from":
        return ("human", "gpt")[row % 2]
    if name == "role":
        return ("user", "assistant")[row % 2]
    if name in ("vocab_size", "n_vocab", "vocabulary_size"):
        return 65  # of characters, as the texts that are stood in for have
    if name in _PROSE:
        return Word(WORDS.strip())
    if name == "id":
        return row
    if _MANY.search(name):
        return Document({"conversations": 2, "messages": 2, "frames": 100}.get(name, ROWS))
    if _PATHS.search(name):
        return Word(f"{row:05}.jpg" if re.search("im|pic|file", name) else f"{row:05}")
    return Word(str(row % 2))


class Record(dict[Any, Any]):
    """A row that has every column."""

    def __init__(self, row: int = 0) -> None:
        super().__init__()
        self._row = row

    def __missing__(self, key: Any) -> Any:
        made = value_of(key, self._row) if isinstance(key, str) else Part(self._row, key)
        self[key] = made
        return made

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):  # it was a list of tokens
            return list(TOKENS * 64)[key]
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        """It was a text, the name of something, where what texts have is wanted of it."""
        if name in _OF_TEXTS:
            return getattr(Line(f"{self._row:05}"), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if default is None or isinstance(default, str) else default

    def __contains__(self, key: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        """Its parts, where the reader takes it apart: it was a list."""
        if not (count := unpacked(_getframe(1))):
            return super().__iter__()
        names = [*stored(_getframe(1)), *[""] * count][:count]
        return iter([self._part(name, at) for at, name in enumerate(names)])

    def _part(self, name: str, at: int) -> Any:
        if _OF_LENGTHS.search(name):
            return _FRAMES
        known = name.lower() in _PROSE or _PATHS.search(name)
        return value_of(name, self._row) if known else self[at]


class Part(AsUsed, Record):  # type: ignore[misc]  # hashed as what it is used as
    """A part of a row that has no name: a number, a name or a row, as it is used."""

    def __init__(self, row: int, at: Any) -> None:
        Record.__init__(self, row)
        self._at = at

    def __reduce__(self) -> Any:
        return Part, (self._row, self._at)


def column_of(key: str) -> list[Any] | None:
    """What a file has under the plural of a column's name, one for each row; None where it may be something else."""
    if re.search(r"(^|_)(label|target)s$", key, re.IGNORECASE):
        return [row % _CLASSES for row in range(ROWS)]
    if re.search(
        r"(^|_)(im(a?)ge?|file|pic\w*|photo)_?(name|path|file|list)s?$|(^|_)(paths|filenames)$", key, re.IGNORECASE
    ):
        return [Word(f"{row:05}.jpg") for row in range(ROWS)]
    return None


class Document(Record):
    """What a JSON or pickle file has in it: rows by number, or parts by name."""

    part: Callable[[str], Any] | None = None  # an array in it by its name, where it has arrays

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self._rows = [Record(i) for i in range(rows)]

    def __missing__(self, key: Any) -> Any:
        if (made := column_of(key)) is None:
            if self.part is None or _OF_NO_ARRAY.search(key) or key.lower() in _PROSE or _MANY.search(key):
                return super().__missing__(key)
            made = self.part(key)
        self[key] = made
        return made

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self._grow(key)
        if isinstance(key, slice | int):
            return self._rows[key]
        if isinstance(key, Part):  # what belongs to a row of another file
            return Word(WORDS.strip())
        return super().__getitem__(str(key))

    def _grow(self, part: slice) -> None:
        """A script that cuts at a row, from either end, knows that its file has more."""
        start, stop = (bound if isinstance(bound, int) else 0 for bound in (part.start, part.stop))
        if max(start, -stop) >= len(self._rows) and self._rows:
            self._rows += [Record(i) for i in range(len(self._rows), max(start, -stop) + ROWS)]

    def __iter__(self) -> Iterator[Any]:
        if not (count := unpacked(_getframe(1))):
            return iter(self._rows)
        names = [*stored(_getframe(1)), *map(str, range(count))][:count]
        return iter([Document() if self.part is None else self[name.rpartition(".")[2]] for name in names])

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> Any:
        return [Word(f"{i:05}") for i in range(len(self._rows))]

    def values(self) -> Any:
        return list(self._rows)

    def items(self) -> Any:
        return list(zip(self.keys(), self._rows, strict=True))

    def append(self, row: Any) -> None:
        self._rows.append(row)

    def __add__(self, other: Any) -> list[Any]:
        return [*self._rows, *other]

    def __reduce__(self) -> Any:
        return Document, (len(self._rows),)
