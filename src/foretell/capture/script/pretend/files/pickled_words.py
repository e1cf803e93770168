"""Vocabularies in pickles that are not on this machine: words by their numbers, and numbers by their words, whichever is asked for."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from sys import _getframe
from typing import Any, Final

from foretell.capture.script.pretend.files.line_parts import Word
from foretell.capture.script.pretend.files.taken import unpacked

COUNT: Final = 10_000  # as of tables of vectors that are stood in for
_NAMES: Final = re.compile(
    r"vocab|(word|token|char)s?_?(to|2)_?(id|idx|ix|ind|index|int)|(id|idx|ix|ind|index|int)_?(to|2)_?(word|token|char)|"
    r"word_?map|word_?dict|\bstoi|\bitos|(^|_)dico($|_)|dictionary",
    re.IGNORECASE,
)
_FEWEST, _LARGEST = 1_000, 500_000  # words of a vocabulary
_COUNTS: Final = re.compile(
    r"^(idx|n_?words|num_?words|n_?tokens|num_?tokens|size|vocab_?size|length|count)$", re.IGNORECASE
)
_SPECIAL: Final = ("<pad>", "<unk>", "<s>", "</s>")


def is_of_words(name: str) -> bool:
    """Whether a file of that name has a vocabulary."""
    return _NAMES.search(name) is not None


def words_in(path: str) -> int:
    """How many words a file has: what its name says, where it does."""
    numbers = [int(number) for number in re.findall(r"(?<!\d)\d{4,6}(?!\d)", path.rpartition("/")[2])]
    named = [number for number in numbers if _FEWEST <= number <= _LARGEST and not 1900 <= number < 2100]  # a year
    return named[-1] if named else COUNT


class PickledWords(dict[Any, Any]):
    """A table from words to numbers that is a list of words, or an object with both, where it is used as one."""

    def __init__(self, count: int = COUNT) -> None:
        words = [Word(special) for special in _SPECIAL] + [Word(f"word{i}") for i in range(count - len(_SPECIAL))]
        super().__init__({word: i for i, word in enumerate(words)})
        self._words = words

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, str) or not hasattr(key, "__index__"):
            return zlib.crc32(str(key).encode()) % len(self._words)
        return self._words[key]

    def __getitem__(self, key: Any) -> Any:
        return self._words[key] if isinstance(key, slice) else super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __contains__(self, key: object) -> bool:
        return not isinstance(key, int) or -1 < key < len(self._words)

    def __iter__(self) -> Iterator[Any]:
        """Its words, or both ways to look them up where the reader takes two apart."""
        count = unpacked(_getframe(1))
        return iter([self] * count) if count else iter(self._words)

    def __call__(self, word: Any) -> Any:
        return self[word]

    def __getattr__(self, name: str) -> Any:
        if _COUNTS.match(name):
            return len(self._words)
        if is_of_words(name) or name in ("words", "tokens"):
            return self
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __add__(self, other: Any) -> list[Any]:
        return [*self._words, *other]

    def index(self, word: Any) -> Any:
        return self[word]

    def __reduce__(self) -> Any:
        return PickledWords, (len(self._words),)
