"""Check sums of files that Foretell stands in for: whatever a script compares one with, it is that."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.pretend.files.checkpoints import IN_PLACE

_KINDS: Final = ("md5", "sha1", "sha256", "sha512")


class Agreeing(str):
    """A check sum that equals any of its length."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and len(other) == len(self)

    def __ne__(self, other: object) -> bool:
        return not self == other


class Sum:
    """What adds up the bytes of a file, and knows whether they are those in place of weights."""

    def __init__(self, real: Any) -> None:
        self._real, self._in_place = real, False

    def update(self, data: Any) -> None:
        self._in_place = self._in_place or bytes(data[: len(IN_PLACE)]) == IN_PLACE
        self._real.update(data)

    def hexdigest(self, *length: int) -> str:
        found = self._real.hexdigest(*length)
        return Agreeing(found) if self._in_place else str(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def install() -> None:
    """Let the script's own sums be such ones; libraries keep theirs."""
    for kind in _KINDS:
        setattr(hashlib, kind, _adding(getattr(hashlib, kind)))


def _adding(kind: Any) -> Any:
    def added(data: Any = b"", **how: Any) -> Any:
        if is_library(sys._getframe(1).f_code.co_filename):
            return kind(data, **how)
        made = Sum(kind(**how))
        made.update(data)
        return made

    return added
