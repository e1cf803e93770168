"""Where a user keeps what is theirs: the folders a variable names, then one in ~/.config/foretell."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path | None:
    """None for a user without one, as in a container under a number of its own."""
    found = Path(os.path.expanduser("~"))
    return found if found.is_absolute() else None


def asked_folders(variable: str) -> list[Path]:
    return [Path(os.path.expanduser(part)) for part in os.environ.get(variable, "").split(os.pathsep) if part]


def user_folders(variable: str, kind: str) -> tuple[Path, ...]:
    at_home = home()
    return (*asked_folders(variable), *([at_home / ".config" / "foretell" / kind] if at_home else []))
