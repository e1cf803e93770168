"""Where a user keeps what is theirs: the folders a variable names, then one in ~/.config/foretell."""

from __future__ import annotations

import os
from pathlib import Path

from foretell.errors import InputError


def home() -> Path | None:
    """None for a user without one, as in a container under a number of its own."""
    found = Path(os.path.expanduser("~"))
    return found if found.is_absolute() else None


def named_folders(variable: str) -> list[Path]:
    return [Path(os.path.expanduser(part)) for part in os.environ.get(variable, "").split(os.pathsep) if part]


def user_folders(variable: str, kind: str) -> tuple[Path, ...]:
    at_home = home()
    return (*named_folders(variable), *([at_home / ".config" / "foretell" / kind] if at_home else []))


def service_folder() -> Path:
    """Where the service keeps what it must not lose: $FORETELL_SERVICE, else by the XDG convention."""
    if named := named_folders("FORETELL_SERVICE"):
        return named[0]
    if (xdg := Path(os.environ.get("XDG_DATA_HOME", ""))).is_absolute():
        return xdg / "foretell"
    if (at_home := home()) is None:
        raise InputError("this user has no home to keep data in. Set $FORETELL_SERVICE to a folder.")
    return at_home / ".local" / "share" / "foretell"
