"""The folder of a store: which of its segments count at a moment, who may write, and what is damaged.

    STORE/v1/steps/SHA256.parquet     a commit: steps, and in its footer the names of the segments with their parts
    STORE/v1/ops/SHA256.parquet       parts of the steps of one commit; series/ and allocations/ likewise
    STORE/v1/graphs/SHA256.parquet    graphs, each stored once
    STORE/v1/public_NAME/…            imported tables

The steps are written last, so a record is there whole or not at all, and what a killed writer leaves is named by no
commit and never read. Writers take turns by a lock for the moment of writing; readers only to list the folders.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from foretell.errors import StoreError
from foretell.store import segments
from foretell.store.segments import Damaged, Note
from foretell.store.tables import PARTS, ROWS
from foretell.units import Bytes

T = TypeVar("T")

VERSION: Final = 1
PUBLIC: Final = "public_"
TRIES: Final = 10  # to read what a merge replaces meanwhile
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
        if table != "steps" and table not in PARTS:
            return [(path, frozenset()) for path in self.files.get(table, ()) if path not in self.replaced]
        found = ((commit.path, commit.path if table == "steps" else commit.parts.get(table)) for commit in self.commits)
        return [(path, self.repeated.get(commit, frozenset())) for commit, path in found if path is not None]

    def orphans(self) -> list[Path]:
        """Parts that no commit names."""
        named = {path for table in PARTS for path, _ in self.segments(table)}
        return [path for table in PARTS for path in self.files[table] if path not in named]


class Folder:
    """Making one touches no disk; a folder that is not there yet is an empty store."""

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

    def exists(self) -> bool:
        return self.root.is_dir()

    def size(self) -> Bytes:
        return sum(path.stat().st_size for path in self.root.rglob("*" + segments.SUFFIX))

    def tables(self) -> list[str]:
        return [*ROWS, *sorted(folder.name for folder in self.root.glob(PUBLIC + "*"))]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The turn to change the folder; ends with the process at the latest."""
        self._check_version()
        with segments.disk_errors(f"cannot write to the store {self.path}", "Mend that"):
            self.root.mkdir(parents=True, exist_ok=True)
            with segments.locked(self.root / "lock"):
                yield

    def snapshot(self, *, lock: bool = True) -> Snapshot:
        """The segments that count now. `lock=False` inside `writing`."""
        self._check_version()
        return self.retried(lambda: self._snapshot(lock))

    def retried(self, read: Callable[[], T]) -> T:
        """A merge may remove segments between listing and reading them; what replaces them is there by then."""
        for _ in range(TRIES):
            try:
                return read()
            except FileNotFoundError as error:
                missing = error
        raise self.vanished(missing)

    def vanished(self, error: FileNotFoundError) -> StoreError:
        return StoreError(f"{error.filename} of the store {self.path} was listed and is not there. Try again.")

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

    def readable(self, snapshot: Snapshot, table: str) -> Iterator[tuple[Path, Note, frozenset[str]]]:
        """The segments of a table that can be read: where, what they say of themselves, which steps to leave out."""
        present = snapshot.files.get(table, ())
        for path, out in snapshot.segments(table):
            if path not in present:
                self._mistrust(path, "it is missing")
            elif (note := self.note(path)) is not None:
                yield path, note, out

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
        self._warned |= set(found)  # the caller has them from here
        return found

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

    def _check_version(self) -> None:
        found = [int(v[1]) for p in self.path.glob("v*") if (v := re.fullmatch(r"v(\d+)", p.name)) and p.is_dir()]
        if max(found, default=0) > VERSION:
            raise StoreError(
                f"the store {self.path} has version {max(found)}, this Foretell reads up to {VERSION}. "
                "Upgrade with: pip install -U foretell"
            )
        if not found and self.path.is_file():
            raise StoreError(f"{self.path} is a file, and a store is a folder. Take it in with: foretell store import")

    def _snapshot(self, lock: bool) -> Snapshot:
        # Locked, or a merge could add the new name behind our eyes and remove the old one before them.
        with segments.locked(self.root / "lock", shared=True) if lock else nullcontext():
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
        self._last = Snapshot(
            commits=tuple(commits),
            repeated=repeated,
            files=files,
            replaced=frozenset(replaced),
            graphs={h: path for path in files["graphs"] if path not in replaced for h in self._graph_hashes(path)},
            mistrusted=frozenset(self._warned),
        )
        return self._last

    def _list(self, table: str) -> dict[Path, None]:
        folder, known = self.root / table, self._paths.setdefault(table, {})
        return {known.get(name) or known.setdefault(name, folder / name): None for name in segments.names(folder)}

    def _read_commit(self, path: Path) -> Commit | None:
        if path not in self._commits:
            if (note := self.note(path)) is None:
                return None
            found = segments.read_table(path, list(_FOUND_BY))
            rows = tuple(zip(*(found.column(name).to_pylist() for name in _FOUND_BY), strict=True))
            parts = {table: _beside(path, table, name) for table, name in note.parts.items()}
            ids = frozenset(row[0] for row in rows)
            self._commits[path] = Commit(path=path, note=note, rows=rows, ids=ids, parts=parts)
        return self._commits[path]

    def _graph_hashes(self, path: Path) -> tuple[str, ...]:
        if path not in self._hashes:
            if self.note(path) is None:
                return ()
            self._hashes[path] = tuple(segments.read_table(path, ["hash"]).column("hash").to_pylist())
        return self._hashes[path]


def _beside(path: Path, table: str, name: str) -> Path:
    return path.parents[1] / table / (name + segments.SUFFIX)
