"""The one digest that stored answers are named by: this engine's files, and the content of all that an answer rests on.

Captured graphs, the planner's outcomes and the service's answers are found again by it. Another version of Foretell, a model
or a profile that was fitted again, a device whose file was corrected: each has another digest, so none gets an old answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Final

from foretell.folders import Stamps

_PACKAGE: Final = Path(__file__).parent


@cache
def engine_digest(*rooms: str) -> str:
    """Digest the package's own modules and every file of its rooms: of all rooms, shipped models too, unless some are named.

    It is computed once per process, which goes on with the code that it has loaded whatever becomes of the files.
    """
    inside = [_PACKAGE / room for room in rooms] or [path for path in _PACKAGE.iterdir() if path.is_dir()]
    return _files_digest([*_PACKAGE.glob("*.py"), *(path for room in inside for path in room.rglob("*"))])


@lru_cache(maxsize=64)
def stamped_digest(files: Stamps) -> str:
    """Digest the content of files, which are read once for each state that they are in."""
    return _files_digest(Path(path) for path, *_ in files)


def digest(*parts: object, rooms: tuple[str, ...] = ()) -> str:
    """Name an answer by this engine, or those rooms of it that decide, and by the content of all else that it rests on."""
    return hashlib.sha256("".join(_content((engine_digest(*rooms), *parts))).encode()).hexdigest()


def _files_digest(paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file() and path.suffix != ".pyc"):
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def _content(value: object) -> Iterator[str]:
    """Spell a value; what does not count when two are compared does not count here either."""
    if value is None or isinstance(value, str | int | float):
        yield repr(value)
    elif isinstance(value, bytes):
        yield hashlib.sha256(value).hexdigest()
    elif isinstance(value, Path):
        yield repr(str(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__
        yield from _content({f.name: getattr(value, f.name) for f in fields(value) if f.compare})
    elif isinstance(value, Mapping):
        for name in sorted(value, key=repr):
            yield f"{{{name!r}:"
            yield from _content(value[name])
            yield "}"
    elif isinstance(value, tuple | list):
        for item, same in groupby(value):  # a large cluster has one node many times
            yield f"[{len(list(same))}×"
            yield from _content(item)
            yield "]"
    else:
        raise TypeError(f"an answer cannot be named by {type(value).__name__}: its content is not known.")
