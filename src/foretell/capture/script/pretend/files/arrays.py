"""Arrays of files that are not on this machine, where their names or their readers say what they are; weights, which keep."""

from __future__ import annotations

import re
import types
from sys import _getframe
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.script.pretend.files.callers import function_source
from foretell.capture.script.pretend.files.guessed import INSIDE, guessed, reads_one_sample
from foretell.capture.script.pretend.files.known_arrays import array_of_a_known_set
from foretell.capture.script.pretend.files.sizes import size_of
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import FRAMES, ROWS

_TOKENS: Final = 2**24  # of a file of them
_WORDS: Final = (10_000, 300)  # of a table of vectors
_OF_TOKENS: Final = re.compile(r"token|fineweb|openwebtext|shard|corpus|input_ids|(^|_)ids($|_)", re.IGNORECASE)
_OF_VECTORS: Final = re.compile(r"embed|vectors|glove|word2vec|w2v", re.IGNORECASE)
_OF_PICTURES: Final = re.compile(r"(^|/)(images|imgs|rgbs?|frames|pictures)(/\w+)?$", re.IGNORECASE)
_PICTURES: Final = 61  # of a file that has several: a prime, as extents are that are made up
_OF_LABELS: Final = re.compile(r"label|target|class|(^|[_/])y(_|\.|$)", re.IGNORECASE)
_OF_SPECTRA: Final = re.compile(r"(^|[_/\-])(mels?|spec|spectrogram)s?([_/\-.]|$)", re.IGNORECASE)
_OF_CURVES: Final = re.compile(r"(^|[_/\-])(f0|pitch|energy|durations?|align(ment)?s?)s?([_/\-.]|$)", re.IGNORECASE)


def known_array(session: Session, path: str, key: str, frame: types.FrameType | None) -> Any:
    """An array whose name, or whose reader's, says what is in it; None where none does."""
    if (known := array_of_a_known_set(session, path, key)) is not None:
        return known
    words = f"{path} {key}"
    reader = f"{words} {frame.f_code.co_name if frame else ''}"
    if _OF_VECTORS.search(words):
        rows, size = _WORDS
        digits = re.search(r"(\d{2,4})d", words)
        size = int(digits[1]) if digits else size
        session.stand_in(f"vectors in {path}", f"{rows:,} of {size} numbers", decides_size=True)
        return np.zeros((rows, size), np.float32)
    if _OF_TOKENS.search(reader):
        session.stand_in(f"tokens in {path}", f"{_TOKENS:,} of them")
        return np.zeros(_TOKENS, np.uint16)
    if _OF_SPECTRA.search(words):
        session.stand_in(f"spectra in {path}", f"80 × {FRAMES}")
        source = function_source(frame) if frame else ""
        return np.zeros((FRAMES, 80) if ".T" in source or "transpose" in source else (80, FRAMES), np.float32)
    if _OF_CURVES.search(words):
        curve = guessed(session, f"{path}{INSIDE}{key}" if key else path, [FRAMES])  # or a number for each letter
        curve[...] = 1
        return curve
    if _OF_PICTURES.search(key):
        width, height = size_of(path)
        return guessed(session, f"{path}{INSIDE}{key}", [_PICTURES, height, width, 3], "uint8")
    if _OF_LABELS.search(key or path.rpartition("/")[2]):
        name = f"{path}{INSIDE}{key}" if key else path
        one = reads_one_sample(_getframe(1))
        return guessed(session, name, None if one else [ROWS], "int64")
    return None


class Weights:
    """An array of a checkpoint: whatever is made of it is one too, and what it is copied into keeps what it has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Weights:
        return self

    def __getitem__(self, key: Any) -> Weights:
        return self

    def __eq__(self, other: object) -> bool:
        return True  # a size that is compared with that of a parameter

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _same(self, *_: Any) -> Weights:
        return self

    __add__ = __sub__ = __mul__ = __truediv__ = __radd__ = __rmul__ = __neg__ = _same

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What it is copied into; else one more of its kind."""
        first = args[0] if args else None
        return first if isinstance(first, torch.Tensor) else cls()
