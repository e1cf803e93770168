"""The ops of points, captured with no device at hand or read from the store, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import Path

from foretell.capture import cache, capture
from foretell.design.information import OpSet, Row, op_set_of
from foretell.design.pool import POOL
from foretell.errors import CaptureError, ForetellError
from foretell.measure.record import MEASURED, Point
from foretell.store.store import Store
from foretell.supervisor import end_with_parent

Progress = Callable[[str], None]


def op_sets(
    points: Sequence[Point], store: Store | None = None, *, progress: Progress | None = None
) -> tuple[dict[str, OpSet], dict[str, str]]:
    """By `Point.key`; and those that cannot be captured, with the reason.

    A point in the store has its graph there. The thousands of tiny points of the pool are traced many to a child, for
    starting a child takes longer than tracing one; others have a child each, for they run the user's code.
    """
    say = progress or (lambda text: None)
    found = dict(stored_op_sets(store, {p.key for p in points}, say)) if store is not None else {}
    left = [p for p in points if p.key not in found]
    failed: dict[str, str] = {}
    for ops, point in _of_pool([p for p in left if p.source.startswith(POOL)], say):
        if isinstance(ops, OpSet):
            found[point.key] = ops
        else:
            failed[point.key] = ops
    for point in left:
        if not point.source.startswith(POOL):
            try:
                found[point.key] = op_set_of(capture(point.source, point.settings, progress=say))
            except ForetellError as error:
                failed[point.key] = str(error)
    return found, failed


def stored_op_sets(
    store: Store, wanted: set[str] | None = None, progress: Progress | None = None, *, device: str | None = None
) -> Iterator[tuple[str, OpSet]]:
    """What the store has measured, by point: all of it, or the wanted points, or a device's."""
    graphs: dict[str, str] = {}
    for step in store.steps("outcome = 'ok'") if store.exists() else ():
        if step.kind not in MEASURED or not step.graph or (wanted is not None and step.point not in wanted):
            continue
        if device in (None, step.device, step.device_name):
            graphs.setdefault(step.point, step.graph)
    known = _Kept()
    for number, (point, graph) in enumerate(graphs.items(), 1):
        if (ops := known.get(graph)) is None:
            if progress:
                progress(f"reading the store, {number} of {len(graphs)} points")
            known.put(graph, ops := op_set_of(store.graph(graph)))
        yield point, ops


def _of_pool(points: Sequence[Point], say: Progress) -> Iterator[tuple[OpSet | str, Point]]:
    kept = _Kept()
    known = {point.key: kept.get(point.key) for point in points}
    yield from ((ops, point) for point in points if (ops := known[point.key]) is not None)
    new = [point for point in points if known[point.key] is None]
    if not new:
        return
    import torch._dynamo  # noqa: F401

    import foretell.capture.fallback  # noqa: F401

    # Both take seconds to load, and children inherit them.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork"), initializer=end_with_parent) as children:
        try:
            for number, (traced, point) in enumerate(zip(children.map(_trace, new, chunksize=32), new, strict=True), 1):
                say(f"tracing the pool, {number:,} of {len(new):,} points")
                if isinstance(traced, OpSet):
                    kept.put(point.key, traced)
                yield traced, point
        except BrokenProcessPool:
            raise CaptureError(
                "a process that traced the pool ended without an answer, probably out of memory. Run it again: it goes "
                "on where it was."
            ) from None


def _trace(point: Point) -> OpSet | str:
    """In the child."""
    from foretell.capture.trace import trace
    from foretell.sources.resolve import load_workload

    try:
        return op_set_of(trace(load_workload(point.source, point.settings)))
    except Exception as error:  # one shape that fakes cannot run must not end the rest
        return f"{type(error).__name__}: {error}".split("\n")[0]


class _Kept:
    """On disk, beside the captured graphs. Ops of a point depend on nothing but our own code and torch."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        code = (*sorted(here.rglob("*.py")), *sorted((here.parent / "cost").glob("*.py")))
        own = hashlib.sha256(b"".join(path.read_bytes() for path in code) + cache.key("", {}).encode()).hexdigest()
        self._file = cache.folder() / f"ops-{own[:16]}.sqlite"

    def get(self, key: str) -> OpSet | None:
        if not self._file.exists():
            return None
        try:
            with closing(sqlite3.connect(self._file)) as file:
                found = file.execute("SELECT ops FROM op_sets WHERE key = ?", (key,)).fetchone()
            return None if found is None else _read(found[0])
        except (sqlite3.Error, ValueError, zlib.error):
            return None

    def put(self, key: str, ops: OpSet) -> None:
        """One that cannot be written costs time, never the answer."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._file)) as file, file:
                file.execute("CREATE TABLE IF NOT EXISTS op_sets (key TEXT PRIMARY KEY, ops BLOB)")
                file.execute("INSERT OR REPLACE INTO op_sets VALUES (?, ?)", (key, _written(ops)))
        except (sqlite3.Error, OSError):
            return


def _written(ops: OpSet) -> bytes:
    return zlib.compress(json.dumps([ops.issued, [astuple(row) for row in ops.rows]]).encode())


def _read(data: bytes) -> OpSet:
    issued, rows = json.loads(zlib.decompress(data))
    return OpSet(tuple(Row(*row) for row in rows), issued)
