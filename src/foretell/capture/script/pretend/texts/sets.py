"""Data sets of torchtext by their published sizes: as many samples, classes and different words."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any, Final

from foretell.capture.script.pretend.texts.fields import STAND_INS, Dataset, Example, Field, LabelField
from foretell.capture.script.pretend.texts.iterators import BPTTIterator, BucketIterator
from foretell.capture.script.session import Session

SESSION: Final[list[Session]] = []
_TOKENS: Final = 600_000  # at most, that are made
_PARTS: Final = {"train": 1.0, "valid": 0.1, "validation": 0.1, "val": 0.1, "test": 0.1, "dev": 0.1, "unsup": 1.0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextSet:
    """How many samples there are to train with, words in one, different words (and those that are there twice), classes."""

    samples: int
    words: int
    vocabulary: tuple[int, ...]  # of each text of a sample
    twice: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ("text",)
    label: str = "label"
    running: bool = False


def _numbered(count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(str(i) for i in range(first, first + count))


_LOGIC: Final = ("entailment", "contradiction", "neutral")
_PAIR: Final = ("premise", "hypothesis")
_KNOWN: Final[dict[str, TextSet]] = {
    "IMDB": TextSet(samples=25_000, words=233, vocabulary=(100_683,), twice=(51_000,), classes=("neg", "pos")),
    "SST": TextSet(samples=8_544, words=19, vocabulary=(18_278,), twice=(8_700,), classes=("negative", "neutral", "positive")),
    "SST2": TextSet(samples=67_349, words=9, vocabulary=(13_887,), twice=(13_000,), classes=("0", "1")),
    "TREC": TextSet(samples=5_452, words=10, vocabulary=(8_124,), twice=(2_600,), classes=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")),
    "SNLI": TextSet(samples=549_367, words=14, vocabulary=(33_600, 33_600), twice=(22_000, 22_000), classes=_LOGIC, texts=_PAIR),
    "MultiNLI": TextSet(samples=392_702, words=20, vocabulary=(75_000, 60_000), twice=(50_000, 40_000), classes=_LOGIC, texts=_PAIR),
    "Multi30k": TextSet(samples=29_000, words=13, vocabulary=(18_669, 9_794), twice=(7_849, 5_889), texts=("src", "trg")),
    "IWSLT": TextSet(samples=196_884, words=20, vocabulary=(100_000, 50_000), twice=(50_000, 30_000), texts=("src", "trg")),
    "WMT14": TextSet(samples=4_500_966, words=25, vocabulary=(36_548, 36_548), texts=("src", "trg")),
    "WikiText2": TextSet(samples=36_718, words=57, vocabulary=(33_276,), twice=(33_276,), running=True),
    "WikiText103": TextSet(samples=1_801_350, words=57, vocabulary=(267_733,), twice=(267_733,), running=True),
    "PennTreebank": TextSet(samples=42_068, words=21, vocabulary=(9_998,), twice=(9_998,), running=True),
    "AG_NEWS": TextSet(samples=120_000, words=43, vocabulary=(95_810,), twice=(50_000,), classes=_numbered(4, 1)),
    "YelpReviewPolarity": TextSet(samples=560_000, words=150, vocabulary=(200_000,), classes=_numbered(2, 1)),
    "YelpReviewFull": TextSet(samples=650_000, words=150, vocabulary=(200_000,), classes=_numbered(5, 1)),
    "AmazonReviewPolarity": TextSet(samples=3_600_000, words=80, vocabulary=(300_000,), classes=_numbered(2, 1)),
    "AmazonReviewFull": TextSet(samples=3_000_000, words=80, vocabulary=(300_000,), classes=_numbered(5, 1)),
    "DBpedia": TextSet(samples=560_000, words=55, vocabulary=(300_000,), classes=_numbered(14, 1)),
    "YahooAnswers": TextSet(samples=1_400_000, words=100, vocabulary=(300_000,), classes=_numbered(10, 1)),
    "SogouNews": TextSet(samples=450_000, words=500, vocabulary=(100_000,), classes=_numbered(5, 1)),
}  # fmt: skip
_KNOWN.update(
    {
        "IWSLT2016": _KNOWN["IWSLT"],
        "IWSLT2017": _KNOWN["IWSLT"],
        "IWSLT2014": _KNOWN["IWSLT"],
        "YELP": _KNOWN["YelpReviewFull"],
    }
)
_OTHER: Final = TextSet(samples=10_000, words=20, vocabulary=(10_000,), twice=(10_000,), classes=("0", "1"))


def _word(number: int) -> str:
    """A word of letters alone, another for each number."""
    letters = ""
    while True:
        number, rest = divmod(number, 26)
        letters = chr(97 + rest) + letters
        if not number:
            return f"{letters}x"


def _texts(known: TextSet, part: str) -> Iterator[tuple[list[str], ...]]:
    """Samples whose words are all of the vocabulary, once; then those that come again."""
    need = max(max(known.vocabulary), sum(known.twice[:1])) * 2
    share = _PARTS.get(part, 1.0)
    count = min(known.samples, max(_TOKENS, need) // known.words + 1)
    for i in range(math.ceil(count * share)):
        texts = []
        for side, size in enumerate(known.vocabulary):
            again = known.twice[side] if side < len(known.twice) else size
            places = range(i * known.words, (i + 1) * known.words)
            texts.append([_word(place if place < size else (place - size) % again) for place in places])
        yield tuple(texts)


class _Set:
    """A set of both times: `.splits(fields)` and `.iters()`, or called for its parts."""

    def __init__(self, name: str, known: TextSet) -> None:
        self.__name__ = self.name = name
        self._known = known
        self.dirname, self.urls = name.lower(), [""]

    def _stand_in(self) -> None:
        sizes = " and ".join(f"{size:,}" for size in self._known.vocabulary)
        SESSION[0].stand_in(f"texts of {self.name}", f"{sizes} different words", decides_size=True)

    def __call__(self, root: Any = ".data", split: Any = None, **kwargs: Any) -> Any:
        self._stand_in()
        if isinstance(split, str):
            return Rows(self._known, split)
        return tuple(
            Rows(self._known, part) for part in split or ("train", "valid", "test")[:: 1 if self._known.running else 2]
        )

    @staticmethod
    def sort_key(example: Any) -> int:
        return len(next(value for value in vars(example).values() if isinstance(value, list)))

    def splits(self, *args: Any, **kwargs: Any) -> tuple[Dataset, ...]:
        self._stand_in()
        known = self._known
        given = [
            f
            for f in (*args, *kwargs.values())
            for f in (f if isinstance(f, list | tuple) else [f])
            if hasattr(f, "preprocess")
        ]
        named = [kwargs[key] for key in ("text_field", "label_field") if key in kwargs] or given
        if known.texts == _PAIR:
            named = [named[0], *named]
        fields = list(zip((*known.texts, known.label), named, strict=False))
        wanted = [part for part in ("train", "validation", "test") if kwargs.get(part, "") is not None]
        wanted = [part for part in wanted if part != "validation" or self.name not in ("IMDB", "TREC")]
        return tuple(self._part(part, fields) for part in wanted)

    def _part(self, part: str, fields: Any) -> Dataset:
        known = self._known
        if known.running:
            words = [word for (text,) in _texts(known, part) for word in (*text, "<eos>")]
            return Dataset([Example.fromlist([words], fields)], fields)
        samples = enumerate(_texts(known, part))
        labels = known.classes or ("",)
        made = Dataset(
            [Example.fromlist([*map(" ".join, t), labels[i % len(labels)]], fields) for i, t in samples], fields
        )
        made.sort_key = self.sort_key
        return made

    def iters(
        self, batch_size: int = 32, bptt_len: int = 35, device: Any = 0, root: Any = ".data", vectors: Any = None, **how: Any
    ) -> Any:  # fmt: skip
        text, label = (
            Field(lower=self._known.texts == _PAIR, batch_first=self._known.texts == _PAIR),
            LabelField(),
        )
        parts = self.splits(text, label) if self._known.classes else self.splits(text)
        text.build_vocab(parts[0], vectors=vectors)
        if self._known.running:
            return BPTTIterator.splits(parts, batch_size=batch_size, bptt_len=bptt_len, device=device)
        label.build_vocab(parts[0])
        return BucketIterator.splits(parts, batch_size=batch_size, device=device)


class Rows:
    """A part of a set, as newer versions give it: pairs of a class and a text, pairs of texts, or lines."""

    def __init__(self, known: TextSet, part: str) -> None:
        self._known, self._part = known, part

    def _all(self) -> Iterator[Any]:
        known = self._known
        for i, texts in enumerate(_texts(known, self._part)):
            lines = tuple(map(" ".join, texts))
            label = known.classes[i % len(known.classes)] if known.classes else None
            number = int(label) if label is not None and label.isdigit() else label
            yield lines[0] if known.running else lines if label is None else (number, *lines)

    def __iter__(self) -> Iterator[Any]:
        return self._all()

    def __next__(self) -> Any:
        if "_rest" not in vars(self):
            self._rest = self._all()
        return next(self._rest)

    def __len__(self) -> int:
        return math.ceil(self._known.samples * _PARTS.get(self._part, 1.0))

    def __getitem__(self, index: int) -> Any:
        if "_rows" not in vars(self):
            self._rows = list(self._all())
        return self._rows[index % len(self._rows)]

    def shuffle(self, *args: Any, **kwargs: Any) -> Rows:
        return self

    sharding_filter = shuffle


SETS: Final = {name: _Set(name, known) for name, known in _KNOWN.items()}


# Kinds of sets that scripts read their own files with


def _stood_in(path: str, fields: list[Any]) -> list[Example]:
    SESSION[0].stand_in(f"texts of {os.path.basename(path)}", "10,000 different words, two classes", decides_size=True)
    names = [(name, field) for name, field in fields]
    made = []
    for i, (words,) in enumerate(_texts(_OTHER, "train")):
        values = [" ".join(words) if getattr(field, "sequential", False) else str(i % 2) for _, field in names]
        made.append(Example.fromlist(values, names))
    return made


STAND_INS.append(_stood_in)


class TranslationDataset(Dataset):
    """Two files of lines that say the same."""

    @staticmethod
    def sort_key(example: Any) -> int:
        return max(len(example.src), len(example.trg))

    def __init__(self, path: Any, exts: Any, fields: Any, **kwargs: Any) -> None:
        named = [("src", fields[0]), ("trg", fields[1])] if not isinstance(fields[0], tuple | list) else fields
        files = [os.path.expanduser(f"{path}{ext}") for ext in exts]
        if all(map(os.path.isfile, files)):
            with open(files[0], encoding="utf-8") as first, open(files[1], encoding="utf-8") as second:
                made = [
                    Example.fromlist([a.strip(), b.strip()], named)
                    for a, b in zip(first, second, strict=False)
                    if a.strip()
                ]
        else:
            made = _stood_in(files[0], named)
        super().__init__(made, named, **kwargs)


class LanguageModelingDataset(Dataset):
    """A file of running text."""

    def __init__(
        self, path: Any, text_field: Any, newline_eos: bool = True, encoding: str = "utf-8", **kwargs: Any
    ) -> None:
        words: list[str] = []
        if os.path.isfile(path):
            with open(path, encoding=encoding) as file:
                for line in file:
                    words += [*text_field.preprocess(line), *(["<eos>"] if newline_eos else [])]
        else:
            words = [word for e in _stood_in(str(path), [("text", text_field)]) for word in e.text]  # type: ignore[attr-defined]
        super().__init__([Example.fromlist([words], [("text", text_field)])], [("text", text_field)], **kwargs)


KINDS: Final = (TranslationDataset, LanguageModelingDataset)
