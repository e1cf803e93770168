"""Which files of the user's a capture reads, as they were then: what its graph depends on."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from foretell.units import MIB, Bytes

_WHOLE: Final[Bytes] = 16 * MIB  # a larger file is known by its size and time
_OF_THE_SYSTEM: Final = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("dev", "proc", "sys", "etc", "usr/lib", "usr/share")
)
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
OWN: Final = str(Path(__file__).resolve().parents[1]) + os.sep


@lru_cache(maxsize=65_536)  # asked with every import and every look at a frame
def is_library(filename: str) -> bool:
    """Whether a file is not of the user's: compiled parts of libraries name the files that they were compiled from."""
    named = filename.startswith(("<", OWN)) or filename.endswith((".pyx", ".pxd", ".pxi"))
    return named or "site-packages" in filename or f"{os.sep}lib{os.sep}python3" in filename


def digest(path: Path) -> str:
    """What a file says; nothing where there is none, or none that can be read."""
    try:
        known = path.stat()
        if not stat.S_ISREG(known.st_mode):
            return ""
        if known.st_size > _WHOLE:
            return f"{known.st_size} bytes of {known.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


class Reads:
    """Hears of every file that Python code opens in this process, from now to its end.

    A file is taken as it is when it is first opened. What native code opens by itself is not heard of.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}  # path → digest
        self._own = threading.local()  # what we open ourselves
        self._written: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or getattr(self._own, "busy", False):
            return
        self._own.busy = True
        try:
            self._opened(*arguments)
        except Exception:  # whatever was opened, it is not ours to fail
            return
        finally:
            self._own.busy = False

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        if isinstance(path, int):
            return
        text = os.path.abspath(os.fsdecode(path))
        if is_library(text) or text.startswith(_OF_THE_SYSTEM) or text in self.found or text in self._written:
            return
        if flags & _WRITING:
            self._written.add(text)  # what the step has written itself is no input of it
        else:
            text = _source_of(text)
            self.found.setdefault(text, digest(Path(text)))


def _source_of(path: str) -> str:
    """A module is read from bytecode as long as that is of its source."""
    return importlib.util.source_from_cache(path) if path.endswith(".pyc") else path
