"""Captured graphs on disk, found again by the content of their source, their settings and the library versions.

A user's file may import its neighbours, so an entry lists every file of the user's that was read, with its hash; it is
valid while all of them are unchanged.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from foretell.errors import GraphFileError
from foretell.graph import VERSION, Graph

_LIBRARIES = ("foretell", "torch", "torchvision", "timm", "transformers")
_MOST_BYTES = 512 * 2**20


def folder() -> Path:
    if chosen := os.environ.get("FORETELL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretell"


def key(source: str, settings: Mapping[str, str]) -> str:
    """Names the question: the source, where it lies and what it says, settings, versions, our own code."""
    path = Path(source.rpartition(":")[0] or source)
    where = [str(path.resolve()), _digest(path)] if path.exists() else []
    if ":" in source and not where:  # a module is looked up from here
        where = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
    question = [source, where, sorted(settings.items()), _versions(), _own_code(), VERSION]
    return hashlib.sha256(json.dumps(question).encode()).hexdigest()[:32]


def get(key: str) -> Graph | None:
    """The stored graph, or None when there is none or a file it came from has changed."""
    try:
        read = json.loads((folder() / f"{key}.json").read_text())
        if any(_digest(Path(path)) != digest for path, digest in read.items()):
            return None
        graph = Graph.load(folder() / f"{key}.graph")
        os.utime(folder() / f"{key}.graph")
        return graph
    except (OSError, ValueError, AttributeError, GraphFileError):
        return None


def put(key: str, graph: Graph, read: Iterable[str]) -> None:
    """Store a graph; a cache that cannot be written costs time, never the answer."""
    try:
        graph.save(folder() / f"{key}.graph")
        partial = folder() / f".{key}.{os.getpid()}.json"
        partial.write_text(json.dumps({path: _digest(Path(path)) for path in read}))
        partial.replace(folder() / f"{key}.json")
        _trim()
    except OSError:
        return


def _trim() -> None:
    """Forget what was used longest ago once the cache is large."""
    entries = sorted(folder().glob("*.graph"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in entries:
        total += path.stat().st_size
        if total > _MOST_BYTES and time.time() - path.stat().st_mtime > 60:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _LIBRARIES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _own_code() -> str:
    """Changes whenever the capture itself changes, so that no graph outlives the code that made it."""
    rooms = (Path(__file__).parents[1] / room for room in ("capture", "sources", "graph"))
    code = sorted(path for room in rooms for path in room.rglob("*.*") if path.suffix in (".py", ".toml"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()[:16]
