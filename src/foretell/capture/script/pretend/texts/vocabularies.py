"""Vocabularies of words, as torchtext has them in its older and newer versions, and vectors of words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch

_SIZE: Final = 300  # of a vector, where its name says none


class Vocab:
    """Words and their numbers; the most frequent first."""

    UNK = "<unk>"

    def __init__(
        self, counter: Any = None, max_size: int | None = None, min_freq: int = 1, specials: Any = ("<unk>", "<pad>"),
        vectors: Any = None, unk_init: Any = None, vectors_cache: Any = None, specials_first: bool = True,
    ) -> None:  # fmt: skip
        self.freqs = Counter(counter or {})
        first = list(dict.fromkeys(specials or ()))
        words = [w for w, n in sorted(sorted(self.freqs.items()), key=lambda pair: -pair[1]) if n >= max(min_freq, 1)]
        words = [word for word in words if word not in first][:max_size]
        self.itos: list[Any] = [*first, *words] if specials_first else [*words, *first]
        self._default: int | None = self.itos.index(self.UNK) if self.UNK in first else None
        self.vectors: Any = None
        self._number()
        if vectors is not None:
            self.load_vectors(vectors)

    def _number(self) -> None:
        numbers = {word: i for i, word in enumerate(self.itos)}
        unknown = self._default
        self.stoi: dict[Any, int] = numbers if unknown is None else defaultdict(lambda: unknown, numbers)

    def load_vectors(self, vectors: Any, **kwargs: Any) -> None:
        given = vectors if isinstance(vectors, list) else [vectors]
        self.vectors = torch.zeros(len(self), sum(size_of(one) for one in given))

    def set_vectors(self, stoi: Any, vectors: Any, dim: int, **kwargs: Any) -> None:
        self.vectors = torch.zeros(len(self), dim)

    def extend(self, other: Any, sort: bool = False) -> None:
        self.itos += [word for word in other.itos if word not in self]
        self._number()

    def __len__(self) -> int:
        return len(self.itos)

    def __contains__(self, word: object) -> bool:
        return dict.__contains__(self.stoi, word)

    def __getitem__(self, word: Any) -> int:
        return self.stoi[word]

    def __call__(self, words: Iterable[Any]) -> list[int]:
        return [self.stoi[word] for word in words]

    lookup_indices = __call__
    forward = __call__

    def set_default_index(self, index: int | None) -> None:
        self._default = index
        self._number()

    def get_default_index(self) -> int | None:
        return self._default

    def insert_token(self, token: str, index: int) -> None:
        self.itos.insert(index, token)
        self._number()

    def append_token(self, token: str) -> None:
        self.insert_token(token, len(self))

    def get_itos(self) -> list[Any]:
        return self.itos

    def get_stoi(self) -> dict[Any, int]:
        return dict(self.stoi)

    def lookup_token(self, index: int) -> Any:
        return self.itos[index] if index < len(self) else self.UNK

    def lookup_tokens(self, indices: Iterable[int]) -> list[Any]:
        return [self.lookup_token(int(index)) for index in indices]


def build_vocab_from_iterator(
    iterator: Iterable[Iterable[str]], min_freq: int = 1, specials: Any = None, special_first: bool = True, max_tokens: int | None = None
) -> Vocab:  # fmt: skip
    return vocab(_counted(iterator), min_freq, specials, special_first, max_tokens)


def vocab(
    ordered: Any, min_freq: int = 1, specials: Any = None, special_first: bool = True, most: int | None = None
) -> Vocab:
    found = Vocab(
        ordered, most and most - len(specials or ()), min_freq, specials=specials or (), specials_first=special_first
    )
    found.set_default_index(None)
    return found


def _counted(iterator: Iterable[Iterable[str]]) -> Counter[str]:
    counter: Counter[str] = Counter()
    for words in iterator:
        counter.update(words)
    return counter


# Vectors


def size_of(vectors: Any) -> int:
    """How many numbers there are for a word, by the name: `glove.6B.100d`."""
    if isinstance(vectors, Vectors):
        return vectors.dim
    found = re.search(r"(\d+)d\b", str(vectors))
    return int(found[1]) if found else 100 if "charngram" in str(vectors) else _SIZE


class Vectors:
    """Vectors of words that are not here: of their size, and zero."""

    def __init__(self, name: Any = "", cache: Any = None, *args: Any, dim: int | None = None, **kwargs: Any) -> None:
        self.name, self.dim = name, dim or size_of(name)
        self.itos: list[str] = []
        self.stoi: dict[str, int] = {}
        self.vectors = torch.zeros(0, self.dim)

    def __getitem__(self, word: str) -> torch.Tensor:
        return torch.zeros(self.dim)

    def __contains__(self, word: object) -> bool:
        return True

    def __len__(self) -> int:
        return 400_000

    def get_vecs_by_tokens(self, tokens: Any, lower_case_backup: bool = False) -> torch.Tensor:
        return torch.zeros(self.dim) if isinstance(tokens, str) else torch.zeros(len(tokens), self.dim)


class GloVe(Vectors):
    def __init__(self, name: str = "840B", dim: int = _SIZE, **kwargs: Any) -> None:
        super().__init__(f"glove.{name}.{dim}d", dim=dim)


class FastText(Vectors):
    def __init__(self, language: str = "en", **kwargs: Any) -> None:
        super().__init__(f"fasttext.{language}", dim=_SIZE)


class CharNGram(Vectors):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__("charngram", dim=100)


VECTORS: Final[tuple[Callable[..., Any], ...]] = (Vectors, GloVe, FastText, CharNGram)


class Aliases(dict[str, Any]):
    """Vectors by their whole name."""

    def __missing__(self, name: str) -> Any:
        return lambda **kwargs: Vectors(name)

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(["glove.6B.300d"])
