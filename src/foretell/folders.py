"""Where a user keeps what is theirs: the folders a variable names, then one in ~/.config/foretell."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path

from foretell.errors import InputError

Stamps = tuple[tuple[str, int, int, int], ...]  # of files: path, size, time, inode


def home() -> Path | None:
    """None for a user without one, as in a container under a number of its own."""
    found = Path(os.path.expanduser("~"))
    return found if found.is_absolute() else None


def named_folders(variable: str) -> list[Path]:
    return [Path(os.path.expanduser(part)) for part in os.environ.get(variable, "").split(os.pathsep) if part]


def user_folders(variable: str, kind: str) -> tuple[Path, ...]:
    return _user_folders(variable, kind, os.environ.get(variable, ""), os.environ.get("HOME", ""))


@lru_cache(maxsize=64)
def _user_folders(variable: str, kind: str, named: str, homes: str) -> tuple[Path, ...]:
    """Computed once for each state of the environment: a forecast asks dozens of times."""
    at_home = home()
    return (*named_folders(variable), *([at_home / ".config" / "foretell" / kind] if at_home else []))


def stamps(root: str | Path) -> Stamps:
    """Every file under a folder with what changes when the file does. Without the folder there are none."""
    found: list[tuple[str, int, int, int]] = []
    if not os.path.isdir(root):  # as for most users: walking takes ten times as long to find nothing
        return ()
    for place, _, names in os.walk(root):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):  # gone since
                about = os.stat(path)
                found.append((path, about.st_size, about.st_mtime_ns, about.st_ino))
    return tuple(sorted(found))


def service_folder() -> Path:
    """Where the service keeps what it must not lose: $FORETELL_SERVICE, else by the XDG convention."""
    if named := named_folders("FORETELL_SERVICE"):
        return named[0]
    if (xdg := Path(os.environ.get("XDG_DATA_HOME", ""))).is_absolute():
        return xdg / "foretell"
    if (at_home := home()) is None:
        raise InputError("this user has no home to keep data in. Set $FORETELL_SERVICE to a folder.")
    return at_home / ".local" / "share" / "foretell"
