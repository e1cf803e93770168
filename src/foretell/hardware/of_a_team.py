"""Files of the catalog that one team alone has: laid out as a folder, and found by whoever asks for the team."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Final

_FOLDERS: Final[ContextVar[tuple[Path, ...]]] = ContextVar("of_a_team", default=())


def team_folders() -> tuple[Path, ...]:
    """Folders to look into before all others."""
    return _FOLDERS.get()


def take(folder: Path | None) -> Token[tuple[Path, ...]]:
    """From here on this thread or task finds what is in the folder, before all else."""
    return _FOLDERS.set(() if folder is None else (folder,))


@contextmanager
def taken(folder: Path | None) -> Iterator[None]:
    before = take(folder)
    try:
        yield
    finally:
        _FOLDERS.reset(before)


def laid_out(devices: Mapping[str, str]) -> Path | None:
    """Devices by name, each a TOML, as a folder that is named by its content and never changes; None of none."""
    if not devices:
        return None
    place = Path(_root().name) / hashlib.sha256(json.dumps(sorted(devices.items())).encode()).hexdigest()
    if not place.is_dir():
        draft = Path(tempfile.mkdtemp(dir=_root().name))
        (draft / "devices").mkdir()
        for name, text in devices.items():
            (draft / "devices" / f"{name}.toml").write_text(text, encoding="utf-8")
        try:
            os.rename(draft, place)
        except OSError:  # another thread was first
            shutil.rmtree(draft, ignore_errors=True)
    return place


@functools.cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="foretell-devices-")
