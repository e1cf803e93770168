"""Files of tokens, also with a header, as llm.c writes them and trainers of GPTs after it read them."""

from __future__ import annotations

import functools
import io
import re
from typing import Final

import numpy as np

from foretell.capture.script.session import Session

_HEADER: Final = 256  # numbers of 32 bits: what it is, its version, how many tokens follow
_TOKENS: Final = 2**22
_MAGIC: Final = re.compile(r"\b(20240520|20240801|20240227)\b")
_NEWER: Final = 20240801  # whose tokens have 32 bits, in version 7


class Tokens(io.BytesIO):
    """Such a file, opened; numpy reads one by its number, which this has not."""


def packed(path: str, source: str, session: Session) -> Tokens:
    """The file; with a header, if the code that reads it says what such files begin with."""
    session.stand_in(f"tokens in {path}", f"{_TOKENS:,} of them")
    found = _MAGIC.search(source)
    return Tokens(_written(int(found[1])) if found else _plain())


@functools.cache
def _plain() -> bytes:
    return bytes(2 * _TOKENS)


@functools.cache
def _written(magic: int) -> bytes:
    header = np.zeros(_HEADER, np.int32)
    header[:3] = magic, 7 if magic == _NEWER else 1, _TOKENS
    return header.tobytes() + bytes(_TOKENS * (4 if magic == _NEWER else 2))
