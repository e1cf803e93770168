"""Arrays of which nobody knows the shape: they have one that is made up, until a use contradicts it."""

from __future__ import annotations

import math
import re
import types
import weakref
from collections.abc import Iterable, Iterator
from sys import _getframe
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.reads import is_library
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.pretend.files.line_parts import Word, are_names
from foretell.capture.script.pretend.files.taken import unpacked
from foretell.capture.script.pretend.files.unknown import Document
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import (
    ARRAY,
    ROWS,
    alike,
    arrays,
    enlarged,
    free_primes,
    is_made_up,
    reshaped,
    with_rank,
)
from foretell.units import Bytes

_FILLED: Final = 2**22  # numbers that are drawn, at most
_LIMIT: Final[Bytes] = 2**30  # that arrays hold which are there at once,
_LARGE: Final[Bytes] = 2**18  # and of one that counts
CLASSES: Final = 10  # that whole numbers tell apart
INSIDE: Final = ": "  # between a file and the name of an array in it
_OF_ONE: Final = frozenset("__getitem__ __getitems__ __next__ __iter__".split())  # functions that read one sample


class Shape(tuple[int, ...]):
    """The shape of such an array, which says so where more dimensions are wanted of it."""

    array: Guessed
    before = 0

    @classmethod
    def of(cls, array: Guessed, shape: Iterable[int], before: int = 0) -> Shape:
        made = cls(shape)
        made.array, made.before = array, before
        return made

    def __iter__(self) -> Iterator[int]:
        count = unpacked(_getframe(1))
        if count is not None and count != len(self):
            self.array.want_rank(self.array.ndim + count - len(self))
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            first = at.indices(len(self))[0]
            if at.stop is not None and at.stop > len(self):
                self.array.want_rank(self.before + at.stop)
            return Shape.of(self.array, super().__getitem__(at), self.before + first)
        if not -len(self) <= at < len(self):
            self.array.want_rank(self.before + (at + 1 if at >= 0 else -at))
        return super().__getitem__(at)


class Name(Word):
    """Of an array in a file: taken apart, it was several names."""

    def __iter__(self) -> Iterator[Any]:
        count = unpacked(_getframe(1))
        return str.__iter__(self) if count is None else iter([Word(self)] * count)


def names() -> list[Name]:
    """Of arrays in a file."""
    return [Name(f"{i:05}") for i in range(64)]


class Guessed(np.ndarray[Any, Any]):
    """An array whose shape is made up, or made of one. Under a name it has another, as a group of HDF5 has."""

    about: str | None = None
    session: Session | None = None
    may_be_tensor = False  # what nobody has read: whether it was an array shows in its use

    def __array_finalize__(self, of: Any) -> None:
        self.about, self.session = getattr(of, "about", None), getattr(of, "session", None)
        self.may_be_tensor = getattr(of, "may_be_tensor", False)

    def __getattr__(self, name: str) -> Any:
        if self.may_be_tensor and self.session is not None and self.about is not None and hasattr(torch.Tensor, name):
            guesses = self.session.guesses
            guesses.contradict(self.about, {**guesses.made[self.about], "tensor": True})
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def shape(self) -> Any:
        return Shape.of(self, np.ndarray.shape.__get__(self))

    @shape.setter
    def shape(self, wanted: Any) -> None:
        self._check_reshape(wanted if isinstance(wanted, tuple) else (wanted,))
        np.ndarray.shape.__set__(self, wanted)  # type: ignore[attr-defined]

    def want_rank(self, rank: int) -> None:
        """A use of it wants so many dimensions."""
        if self.session is not None and self.about is not None and rank >= 0:
            guesses = self.session.guesses
            shape = guesses.made[self.about]["shape"]
            wanted = with_rank(shape, len(shape) + rank - self.ndim, guesses)
            guesses.contradict(self.about, {**guesses.made[self.about], "shape": wanted})

    def _check_reshape(self, wanted: Any) -> None:
        """It is made of as many numbers as it is taken apart into."""
        known = math.prod(int(n) for n in wanted if int(n) != -1)
        if self.session is None or self.about is None or known == 0:
            return
        fits = self.size % known == 0 if any(int(n) == -1 for n in wanted) else self.size == known
        made = self.session.guesses.made[self.about]
        if not fits and math.prod(made["shape"]) == self.size:
            shape = reshaped(made["shape"], [int(n) for n in wanted])
            self.session.guesses.contradict(self.about, {**made, "shape": shape})

    def _check_cut(self, key: tuple[Any, ...]) -> None:
        """It goes as far as a part that is cut out of it, of which both ends are named: a crop is as large as it is wanted."""
        shape = np.ndarray.shape.__get__(self)
        if self.session is None or self.about is None or len(key) > self.ndim:
            return
        made = self.session.guesses.made[self.about]
        before = len(made["shape"]) - self.ndim
        if before < 0 or list(shape) != made["shape"][before:]:
            return
        wanted = list(made["shape"])
        for at, part in enumerate(key):
            if not isinstance(part, slice) or not all(
                isinstance(end, int | np.integer) for end in (part.start, part.stop)
            ):
                continue
            if 0 <= part.start < part.stop > shape[at] and is_made_up(shape[at]):
                wanted[before + at] = enlarged(shape[at], int(part.stop))
        if wanted != made["shape"]:
            self.session.guesses.contradict(self.about, {**made, "shape": wanted})

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        self._check_reshape(wanted)
        return super().reshape(*shape, **kwargs)

    def transpose(self, *axes: Any) -> Any:
        count = len(axes) if len(axes) != 1 else 0 if axes[0] is None else int(np.size(axes[0]))
        if count and count != self.ndim:
            self.want_rank(count)
        return super().transpose(*axes)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and self.session is not None and self.about is not None:
            return guessed(self.session, f"{self.about.removeprefix(ARRAY)}{INSIDE}{key}")
        if isinstance(key, tuple) and not any(k is None or isinstance(k, np.ndarray) for k in key):
            used = sum(k is not Ellipsis for k in key)
            if used > self.ndim:
                self.want_rank(used)
        self._check_cut(key if isinstance(key, tuple) else (key,))
        try:
            return super().__getitem__(key)
        except IndexError:
            if _is_past(key, self):
                raise
            return super().__getitem__(_within(key, np.ndarray.shape.__get__(self)))

    def item(self, *at: Any) -> Any:
        """An object where it has one, as arrays that pickle has written do."""
        return Document() if self.size > 1 and not at else super().item(*at)

    def keys(self) -> list[Name]:
        return names()

    @property
    def attrs(self) -> Document:
        return Document()

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _is_past(key: Any, array: Guessed) -> bool:
    """Whether an index has more parts than the array has, or is the one at which whoever goes over its rows ends."""
    return len(key) > array.ndim if isinstance(key, tuple) else isinstance(key, int) and key == len(array)


def _within(key: Any, shape: tuple[int, ...]) -> Any:
    """An index that an array of that shape has: how many rows there are is made up too."""
    if isinstance(key, tuple):
        return tuple(_within(part, shape[at:]) for at, part in enumerate(key))
    if isinstance(key, int | np.integer):
        return int(key) % shape[0]
    if isinstance(key, np.ndarray | list) and np.asarray(key).dtype.kind in "iu":
        return np.asarray(key) % shape[0]
    return key


def guessed(session: Session, name: str, usual: Iterable[int] | None = None, dtype: str = "float32") -> Guessed:
    """An array of that name: as it was shown to be, or as its reader lets expect."""
    are_names(session.guesses, name)
    about = ARRAY + re.sub(r"[0-9]+", "#", name)
    guesses = session.guesses
    shape = list(usual) if usual is not None else usual_shape(guesses, about)
    taken = guesses.about(about, {"shape": shape, "dtype": dtype})
    session.stand_in(f"array {name}", " × ".join(map(str, taken["shape"])) or "a number", decides_size=True)
    made: Guessed = _BUFFERS.of(tuple(taken["shape"]), np.dtype(taken["dtype"])).view(Guessed)
    made.about, made.session = about, session
    return made


def usual_shape(guesses: Guesses, about: str) -> list[int]:
    """A matrix: of the features of each sample, or of one."""
    file, _, key = about.rpartition(INSIDE)
    for other, taken in arrays(guesses).items():
        same_file = key != about and other.rpartition(INSIDE)[0] == file
        if same_file or alike(other) == alike(about):
            return list(taken["shape"])
    free = free_primes(guesses)
    return [free[0], free[1]] if reads_one_sample(_getframe(1)) else [ROWS, free[0]]


def reads_one_sample(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _OF_ONE and not is_library(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


class Buffers:
    """Memory of arrays that are made up: once they hold much of it, large ones of a shape share what is never looked at."""

    def __init__(self, most: Bytes = _LIMIT) -> None:
        self._most = most
        self._in_use: Bytes = 0
        self._shared: dict[tuple[tuple[int, ...], np.dtype[Any]], Any] = {}

    def of(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        size = math.prod(shape) * dtype.itemsize
        if size < _LARGE:
            return _filled(shape, dtype)
        if self._in_use + size > self._most:
            if (shape, dtype) not in self._shared:
                self._shared[shape, dtype] = _filled(shape, dtype)
            return self._shared[shape, dtype]
        made = _filled(shape, dtype)
        self._in_use += size
        weakref.finalize(made, self._give_back, size)
        return made

    def _give_back(self, size: Bytes) -> None:
        self._in_use -= size


_BUFFERS: Final = Buffers()


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Numbers that differ, where there are not too many: what is divided by how they scatter stays finite."""
    if dtype.kind in "iu" and len(shape) == 1:
        return (np.arange(shape[0]) % CLASSES).astype(dtype)
    if dtype.kind != "f" or math.prod(shape) > _FILLED:
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).random(shape, np.float32).astype(dtype)
