"""Entries of a folder that is not there, as `os.scandir` gives them."""

from __future__ import annotations

import os
import re
import stat
import types
from collections.abc import Iterator
from typing import Any, Final

from foretell.capture.script.pretend.files.kinds import ending_of

_SIZE: Final = 2**25
_LOOKS: Final = {"isfile": True, "is_file": True, "isdir": False, "is_dir": False}


def is_looked_for_as_file(frame: types.FrameType | None, path: str) -> bool:
    """Whether a path that must be there is of a file: by what looks for it, else by its ending."""
    for _ in range(2):  # `Path.is_file` looks by way of `Path.stat`
        if frame is not None and frame.f_code.co_name in _LOOKS:
            return _LOOKS[frame.f_code.co_name]
        frame = frame and frame.f_back
    return bool(re.fullmatch(r"\.[A-Za-z]\w*", ending_of(path)))


def status(file: bool) -> os.stat_result:
    """As `os.stat` gives it, of a file or a folder."""
    mode = stat.S_IFREG | 0o644 if file else stat.S_IFDIR | 0o755
    return os.stat_result((mode, 1, 1, 1, 0, 0, _SIZE if file else 4096, 0, 0, 0))


class Entry:
    """As `os.DirEntry`."""

    def __init__(self, folder: str, name: str, file: bool) -> None:
        self.name, self.path, self._file = name, os.path.join(folder, name), file

    def is_dir(self, **_: Any) -> bool:
        return not self._file

    def is_file(self, **_: Any) -> bool:
        return self._file

    def is_symlink(self) -> bool:
        return False

    def stat(self, **_: Any) -> os.stat_result:
        return status(self._file)

    def __fspath__(self) -> str:
        return self.path


class Entries:
    """As what `os.scandir` gives."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        return None
