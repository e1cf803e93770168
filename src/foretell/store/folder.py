"""The folder of a store: which of its segments count at a moment, who may write, and what is damaged.

    STORE/v1/steps/SHA256.parquet     a commit: steps, and in its footer the names of the segments with their parts
    STORE/v1/ops/SHA256.parquet       parts of the steps of one commit; series/ and allocations/ likewise
    STORE/v1/graphs/SHA256.parquet    graphs, each stored once
    STORE/v1/public_NAME/…            imported tables
    STORE/v1/.writing-…               being written; what a killed writer left is removed by the next

The steps are written last, so a record is there whole or not at all, and what a killed writer leaves is named by no
commit and never read. Writers take turns by a lock for the moment of writing; readers only to list the folders.

A segment whose rows others have is replaced: it is ignored, and removed by the next merge. That is read off the rows,
for a segment may be a stranger's and is not asked. Nothing outside the folder is read or written: names are hashes,
links are refused.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from foretell.errors import StoreError
from foretell.store import segments
from foretell.store.segments import VERSION, Damaged, Note
from foretell.store.tables import PARTS, ROWS
from foretell.units import Bytes

T = TypeVar("T")

PUBLIC: Final = "public_"
TRIES: Final = 10  # to read what a merge replaces meanwhile
_PUBLIC_TABLE: Final = re.compile(PUBLIC + r"[A-Za-z0-9_]+")
_FOUND_BY: Final = ("id", "point", "device", "device_name", "outcome", "graph")  # in every version


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One segment of steps, and where their parts are."""

    path: Path
    note: Note
    rows: tuple[tuple[Any, ...], ...]  # _FOUND_BY, of each step
    ids: frozenset[str]
    parts: Mapping[str, Path]  # table → where the rows of these steps are


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The store at one moment: the segments that count."""

    commits: tuple[Commit, ...]
    repeated: Mapping[Path, frozenset[str]]  # steps or graphs that an earlier segment has too: two stores in one folder
    files: Mapping[str, Mapping[Path, None]]  # table → every segment in its folder, as a set in order
    replaced: frozenset[Path]  # all of it is in others, and it is not removed yet
    graphs: Mapping[str, Path]  # hash → where it is
    mistrusted: frozenset[Path]  # known to be damaged or missing when this was made

    def ids(self) -> set[str]:
        return set().union(*(commit.ids for commit in self.commits))

    def segments(self, table: str) -> list[tuple[Path, frozenset[str]]]:
        """The segments of a table, each with the steps to leave out of it."""
        if table != "steps" and table not in PARTS:
            here = (path for path in self.files.get(table, ()) if path not in self.replaced)
            return [(path, self.repeated.get(path, frozenset())) for path in here]
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
        self.rejected: dict[Path, str] = {}  # segments with rows that cannot be, and why
        # Segments never change, so what was read of one stays true.
        self._notes: dict[Path, Note] = {}
        self._commits: dict[Path, Commit] = {}
        self._hashes: dict[Path, frozenset[str]] = {}
        self._paths: dict[str, dict[str, Path]] = {}  # table, file name → path: making thousands anew takes the time
        self._last: Snapshot | None = None

    def exists(self) -> bool:
        return os.path.isdir(self.root)

    def size(self) -> Bytes:
        return self.retried(lambda: sum(p.stat().st_size for paths in self.snapshot().files.values() for p in paths))

    def tables(self) -> list[str]:
        names = segments.listing(self.root) if self.exists() else []
        return [*ROWS, *sorted(name for name in names if _PUBLIC_TABLE.fullmatch(name))]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The turn to change the folder; ends with the process at the latest."""
        self._check_place()
        with segments.disk_errors(f"cannot write to the store {self.path}", "Mend that"):
            segments.make_folder(self.root)
            with segments.locked(self.root / "lock"):
                segments.clear_leftovers(self.root)
                yield

    def snapshot(self, *, lock: bool = True) -> Snapshot:
        """The segments that count now. `lock=False` inside `writing`."""
        self._check_place()
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

    def is_whole(self, commit: Commit, snapshot: Snapshot) -> bool:
        """Whether all that belongs to its steps is there, every byte checked. Those of others are measured again."""
        if not self._seems_whole(commit, snapshot.files):
            return False
        return all(self.note(path) is not None for path in commit.parts.values())

    def whole_steps(self, snapshot: Snapshot, among: Collection[str] | None = None) -> Iterator[tuple[Any, ...]]:
        """The steps (`_FOUND_BY`) of whole commits."""
        for commit in snapshot.commits:
            if (among is None or not commit.ids.isdisjoint(among)) and self.is_whole(commit, snapshot):
                yield from commit.rows

    def _seems_whole(self, commit: Commit, files: Mapping[str, Mapping[Path, None]]) -> bool:
        """Whether all parts are there, and none is known to be damaged."""
        here = (path in files[table] and path not in self._warned for table, path in commit.parts.items())
        return not commit.note.damaged and all(here)

    def note(self, path: Path) -> Note | None:
        """What a segment says of itself; None, with a warning, when it is damaged."""
        if path in self.rejected:
            return None
        if path not in self._notes:
            try:
                self._notes[path] = segments.read_note(path)
            except Damaged as error:
                self._mistrust(path, error.reason)
                return None
            self.trust(path)
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
                self._notes[path] = segments.read_note(path)
            except Damaged as error:
                found[path] = error.reason
            except FileNotFoundError:
                if path in named:
                    found[path] = "it is missing"
        found |= self.rejected
        for path in found:
            self._notes.pop(path, None)
        self._warned |= set(found)  # the caller has them from here
        return found

    def is_rotten(self, path: Path) -> bool:
        """Whether a segment can be read and is not what it should be: no waiting will mend it."""
        return path in self.rejected or segments.is_rotten(path)

    def reject(self, error: Damaged) -> None:
        """Leave a segment out for its rows."""
        self.rejected[error.path] = error.reason
        self._mistrust(error.path, error.reason)

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

    def _check_place(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"{self.path} is a file, and a store is a folder. Take it in with: foretell store import")
        names = segments.listing(self.path)
        versions = (v for name in names if (v := re.fullmatch(r"v(\d{1,9})", name)) and (self.path / name).is_dir())
        newest = max((int(v[1]) for v in versions), default=0)
        if newest > VERSION:
            raise StoreError(
                f"the store {self.path} has version {newest}, this Foretell reads up to {VERSION}. "
                "Upgrade with: pip install -U foretell"
            )
        segments.refuse_link(self.root)

    def _snapshot(self, lock: bool) -> Snapshot:
        # Locked, or a merge could add the new name behind our eyes and remove the old one before them.
        with segments.locked(self.root / "lock", shared=True) if lock else nullcontext():
            files = {table: self._list(table) for table in self.tables()}
        if self._last is not None and self._last.files == files and self._last.mistrusted == self._warned:
            return self._last
        commits = [c for path in files["steps"] if (c := self._read_commit(path)) is not None]
        # Of a step that is there twice the whole one counts, and what was merged before what it was merged from.
        commits.sort(key=lambda c: (not self._seems_whole(c, files), not c.note.damaged, -len(c.ids), c.path))
        graphs = [(path, found) for path in files["graphs"] if (found := self._graph_hashes(path)) is not None]
        graphs.sort(key=lambda each: (-len(each[1]), each[0]))
        repeated = repeats([(c.path, c.ids) for c in commits]) | repeats(graphs)
        keys_by_path = {c.path: c.ids for c in commits} | dict(graphs)
        replaced = frozenset(path for path, keys in keys_by_path.items() if repeated.get(path, frozenset()) == keys)
        self._last = Snapshot(
            commits=tuple(c for c in commits if c.path not in replaced),
            repeated=repeated,
            files=files,
            replaced=replaced,
            graphs={hash: path for path, hashes in reversed(graphs) for hash in hashes},
            mistrusted=frozenset(self._warned),
        )
        return self._last

    def _list(self, table: str) -> dict[Path, None]:
        folder, known = self.root / table, self._paths.setdefault(table, {})
        return {known.get(name) or known.setdefault(name, folder / name): None for name in segments.names(folder)}

    def _read_commit(self, path: Path) -> Commit | None:
        if (note := self.note(path)) is None:
            return None
        if path not in self._commits:
            if (found := self._read_keys(path, _FOUND_BY)) is None:
                return None
            rows = tuple(zip(*(found.column(name).to_pylist() for name in _FOUND_BY), strict=True))
            parts = {table: self.root / table / (name + segments.SUFFIX) for table, name in note.parts.items()}
            ids = frozenset(row[0] for row in rows)
            self._commits[path] = Commit(path=path, note=note, rows=rows, ids=ids, parts=parts)
        return self._commits[path]

    def _graph_hashes(self, path: Path) -> frozenset[str] | None:
        if self.note(path) is None:
            return None
        if path not in self._hashes:
            if (found := self._read_keys(path, ("hash",))) is None:
                return None
            self._hashes[path] = frozenset(found.column("hash").to_pylist())
        return self._hashes[path]

    def _read_keys(self, path: Path, names: Sequence[str]) -> Any | None:
        """Columns that say which rows there are; None, with a warning, where a key is missing or there twice."""
        try:
            found = segments.read_texts(path, list(names))
            keys = found.column(names[0])
            if keys.null_count or len(keys.unique()) < len(keys):
                raise Damaged(path, f"it has rows without {names[0]}, or with the same")
        except Damaged as error:
            self.reject(error)
            return None
        return found


def repeats(keys_by_path: Iterable[tuple[Path, frozenset[str]]]) -> dict[Path, frozenset[str]]:
    """What a segment before has too."""
    seen: set[str] = set()
    found = {}
    for path, keys in keys_by_path:
        if not seen.isdisjoint(keys):
            found[path] = keys & seen
        seen |= keys
    return found
