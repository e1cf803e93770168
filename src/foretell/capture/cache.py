"""Captured graphs on disk, found again by the content of their source, their settings and the library versions.

A user's file may import its neighbours and read other files, so an entry lists every file of the user's that was read,
with what it said then; it is valid while all of them say the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from foretell import engine
from foretell.capture.reads import digest
from foretell.errors import GraphFileError
from foretell.graph import VERSION, Graph
from foretell.graph.file import write_whole

_LIBRARIES = ("foretell", "torch", "torchvision", "timm", "transformers")
_ROOMS = ("capture", "sources", "graph")  # that decide what is captured: a graph does not outlive the code that made it
_MAX_BYTES = 512 * 2**20


def folder() -> Path:
    if chosen := os.environ.get("FORETELL_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretell"
    except RuntimeError:  # a user with no home: nothing can be written there, and nothing is found
        return Path(os.devnull) / "foretell"


def key(source: str, settings: Mapping[str, str]) -> str:
    """Names the question: the source, where it lies and what it says, settings, versions, our own code."""
    path = Path(source.rpartition(":")[0] or source)
    where = [str(path.resolve()), digest(path)] if path.exists() else []
    if ":" in source and not where:  # a module is looked up from here
        where = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
    where.append(os.environ.get("TORCH_COMPILE_DISABLE", ""))  # decides what code that calls torch.compile runs
    return engine.digest(source, where, settings, _versions(), VERSION, rooms=_ROOMS)[:32]


def get(key: str) -> Graph | None:
    """The stored graph, or None when there is none or a file it came from has changed."""
    path = folder() / f"{key}.graph"
    try:
        entry = json.loads(path.with_suffix(".json").read_text())
        if changed(entry["read"]) or digest(path) != entry["graph"]:
            return None
        graph = Graph.load(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, GraphFileError):
        return None
    with contextlib.suppress(OSError):  # of someone else's, perhaps
        os.utime(path)
    return graph


def put(key: str, graph: Graph, read: Mapping[str, str]) -> None:
    """Store a graph with the files it came from; a cache that cannot be written costs time, never the answer."""
    path = folder() / f"{key}.graph"
    try:
        if changed(read):
            return  # edited since: which of the two the graph is of, nobody knows
        data = graph.to_bytes()
        write_whole(path, data)
        entry = {"graph": hashlib.sha256(data).hexdigest(), "read": dict(read)}  # so that they belong together
        write_whole(path.with_suffix(".json"), json.dumps(entry).encode())
        _trim()
    except OSError:
        return


def changed(read: Mapping[str, str]) -> bool:
    """Whether one of these files says something else now."""
    return any(digest(Path(path)) != then for path, then in read.items())


def _trim() -> None:
    """Forget what was used longest ago once the cache is large, and what killed writers left."""
    now, total = time.time(), 0
    entries = sorted(folder().glob("*.graph"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries:
        total += path.stat().st_size
        if total > _MAX_BYTES and now - path.stat().st_mtime > 60:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
    for path in folder().glob(".*"):
        if now - path.stat().st_mtime > 3600:
            path.unlink(missing_ok=True)


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _LIBRARIES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
