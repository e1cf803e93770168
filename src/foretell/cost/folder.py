"""A model's folder: its files, those that it inherits from the version before it, and their checksums.

A version is never changed once it is shipped. The next one is a folder of its own that has what is new, and its card names
the folder beside it whose other files it goes on using.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from foretell.cost.files import reading
from foretell.engine import stamped_digest
from foretell.errors import ModelError
from foretell.folders import Stamps, stamps
from foretell.limits import read_bytes, read_json

SHIPPED: Final = Path(__file__).parent / "models"
DEFAULT: Final = "h200-2026.11.10"
CARD: Final = "card.json"  # what a model was fitted on
CHECKSUMS: Final = "checksums.json"  # of every other file of a model's folder, by its path there
_INHERITS: Final = "inherits"  # of a card: the name of the version before
_MAX_VERSIONS: Final = 100  # of one line
T = TypeVar("T")


def shipped() -> Path:
    """The folder of the model that is taken where none is named."""
    return SHIPPED / DEFAULT


def file_of(folder: Path, *names: str) -> Path | None:
    """A file by its name, or by one that it had before: the folder's own, or of the nearest version that has one."""
    return _shipped_file(folder, *names) if folder.parent == SHIPPED else _find(folder, *names)


@lru_cache(maxsize=256)
def _shipped_file(folder: Path, *names: str) -> Path | None:
    """Shipped models are part of the code, which a process goes on with whatever becomes of its files."""
    return _find(folder, *names)


def _find(folder: Path, *names: str) -> Path | None:
    for version in versions(folder):
        for name in names:
            if (path := version / name).is_file():
                return path
    return None


def read_once(folder: Path | None, load: Callable[[Path], T], *names: str) -> T | None:
    """What a file of a model says; None where there is none. It is read again once it has changed."""
    path = file_of(folder, *names) if folder else None
    if path is None:
        return None
    content: T = _loaded(load, path, path.stat().st_mtime_ns)
    return content


def read_errors(path: Path, make: Callable[[dict[str, Any]], T]) -> T:
    """What a JSON file says of a model's errors."""
    with reading(path, "errors of a model"):
        return make(read_json(path))


def versions(folder: Path) -> tuple[Path, ...]:
    """A folder, and those that it inherits files from."""
    card = folder / CARD
    return _versions(folder, card.stat().st_mtime_ns) if card.is_file() else (folder,)


@lru_cache(maxsize=64)
def _versions(folder: Path, changed: int) -> tuple[Path, ...]:
    line = [folder]
    while (before := _before(line[-1])) is not None:
        if before in line or len(line) == _MAX_VERSIONS:
            raise ModelError(f"{folder / CARD}: versions inherit from each other in a circle.")
        line.append(before)
    return tuple(line)


def _before(folder: Path) -> Path | None:
    """The version that a folder inherits from."""
    with reading(folder / CARD, "card of a model"):
        card = read_json(folder / CARD)
    name = card.get(_INHERITS, "") if isinstance(card, dict) else ""
    if not name:
        return None
    if not isinstance(name, str) or Path(name).name != name or not (folder.parent / name / CARD).is_file():
        raise ModelError(f"{folder / CARD} inherits from {name!r}, which is no model beside it. Copy that folder too.")
    return folder.parent / name


def state_of(folder: Path) -> Stamps:
    """The files of a model that was fitted here, and of those that it inherits from, as they are now."""
    return tuple(stamp for version in versions(folder) for stamp in stamps(version))


def content_of(folder: Path | None) -> str:
    """Digest a model's files; those that are shipped are part of the engine's own digest."""
    return "" if folder is None or folder.parent == SHIPPED else stamped_digest(state_of(folder))


def seal(folder: Path) -> None:
    """Write down the checksums of a model that is complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n")


def check_seal(folder: Path) -> None:
    """Refuse a model with a file that changed since it was complete; one without checksums is older than they are."""
    _check_sums(folder)  # before its card is believed
    for version in versions(folder)[1:]:
        _check_sums(version)


def _check_sums(folder: Path) -> None:
    if not (folder / CHECKSUMS).is_file():
        return
    with reading(folder / CHECKSUMS, "checksums of a model"):
        sums = dict(read_json(folder / CHECKSUMS))
    for name, known in sums.items():
        if ".." in name or name.startswith("/"):
            raise ModelError(f"{folder / CHECKSUMS} names {name!r}, which is no file of the model.")
        with reading(folder / name, "part of the model that its checksums name"):
            computed = hashlib.sha256(read_bytes(folder / name, "bytes of a file of arrays")).hexdigest()
        if computed != known:
            raise ModelError(
                f"{folder / name} is damaged, or was changed after the model was fitted: its checksum is not the one in "
                f"{CHECKSUMS}. Restore the folder from a copy, or fit it anew: foretell fit"
            )


@lru_cache(maxsize=16)
def _loaded(load: Callable[[Path], Any], path: Path, changed: int) -> Any:
    return load(path)
