"""The store: records as a Parquet dataset that only grows, for several writers at once, queried with DuckDB."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from foretell.errors import InputError, StoreError
from foretell.graph import Graph
from foretell.measure.record import FINAL, GraphRow, Record, StepRow
from foretell.store import query, segments, tables
from foretell.store.folder import PUBLIC, TRIES, Folder, Snapshot
from foretell.store.merge import Merged, merge
from foretell.store.segments import Damaged
from foretell.store.tables import PARTS, ROWS, Table, need

_BATCH_ROWS: Final = 1 << 18
_BATCH_SECONDS: Final = 1.0


class Store(Folder):
    """Records of measurements in a folder; `query` asks them in SQL.

    Args:
        path: The folder, which is made with the first record.
        warn: Is called with what is broken and skipped.

    Raises:
        InputError: The folder is no store, or is of a newer version.

    Examples:
        >>> foretell.Store("measurements").append([])
        0
    """

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    # Writing

    def append(self, records: Iterable[Record]) -> int:
        """Store records and return how many were new. Each is on the disk at most a second after it was handed over."""
        written, batch, rows, began = 0, list[Record](), 0, time.monotonic()
        graphs = self.snapshot().graphs
        try:
            for record in records:
                record.check()
                if record.step.graph not in graphs:
                    record.check_graph()
                batch.append(record)
                rows += 1 + len(record.ops)
                # A source that measures as it goes is slow: its records are written one by one.
                if rows >= _BATCH_ROWS or time.monotonic() - began >= _BATCH_SECONDS:
                    full, batch, rows, began = batch, [], 0, time.monotonic()
                    written += self._commit(full)
        finally:
            if batch:  # also when the source failed: what it gave until then is kept
                written += self._commit(batch)
        return written

    def add_table(self, name: str, table: Table) -> bool:
        """Store an imported table as `public_NAME`; False if these very rows are there."""
        data = segments.encode(table)
        path = self.root / (PUBLIC + name) / (segments.name_of(data) + segments.SUFFIX)
        with self.writing():
            if path.exists():
                return False
            segments.write(path.parent, data)
            return True

    def merge(self, *others: Folder | str | os.PathLike[str]) -> Merged:
        """Take in other stores, and make few segments of many. Returns what was done."""
        stores = [Store(o.path if isinstance(o, Folder) else o, warn=self._warn) for o in others]
        return merge(self, stores, take=self._take)

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """True for one process at a time, so that two campaigns do not measure the same point; dies with its process."""
        path = self.root / "claims" / hashlib.sha256(name.encode()).hexdigest()[:20]
        with ExitStack() as locks:
            with segments.disk_errors(f"cannot claim {name!r} in the store {self.path}", "Mend that"):
                segments.make_folder(segments.make_folder(self.root) / "claims")
                ours = locks.enter_context(segments.locked(path, wait=False))
            yield ours  # the empty file stays: removing it would let two claim at once

    # Reading

    def done(self, device: str | None = None) -> frozenset[str]:
        """The keys of all points with a final outcome, on a device (by its name in the catalog or its driver's).

        Not those with damaged parts or without their graph: they are to be measured again.
        """
        return self.retried(lambda: frozenset(self._done(self.snapshot(), device)))

    def _done(self, snapshot: Snapshot, device: str | None) -> Iterator[str]:
        for _, point, name, driver_name, outcome, graph in self.whole_steps(snapshot):
            if outcome in FINAL and device in (None, name, driver_name) and (graph is None or graph in snapshot.graphs):
                yield point

    def steps(self, where: str | None = None) -> Iterator[StepRow]:
        """The steps, all or those an SQL condition holds for."""
        return (record.step for record, _ in self._read(where, parts=()))

    def records(self, where: str | None = None) -> Iterator[Record]:
        """The records as they were appended, all or those whose step an SQL condition holds for."""
        return (record for record, _ in self._read(where, parts=PARTS))

    def graph(self, hash: str) -> Graph:
        for graph in self.graphs([hash]).values():
            return graph
        raise InputError(
            f"there is no graph {hash!r} in the store {self.path}. List them: SELECT hash, name FROM graphs"
        )

    def graphs(self, hashes: Iterable[str]) -> dict[str, Graph]:
        """Many graphs, each segment read once."""
        rows = self.retried(lambda: _graphs(self.snapshot(), set(hashes)))
        return {h: Graph.from_bytes(row.file, name=f"graph {h[:12]} of {self.path}") for h, row in rows.items()}

    def query(self, sql: str) -> Table:
        """The answer to an SQL question over steps, ops, graphs, series, allocations and public_NAME."""

        def question(connection: Any) -> Table:
            answer = connection.sql(sql)
            return answer.to_arrow_table() if answer is not None else need("pyarrow").table({})

        return query.ask(self, sql, question)

    def write_query(self, sql: str, path: Path, format: Literal["parquet", "csv"]) -> int:
        """Write the answer to a file, and return its rows."""
        copy = f"COPY ({sql.rstrip().rstrip(';')}) TO {query.sql_text(str(path))} (FORMAT {format})"
        return int(query.ask(self, sql, lambda connection: connection.execute(copy).fetchone()[0]))

    # Inside

    def _commit(self, batch: Sequence[Record], damaged: frozenset[str] = frozenset()) -> int:
        """Write those that are not there, or not whole; `lost` are the parts that they came without."""
        records = {exact.step.id: exact for exact in map(tables.exact, reversed(batch))}  # the first of its id counts
        while True:
            known = self.snapshot()
            there = known.ids() if damaged else self.retried(lambda: self._whole(records))
            fresh = [record for id, record in reversed(records.items()) if id not in there]
            if not fresh:
                return 0
            made = tables.tables_of(fresh)
            graphs = tables.without(made["graphs"], "hash", known.graphs) if "graphs" in made else None
            hashes = set() if graphs is None else set(graphs.column("hash").to_pylist())
            encoded = {name: segments.encode(made[name]) for name in PARTS if name in made}
            parts = {name: segments.name_of(data) for name, data in encoded.items()}
            steps = segments.encode(made["steps"], parts=parts, damaged=damaged)
            with self.writing():
                now = self.snapshot(lock=False)
                gained = now.ids() - known.ids()
                if not gained.isdisjoint(r.step.id for r in fresh) or not hashes.isdisjoint(now.graphs):
                    continue  # another writer was quicker with some of them
                if hashes:
                    segments.write(self.root / "graphs", segments.encode(graphs))
                for name, data in encoded.items():
                    segments.write(self.root / name, data)
                segments.write(self.root / "steps", steps)
            return len(fresh)

    def _whole(self, records: Mapping[str, Record]) -> set[str]:
        """Those that are there with all they bring."""
        snapshot = self.snapshot()
        steps = ((row[0], row[-1]) for row in self.whole_steps(snapshot, records) if row[0] in records)
        return {id for id, graph in steps if records[id].graph is None or graph in snapshot.graphs}

    def _take(self, other: Store) -> int:
        """The records of another store, perhaps a stranger's, through the same checks as any: how many were new."""
        other._check_stranger()
        known = self.snapshot()
        there = {row[0] for row in self.whole_steps(known) if row[-1] is None or row[-1] in known.graphs}
        taken = 0
        for damaged, pairs in itertools.groupby(other._read(None, PARTS, there), key=lambda pair: pair[1]):
            batch, rows = list[Record](), 0
            for record, _ in pairs:
                try:
                    if record.step.graph not in known.graphs:
                        record.check_graph()
                except InputError as error:
                    self._warn(f"a step of {other.path} is left out: {error}")
                    continue
                batch.append(record)
                rows += 1 + len(record.ops)
                if rows >= _BATCH_ROWS:
                    taken, batch, rows = taken + self._commit(batch, damaged), [], 0
            taken += self._commit(batch, damaged) if batch else 0
        return taken

    def _check_stranger(self) -> None:
        """Leave out what would fill the memory; a column that we do not know would be lost in a record of ours."""
        snapshot = self.snapshot()
        for table in ROWS:
            for path, note, _ in self.readable(snapshot, table):
                try:
                    segments.check_texts(path)
                except Damaged as error:
                    self.reject(error)
                if odd := set(note.columns).difference(column.name for column in tables.columns(table)):
                    raise StoreError(
                        f"{path} has columns that this Foretell does not know: {', '.join(sorted(odd))[:200]}. "
                        "Upgrade with: pip install -U foretell"
                    )

    def _read(
        self, where: str | None, parts: Sequence[str], given: Iterable[str] = ()
    ) -> Iterator[tuple[Record, frozenset[str]]]:
        """Records but for those given before, each with the parts that it lost."""
        wanted = None
        if where is not None:
            wanted = set(self.query(f"SELECT id FROM steps WHERE {where}").column("id").to_pylist())
        past, tries = set(given), TRIES
        while True:
            try:
                for id, record, damaged in self._read_once(wanted, past, parts):
                    past.add(id)
                    yield record, damaged
                return
            except FileNotFoundError as error:  # merged meanwhile: go on with those not given yet
                tries -= 1
                if not tries:
                    raise self.vanished(error) from error
            except Damaged as error:  # go on without it
                if error.path in self.rejected:
                    raise
                self.reject(error)

    def _read_once(
        self, wanted: set[str] | None, given: set[str], parts: Sequence[str]
    ) -> Iterator[tuple[str, Record, frozenset[str]]]:
        snapshot = self.snapshot()
        readable = {table: {path for path, _, _ in self.readable(snapshot, table)} for table in parts}
        for commit in snapshot.commits:
            ids = commit.ids - given - snapshot.repeated.get(commit.path, frozenset())
            ids = ids if wanted is None else ids & wanted
            if not ids:
                continue
            rows = list(_rows(commit.path, "steps", ids))
            graphs = _graphs(snapshot, {row.graph for _, row in rows}) if parts else {}
            places = {table: path for table, path in commit.parts.items() if table in parts}
            damaged = commit.note.damaged | {table for table, path in places.items() if path not in readable[table]}
            streams = {table: _Grouped(None if table in damaged else places.get(table), table, ids) for table in parts}
            for id, step in rows:
                part = {table: stream.take(id) for table, stream in streams.items()}
                allocations = next(iter(part.pop("allocations", ())), None)
                record = Record(step=step, graph=graphs.get(step.graph or ""), allocations=allocations, **part)
                yield id, record, damaged


def _rows(path: Path, table: str, wanted: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """(key, row) of the rows of a segment whose key is wanted."""
    for group in segments.rows_with(path, tables.KEYS[table], wanted):
        try:
            yield from tables.rows_of(table, group)
        except InputError as error:
            raise Damaged(path, str(error)) from error


def _graphs(snapshot: Snapshot, hashes: Iterable[str | None]) -> dict[str, GraphRow]:
    places: dict[Path, set[str]] = {}
    for hash in hashes:
        if hash is not None and hash in snapshot.graphs:
            places.setdefault(snapshot.graphs[hash], set()).add(hash)
    return {hash: row for path, those in places.items() for hash, row in _rows(path, "graphs", those)}


class _Grouped:
    """The rows of one segment, step by step, in the order of the steps: both were written in it."""

    def __init__(self, path: Path | None, table: str, wanted: frozenset[str]) -> None:
        rows = iter(()) if path is None else _rows(path, table, wanted)
        self._stream = itertools.groupby(rows, key=lambda row: row[0])
        self._step: str | None = None
        self._advance()

    def _advance(self) -> None:
        self._step, rows = next(self._stream, (None, ()))
        self._rows = tuple(row for _, row in rows)

    def take(self, step: str) -> tuple[Any, ...]:
        if self._step != step:
            return ()
        rows = self._rows
        self._advance()
        return rows
