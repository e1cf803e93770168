"""The store: records as a Parquet dataset that only grows, for several writers at once, queried with DuckDB.

    STORE/v1/steps/SHA256.parquet     a commit: steps, and in its footer the names of the segments with their parts
    STORE/v1/ops/SHA256.parquet       parts of the steps of one commit; series/ and allocations/ likewise
    STORE/v1/graphs/SHA256.parquet    graphs, each stored once
    STORE/v1/public_NAME/…            imported tables

The steps are written last, so a record is there whole or not at all, and what a killed writer leaves is named by no
commit and never read. Writers take turns by a lock for the moment of writing; readers only to list the folders.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from foretell.errors import InputError, StoreError
from foretell.graph import Graph
from foretell.measure.record import GraphRow, Record, StepRow
from foretell.store import segments, tables
from foretell.store.segments import Damaged, Note
from foretell.store.tables import PARTS, ROWS, Table, need

T = TypeVar("T")

VERSION: Final = 1
FINAL: Final = ("ok", "out-of-memory", "nan-loss", "time-limit")  # outcomes that measuring again would not change
PUBLIC: Final = "public_"
_BATCH_ROWS: Final = 1 << 18
_BATCH_SECONDS: Final = 1.0
_TRIES: Final = 10
_FOUND_BY: Final = ("id", "point", "device", "device_name", "outcome")  # in every version


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One segment of steps, and where their parts are."""

    path: Path
    note: Note
    rows: tuple[tuple[str, ...], ...]  # _FOUND_BY, of each step
    ids: frozenset[str]
    parts: Mapping[str, Path]  # table → where the rows of these steps are


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The store at one moment: the segments that count."""

    commits: tuple[Commit, ...]
    repeated: Mapping[Path, frozenset[str]]  # steps of a commit that an earlier one has too: two stores in one folder
    files: Mapping[str, Mapping[Path, None]]  # table → every segment in its folder, as a set in order
    replaced: frozenset[Path]  # merged into others, and not removed yet
    graphs: Mapping[str, Path]  # hash → where it is
    mistrusted: frozenset[Path]  # known to be damaged or missing when this was made

    def ids(self) -> set[str]:
        return set().union(*(commit.ids for commit in self.commits))

    def segments(self, table: str) -> list[tuple[Path, frozenset[str]]]:
        """The segments of a table, each with the steps to leave out of it."""
        if table == "steps":
            return [(commit.path, self.repeated.get(commit.path, frozenset())) for commit in self.commits]
        if table in PARTS:
            return [
                (commit.parts[table], self.repeated.get(commit.path, frozenset()))
                for commit in self.commits
                if table in commit.parts
            ]
        return [(path, frozenset()) for path in self.files.get(table, ()) if path not in self.replaced]

    def orphans(self) -> list[Path]:
        """Parts that no commit names."""
        named = {path for table in PARTS for path, _ in self.segments(table)}
        return [path for table in PARTS for path in self.files[table] if path not in named]


class Store:
    """Records in a folder. Making one touches no disk; a folder that is not there yet is an empty store."""

    def __init__(self, path: str | os.PathLike[str], *, warn: Callable[[str], None] | None = None) -> None:
        self.path = Path(path)
        self.root = self.path / f"v{VERSION}"
        self._warn = warn or (lambda text: warnings.warn(text, stacklevel=3))
        self._warned: set[Path] = set()
        # Segments never change, so what was read of one stays true.
        self._notes: dict[Path, Note] = {}
        self._commits: dict[Path, Commit] = {}
        self._hashes: dict[Path, tuple[str, ...]] = {}
        self._paths: dict[str, dict[str, Path]] = {}  # table, file name → path: making thousands anew takes the time
        self._last: Snapshot | None = None

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def exists(self) -> bool:
        return self.root.is_dir()

    # Writing

    def append(self, records: Iterable[Record]) -> int:
        """Store records and return how many were new. Each is on the disk at most a second after it was handed over."""
        written, batch, rows, began = 0, list[Record](), 0, time.monotonic()
        try:
            for record in records:
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
        data = segments.encode(table, version=VERSION)
        path = self.root / (PUBLIC + name) / (segments.name_of(data) + segments.SUFFIX)
        with self.writing():
            if path.exists():
                return False
            segments.write(path.parent, data)
            return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The turn to change the folder; ends with the process at the latest."""
        self._check_version()
        with segments.disk_errors(f"cannot write to the store {self.path}", "Mend that"):
            self.root.mkdir(parents=True, exist_ok=True)
            with segments.locked(self._lock):
                yield

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """True for one process at a time, so that two campaigns do not measure the same point; dies with its process."""
        path = self.root / "claims" / hashlib.sha256(name.encode()).hexdigest()[:20]
        with ExitStack() as held:
            with segments.disk_errors(f"cannot claim {name!r} in the store {self.path}", "Mend that"):
                path.parent.mkdir(parents=True, exist_ok=True)
                ours = held.enter_context(segments.locked(path, wait=False))
            yield ours  # the empty file stays: removing it would let two claim at once

    # Reading

    def has(self, point: str, device: str | None = None, *, outcomes: Sequence[str] = FINAL) -> bool:
        """Whether a point was measured, on this device if one is given, with an outcome that is final."""
        return point in self.done(device, outcomes=outcomes)

    def done(self, device: str | None = None, *, outcomes: Sequence[str] = FINAL) -> frozenset[str]:
        """The keys of all points with a final outcome, on a device (by its name in the catalogue or its driver's)."""
        return frozenset(
            point
            for commit in self.snapshot().commits
            for _, point, name, driver_name, outcome in commit.rows
            if outcome in outcomes and device in (None, name, driver_name)
        )

    def steps(self, where: str | None = None) -> Iterator[StepRow]:
        """The steps, all or those an SQL condition holds for."""
        return (record.step for record in self._read(where, parts=()))

    def records(self, where: str | None = None) -> Iterator[Record]:
        """The records as they were appended, all or those whose step an SQL condition holds for."""
        return self._read(where, parts=PARTS)

    def graph(self, hash: str) -> Graph:
        for row in self._retried(lambda: self._graphs(self.snapshot(), {hash}).values()):
            return Graph.from_bytes(row.file, name=f"graph {hash[:12]} of {self.path}")
        raise InputError(
            f"there is no graph {hash!r} in the store {self.path}. List them: SELECT hash, name FROM graphs"
        )

    def graphs(self, hashes: Iterable[str]) -> dict[str, Graph]:
        """Many graphs, each segment read once."""
        rows = self._retried(lambda: self._graphs(self.snapshot(), set(hashes)))
        return {h: Graph.from_bytes(row.file, name=f"graph {h[:12]} of {self.path}") for h, row in rows.items()}

    def tables(self) -> list[str]:
        return [*ROWS, *sorted(folder.name for folder in self.root.glob(PUBLIC + "*"))]

    def query(self, sql: str) -> Table:
        """The answer to an SQL question over steps, ops, graphs, series, allocations and public_NAME."""

        def ask(connection: Any) -> Table:
            answer = connection.sql(sql)
            return answer.to_arrow_table() if answer is not None else need("pyarrow").table({})

        return self._retried(lambda: self._query(sql, ask))

    def write_query(self, sql: str, path: Path, format: str) -> int:
        """Write the answer to a file, as parquet or csv, and return its rows."""
        copy = f"COPY ({sql.rstrip().rstrip(';')}) TO {_text(str(path))} (FORMAT {format})"
        return self._retried(lambda: int(self._query(sql, lambda connection: connection.execute(copy).fetchone()[0])))

    def damaged(self) -> dict[Path, str]:
        """Segments that cannot be read and why, every byte checked. Queries go on without them."""
        snapshot = self.snapshot()
        found = {}
        every = {path for paths in snapshot.files.values() for path in paths}
        named = {path for table in PARTS for path, _ in snapshot.segments(table)}
        for path in sorted(every | named):
            try:
                segments.check(path)
            except Damaged as error:
                found[path] = str(error)
            except FileNotFoundError:
                if path in named:
                    found[path] = "it is missing"
        self._warned |= set(found)  # who asks is told here
        return found

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("*" + segments.SUFFIX))

    def merge(self, *others: Store | str | os.PathLike[str]) -> Any:
        """Take in other stores, and make few segments of many. Returns what was done."""
        from foretell.store.merge import merge

        return merge(self, [other if isinstance(other, Store) else Store(other, warn=self._warn) for other in others])

    # Inside

    @property
    def _lock(self) -> Path:
        return self.root / "lock"

    def _check_version(self) -> None:
        found = [int(v[1]) for p in self.path.glob("v*") if (v := re.fullmatch(r"v(\d+)", p.name)) and p.is_dir()]
        if max(found, default=0) > VERSION:
            raise StoreError(
                f"the store {self.path} has version {max(found)}, this Foretell reads up to {VERSION}. "
                "Upgrade with: pip install -U foretell"
            )
        if not found and self.path.is_file():
            raise StoreError(f"{self.path} is a file, and a store is a folder. Take it in with: foretell store import")

    def _commit(self, batch: Sequence[Record]) -> int:
        records = {exact.step.id: exact for exact in map(tables.exact, reversed(batch))}  # the first of its id counts
        while True:
            known = self.snapshot()
            ids = known.ids()
            fresh = [record for id, record in reversed(records.items()) if id not in ids]
            if not fresh:
                return 0
            made = tables.tables_of(fresh)
            graphs = _without(made.pop("graphs", None), "hash", known.graphs)
            encoded = {name: segments.encode(made[name], version=VERSION) for name in PARTS if name in made}
            parts = {name: segments.name_of(data) for name, data in encoded.items()}
            steps = segments.encode(made["steps"], version=VERSION, parts=parts)
            with self.writing():
                if not self.snapshot(lock=False).ids().isdisjoint(record.step.id for record in fresh):
                    continue  # another writer was quicker with some of them
                if graphs is not None:
                    segments.write(self.root / "graphs", segments.encode(graphs, version=VERSION))
                for name, data in encoded.items():
                    segments.write(self.root / name, data)
                segments.write(self.root / "steps", steps)
            return len(fresh)

    def snapshot(self, *, lock: bool = True) -> Snapshot:
        """The segments that count now. `lock=False` where the turn to write is held."""
        self._check_version()
        return self._retried(lambda: self._snapshot(lock))

    def _snapshot(self, lock: bool) -> Snapshot:
        # Locked, or a merge could add the new name behind our eyes and remove the old one before them.
        with segments.locked(self._lock, shared=True) if lock else nullcontext():
            files = {table: self._list(table) for table in self.tables()}
        if self._last is not None and self._last.files == files and self._last.mistrusted == self._warned:
            return self._last
        commits = [c for path in files["steps"] if (c := self._read_commit(path)) is not None]
        replaced = {_beside(c.path, "steps", name) for c in commits for name in c.note.replaces}
        for table in files:
            if table not in (*PARTS, "steps"):
                notes = ((path, self.note(path)) for path in files[table])
                replaced |= {_beside(p, table, name) for p, note in notes if note for name in note.replaces}
        commits = [commit for commit in commits if commit.path not in replaced]
        # Of a step that is there twice the whole one counts.
        commits.sort(key=lambda c: (not self.is_whole(c, files), c.path))
        seen: set[str] = set()
        repeated: dict[Path, frozenset[str]] = {}
        for commit in commits:
            if not seen.isdisjoint(commit.ids):
                repeated[commit.path] = commit.ids & seen
            seen |= commit.ids
        graphs = {h: path for path in files["graphs"] if path not in replaced for h in self._graph_hashes(path)}
        self._last = Snapshot(
            commits=tuple(commits), repeated=repeated, files=files, replaced=frozenset(replaced), graphs=graphs,
            mistrusted=frozenset(self._warned),
        )  # fmt: skip
        return self._last

    def _list(self, table: str) -> dict[Path, None]:
        folder, known = self.root / table, self._paths.setdefault(table, {})
        return {known.get(name) or known.setdefault(name, folder / name): None for name in segments.names(folder)}

    def is_whole(self, commit: Commit, files: Mapping[str, Mapping[Path, None]]) -> bool:
        """Whether all parts are there, and none is known to be damaged."""
        return all(path in files[table] and path not in self._warned for table, path in commit.parts.items())

    def note(self, path: Path) -> Note | None:
        """What a segment says of itself; None, with a warning, when it is damaged."""
        if path not in self._notes:
            try:
                self._notes[path] = segments.read_note(path)
            except Damaged as error:
                self._mistrust(path, str(error))
                return None
        return self._notes[path]

    def trust(self, path: Path) -> None:
        """A segment that was damaged is whole again."""
        self._warned.discard(path)

    def _mistrust(self, path: Path, reason: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            self._warn(
                f"{path} is left out: {reason}. The rest of the store is read; "
                "`foretell store merge` sets it aside, and a copy of the file put in its place mends it."
            )

    def _read_commit(self, path: Path) -> Commit | None:
        if path not in self._commits:
            if (note := self.note(path)) is None:
                return None
            found = segments.read_table(path, list(_FOUND_BY))
            rows = tuple(zip(*(found.column(name).to_pylist() for name in _FOUND_BY), strict=True))
            self._commits[path] = Commit(
                path=path, note=note, rows=rows, ids=frozenset(row[0] for row in rows),
                parts={table: _beside(path, table, name) for table, name in note.parts.items()},
            )  # fmt: skip
        return self._commits[path]

    def _graph_hashes(self, path: Path) -> tuple[str, ...]:
        if path not in self._hashes:
            if self.note(path) is None:
                return ()
            self._hashes[path] = tuple(segments.read_table(path, ["hash"]).column("hash").to_pylist())
        return self._hashes[path]

    def readable(self, snapshot: Snapshot, table: str) -> Iterator[tuple[Path, Note, frozenset[str]]]:
        """The segments of a table that can be read: where, what they say of themselves, which steps to leave out."""
        present = snapshot.files.get(table, ())
        for path, out in snapshot.segments(table):
            if path not in present:
                self._mistrust(path, "it is missing")
            elif (note := self.note(path)) is not None:
                yield path, note, out

    def _retried(self, read: Callable[[], T]) -> T:
        """A merge may remove segments between listing and reading them; what replaces them is there by then."""
        for _ in range(_TRIES):
            try:
                return read()
            except FileNotFoundError as error:
                missing = error
        raise StoreError(f"{missing.filename} of the store {self.path} was listed and is not there. Try again.")

    def _query(self, sql: str, ask: Callable[[Any], Any]) -> Any:
        """Ask a connection that knows the tables of the question."""
        duckdb = need("duckdb")
        snapshot = self.snapshot()
        words = set(re.findall(r"\w+", sql.lower()))
        used = [table for table in snapshot.files if table in words]  # the others need not be opened
        with duckdb.connect() as connection:
            for table in used:
                self._define(connection, snapshot, table)
            try:
                return ask(connection)
            except duckdb.IOException as error:
                for table in used:
                    for path, _ in snapshot.segments(table):
                        if path in snapshot.files[table] and not path.exists():
                            raise FileNotFoundError(2, "merged away", str(path)) from error
                raise StoreError(
                    f"the query failed on the disk: {error}. Make room or mend that, and try again."
                ) from error
            except duckdb.Error as error:
                raise InputError(
                    f"the store cannot answer {sql!r}: {str(error).strip()}\nTables: {', '.join(snapshot.files)}."
                ) from error

    def _define(self, connection: Any, snapshot: Snapshot, table: str) -> None:
        """A view of a table over its readable segments, one SELECT for those alike."""
        alike: dict[tuple[str, ...], list[str]] = {}
        selects: list[tuple[tuple[str, ...], str]] = []
        for number, (path, note, out) in enumerate(self.readable(snapshot, table)):
            place = _text(re.sub(r"([*?\[])", r"[\1]", str(path)))  # DuckDB reads them as patterns
            if out:
                connection.register(f"out_{table}_{number}", need("pyarrow").table({"id": sorted(out)}))
                condition = f"WHERE {tables.KEYS[table]} NOT IN (SELECT id FROM out_{table}_{number})"
                selects.append((note.columns, f"FROM read_parquet([{place}]) {condition}"))
            else:
                alike.setdefault(note.columns, []).append(place)
        selects += [(names, f"FROM read_parquet([{', '.join(places)}])") for names, places in alike.items()]
        if not selects and table not in ROWS:
            return  # all damaged, and warned about
        if not selects:
            connection.register(table, tables.schema(table).empty_table())
            return
        known = {column.name: column for column in tables.columns(table)} if table in ROWS else {}
        every = list(dict.fromkeys([*known, *(name for names, _ in selects for name in names)]))
        union = [
            f"SELECT {', '.join(_quoted(n) if n in names else f'{_default(known.get(n))} AS {_quoted(n)}' for n in every)} {origin}"
            for names, origin in selects
        ]
        connection.execute(f"CREATE VIEW {_quoted(table)} AS {' UNION ALL '.join(union)}")

    def _read(self, where: str | None, parts: Sequence[str]) -> Iterator[Record]:
        wanted = None
        if where is not None:
            wanted = set(self.query(f"SELECT id FROM steps WHERE {where}").column("id").to_pylist())
        given: set[str] = set()
        for _ in range(_TRIES):
            try:
                for id, record in self._read_once(wanted, given, parts):
                    given.add(id)
                    yield record
                return
            except FileNotFoundError as error:  # merged meanwhile: go on with those not given yet
                missing = error
        raise StoreError(f"{missing.filename} of the store {self.path} was listed and is not there. Try again.")

    def _read_once(
        self, wanted: set[str] | None, given: set[str], parts: Sequence[str]
    ) -> Iterator[tuple[str, Record]]:
        snapshot = self.snapshot()
        readable = {table: {path for path, _, _ in self.readable(snapshot, table)} for table in parts}
        for commit in snapshot.commits:
            ids = commit.ids - given - snapshot.repeated.get(commit.path, frozenset())
            ids = ids if wanted is None else ids & wanted
            if not ids:
                continue
            rows = [
                row for group in segments.rows_with(commit.path, "id", ids) for row in tables.rows_of("steps", group)
            ]
            graphs = self._graphs(snapshot, {row.graph for _, row in rows}) if parts else {}
            streams = {}
            for table in parts:
                path = commit.parts.get(table)
                streams[table] = _Grouped(path if path in readable[table] else None, table, ids)
            for id, step in rows:
                part = {table: stream.take(id) for table, stream in streams.items()}
                yield id, Record(
                    step=step, graph=graphs.get(step.graph or ""), ops=part.get("ops", ()), series=part.get("series", ()),
                    allocations=next(iter(part.get("allocations", ())), None),
                )  # fmt: skip

    def _graphs(self, snapshot: Snapshot, hashes: Iterable[str | None]) -> dict[str, GraphRow]:
        places: dict[Path, set[str]] = {}
        for hash in hashes:
            if hash is not None and hash in snapshot.graphs:
                places.setdefault(snapshot.graphs[hash], set()).add(hash)
        return {
            hash: row
            for path, those in places.items()
            for group in segments.rows_with(path, "hash", those)
            for hash, row in tables.rows_of("graphs", group)
        }


@dataclass(slots=True)
class _Grouped:
    """The rows of one segment, step by step, in the order of the steps: both were written in it."""

    path: Path | None
    table: str
    wanted: frozenset[str]
    _stream: Iterator[tuple[str, tuple[Any, ...]]] = field(init=False)
    _next: tuple[str, tuple[Any, ...]] | None = field(init=False)

    def __post_init__(self) -> None:
        self._stream = self._groups()
        self._next = next(self._stream, None)

    def _groups(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        if self.path is None:
            return
        rows = (
            row
            for group in segments.rows_with(self.path, "step", self.wanted)
            for row in tables.rows_of(self.table, group)
        )
        for step, those in itertools.groupby(rows, key=lambda row: row[0]):
            yield step, tuple(row for _, row in those)

    def take(self, step: str) -> tuple[Any, ...]:
        if self._next is None or self._next[0] != step:
            return ()
        _, rows = self._next
        self._next = next(self._stream, None)
        return rows


def _beside(path: Path, table: str, name: str) -> Path:
    return path.parents[1] / table / (name + segments.SUFFIX)


def _without(table: Table | None, key: str, known: Iterable[str]) -> Table | None:
    if table is None:
        return None
    pa = need("pyarrow")
    held = set(known)
    left = table.filter(pa.array([value not in held for value in table.column(key).to_pylist()], pa.bool_()))
    return left if left.num_rows else None


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_SQL_TYPES: Final = {"text": "VARCHAR", "whole": "BIGINT", "number": "DOUBLE", "bool": "BOOLEAN", "bytes": "BLOB"}


def _default(column: tables.Column | None) -> str:
    """What a segment holds in a column it was written without."""
    if column is None:
        return "NULL"
    many = column.kind not in _SQL_TYPES
    kind = _SQL_TYPES[column.kind.removesuffix("s")] + "[]" if many else _SQL_TYPES[column.kind]
    value = column.default
    if many:
        return f"CAST([] AS {kind})" if value is not None else f"CAST(NULL AS {kind})"
    literal = "NULL" if value is None else _text(value) if isinstance(value, str) else str(value).lower()
    return f"CAST({literal} AS {kind})"
