"""Merging: other stores come in, many small segments become few, and what killed writers left is cleared away.

Safe at every moment: a merged segment is written whole and names those it replaces, which from then on are ignored and
only then removed. Appending goes on meanwhile; only a second merge has to wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretell.errors import StoreError
from foretell.store import segments, tables
from foretell.store.folder import PUBLIC, VERSION, Commit, Folder
from foretell.store.tables import PARTS, Table, need
from foretell.units import MIB, Bytes

_FULL_ROWS: Final = 1 << 20  # from here a segment is left as it is
_FULL_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge did."""

    taken: int  # steps from other stores
    segments_before: int
    segments_after: int
    bytes_before: Bytes
    bytes_after: Bytes
    mended: tuple[Path, ...]  # damaged here, whole in another store
    set_aside: tuple[Path, ...]  # where damaged segments are now


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A commit of ours or of another store, and the steps to leave out of it."""

    store: Folder
    commit: Commit
    out: frozenset[str]
    ours: bool
    whole: bool

    def size(self) -> tuple[int, int]:
        """Rows and bytes, of all tables."""
        notes = [self.store.note(path) for path in self.commit.parts.values() if path.exists()]
        rows = len(self.commit.rows) + sum(note.rows for note in notes if note is not None)
        paths = (self.commit.path, *self.commit.parts.values())
        return rows, sum(path.stat().st_size for path in paths if path.exists())

    def read(self, table: str, rotten: set[Path]) -> Table | None:
        """The rows of a table that count; None where there are none."""
        path = self.commit.path if table == "steps" else self.commit.parts.get(table)
        if path is None or path in rotten:
            return None
        if self.store.note(path) is None:
            raise StoreError(f"{path} cannot be read any more. Nothing is lost; merge again, which sets it aside.")
        rows = tables.completed(table, segments.read_table(path))
        return tables.without(rows, tables.KEYS[table], self.out) if self.out else rows


def merge(store: Folder, others: Sequence[Folder]) -> Merged:
    for other in others:
        if not other.exists():
            raise StoreError(f"there is no store at {other.path} to take in. Check the path.")
        if other.path.resolve() == store.path.resolve():
            raise StoreError(f"{other.path} is the store itself. Merge without naming it to make few segments of many.")
    with ExitStack() as locks:
        with store.writing():
            ours = locks.enter_context(segments.locked(store.root / "merge-lock", wait=False))
        if not ours:
            raise StoreError(f"the store {store.path} is being merged already. Wait until that is done, and try again.")
        files = _files(store)
        size = sum(path.stat().st_size for path in files)
        bad = store.damaged()
        mended = [path for path in bad if _mend(store, path, others)]
        checked = (store, *others) if bad or others else ()
        bad = {path: reason for each in checked for path, reason in each.damaged().items()}
        rotten = {path for path in bad if segments.is_rotten(path)}
        taken = _merge_steps(store, others, rotten, waiting=set(bad) - rotten)
        _merge_graphs(store, others)
        for other in others:
            _copy_public(store, other)
        aside = _clear(store, [path for path in rotten if path.is_relative_to(store.root)])
        after = _files(store)
        return Merged(
            taken=taken,
            segments_before=len(files),
            segments_after=len(after),
            bytes_before=size,
            bytes_after=sum(path.stat().st_size for path in after),
            mended=tuple(mended),
            set_aside=tuple(aside),
        )


def _files(store: Folder) -> list[Path]:
    return [path for paths in store.snapshot().files.values() for path in paths if path.exists()]


def _mend(store: Folder, path: Path, others: Sequence[Folder]) -> bool:
    """A segment is named by its content: whoever has a whole one of that name has the right one."""
    for other in others:
        data = _bytes(other.root / path.parent.name / path.name)
        if data is not None:
            with store.writing():
                segments.write(path.parent, data)
            store.trust(path)
            return True
    return False


def _merge_steps(store: Folder, others: Sequence[Folder], rotten: set[Path], waiting: set[Path]) -> int:
    """`waiting` are parts that are missing or cannot be read now: they may yet turn up, so their steps are left alone."""
    known = store.snapshot().ids()
    sources = (source for source in _sources(store, others) if waiting.isdisjoint(source.commit.parts.values()))
    for group in _groups(sources):
        if len(group) == 1 and group[0].ours and group[0].whole and not group[0].out:
            continue  # nothing to gain
        made = {}
        for table in ("steps", *PARTS):
            read = [rows for source in group if (rows := source.read(table, rotten)) is not None]
            if read:
                made[table] = need("pyarrow").concat_tables(read, promote_options="default")
        encoded = {table: segments.encode(made[table], version=VERSION) for table in PARTS if table in made}
        parts = {table: segments.name_of(data) for table, data in encoded.items()}
        replaces = [source.commit.path.stem for source in group if source.ours]
        steps = segments.encode(made["steps"], version=VERSION, parts=parts, replaces=replaces)
        with store.writing():
            for table, data in encoded.items():
                segments.write(store.root / table, data)
            segments.write(store.root / "steps", steps)
    return len(store.snapshot().ids() - known) if others else 0


def _sources(store: Folder, others: Sequence[Folder]) -> Iterator[_Source]:
    """Every commit with steps that no commit before it has; whole ones first, ours before others'."""
    found = []
    for number, origin in enumerate((store, *others)):
        snapshot = origin.snapshot()
        for commit in snapshot.commits:
            found.append((not origin.is_whole(commit, snapshot.files), number, commit, origin))
    seen: set[str] = set()
    for broken, number, commit, origin in sorted(found, key=lambda f: (f[0], f[1], f[2].path)):
        out = commit.ids & seen
        seen |= commit.ids
        if number == 0 or out != commit.ids:
            yield _Source(store=origin, commit=commit, out=out, ours=number == 0, whole=not broken)


def _groups(sources: Iterable[_Source]) -> Iterator[list[_Source]]:
    """Small commits together, until a segment is full."""
    group: list[_Source] = []
    rows = size = 0
    for source in sources:
        more_rows, more_bytes = source.size()
        if more_rows >= _FULL_ROWS or more_bytes >= _FULL_BYTES:
            yield [source]
            continue
        if group and (rows + more_rows > _FULL_ROWS or size + more_bytes > _FULL_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(source)
        rows, size = rows + more_rows, size + more_bytes
    if group:
        yield group


def _merge_graphs(store: Folder, others: Sequence[Folder]) -> None:
    snapshot = store.snapshot()
    small = [path for path, _, _ in store.readable(snapshot, "graphs") if path.stat().st_size < _FULL_BYTES]
    fresh: list[tuple[Path, set[str]]] = []
    seen = set(snapshot.graphs)
    for other in others:
        theirs = other.snapshot().graphs
        for path in sorted(set(theirs.values())):
            hashes = {hash for hash, place in theirs.items() if place == path} - seen
            seen |= hashes
            if hashes:
                fresh.append((path, hashes))
    if not fresh and len(small) < 2:
        return
    read = [(path, {h for h, place in snapshot.graphs.items() if place == path}) for path in small]
    rows = [_kept(segments.read_table(path), "hash", hashes) for path, hashes in (*read, *fresh)]
    data = segments.encode(
        need("pyarrow").concat_tables(rows, promote_options="default"),
        version=VERSION,
        replaces=[path.stem for path in small],
    )
    with store.writing():
        segments.write(store.root / "graphs", data)


def _copy_public(store: Folder, other: Folder) -> None:
    snapshot = other.snapshot()
    for table in snapshot.files:
        if table.startswith(PUBLIC):
            for path, _, _ in other.readable(snapshot, table):
                if not (store.root / table / path.name).exists() and (data := _bytes(path)) is not None:
                    with store.writing():
                        segments.write(store.root / table, data)


def _clear(store: Folder, bad: Iterable[Path]) -> list[Path]:
    """Set damaged segments aside; remove what is replaced and what killed writers left."""
    with store.writing():
        bad = [path for path in bad if segments.is_rotten(path)]
        snapshot = store.snapshot(lock=False)
        notes = [store.note(path) for path in snapshot.replaced if path.exists()]
        replaced_parts = {
            store.root / table / (name + segments.SUFFIX)
            for note in notes
            if note is not None
            for table, name in note.parts.items()
        }
        orphans = snapshot.orphans()
        # A commit that cannot be read may have named some of them: set aside with it, or left if it may be read again.
        unread = [path for path in snapshot.files["steps"] if store.note(path) is None]
        unnamed = [path for path in orphans if path not in replaced_parts] if unread else []
        if not all(path in bad for path in unread):
            orphans, unnamed = [path for path in orphans if path in replaced_parts], []
        moved = [_set_aside(store, path) for path in dict.fromkeys((*bad, *unnamed))]
        # Commits before their parts: a part without a commit is nothing, a commit without its part is a loss.
        for path in (
            *snapshot.replaced,
            *orphans,
            *(p for t in snapshot.files for p in segments.leftovers(store.root / t)),
        ):
            path.unlink(missing_ok=True)
        for table in snapshot.files:
            if (store.root / table).is_dir():
                segments.sync_folder(store.root / table)
        return moved


def _set_aside(store: Folder, path: Path) -> Path:
    place = store.root / "damaged" / path.parent.name / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, place)
    return place


def _bytes(path: Path) -> bytes | None:
    """The bytes of a segment, if they are those of its name."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if segments.name_of(data) == path.stem else None


def _kept(table: Table, key: str, keep: set[str]) -> Table:
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    return table.filter(pc.is_in(table.column(key), value_set=pa.array(sorted(keep), pa.string())))
