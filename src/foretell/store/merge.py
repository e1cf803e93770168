"""Merging: other stores come in, many small segments become few, and what killed writers left is cleared away.

Safe at every moment: a merged segment is written whole, and those it was made of, all of whose rows it has, are ignored
from then on and only then removed. Appending goes on meanwhile; only a second merge has to wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from foretell.errors import StoreError
from foretell.store import segments, tables
from foretell.store.folder import PUBLIC, Commit, Folder, repeats
from foretell.store.tables import PARTS, Table, need
from foretell.units import MIB, Bytes

T = TypeVar("T", bound=Folder)

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


def merge(store: Folder, others: Sequence[T], take: Callable[[T], int]) -> Merged:
    """`take` takes in the records of another store, and says how many were new."""
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
        bad = set(store.damaged())
        mended = [path for path in bad if _mend(store, path, others)]
        taken = sum(take(other) for other in others)
        for other in others:
            _copy_public(store, other)
        bad = bad.difference(mended) | store.rejected.keys()
        rotten = {path for path in bad if store.is_rotten(path)}
        _merge_steps(store, rotten, waiting=bad - rotten)
        _merge_graphs(store)
        aside = _clear(store, rotten)
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
            return store.note(path) is not None
    return False


def _merge_steps(store: Folder, rotten: set[Path], waiting: set[Path]) -> None:
    """`waiting` are parts that are missing or cannot be read now: they may yet turn up, so their steps are left alone."""
    sources = [c for c in store.snapshot().commits if waiting.isdisjoint(c.parts.values())]
    damaged = {c.path: c.note.damaged | {t for t, path in c.parts.items() if path in rotten} for c in sources}
    # Apart, so that what was lost of some steps is not said of others.
    whole, broken = ([c for c in sources if bool(damaged[c.path]) is bad] for bad in (False, True))
    for group in (*_groups(store, whole), *_groups(store, broken)):
        if len(group) == 1 and damaged[group[0].path] == group[0].note.damaged:
            continue  # nothing to gain
        made = {}
        out = repeats([(commit.path, commit.ids) for commit in group])
        for table in ("steps", *PARTS):
            read = [rows for c in group if (rows := _rows(store, c, table, rotten, out.get(c.path))) is not None]
            if read:
                made[table] = need("pyarrow").concat_tables(read, promote_options="default")
        encoded = {table: segments.encode(made[table]) for table in PARTS if table in made}
        parts = {table: segments.name_of(data) for table, data in encoded.items()}
        steps = segments.encode(
            made["steps"], parts=parts, damaged=frozenset().union(*(damaged[c.path] for c in group))
        )
        with store.writing():
            for table, data in encoded.items():
                segments.write(store.root / table, data)
            segments.write(store.root / "steps", steps)


def _rows(store: Folder, commit: Commit, table: str, rotten: set[Path], out: frozenset[str] | None) -> Table | None:
    """The rows of a commit but for the steps that are `out`; None where there are none."""
    path = commit.path if table == "steps" else commit.parts.get(table)
    if path is None or path in rotten:
        return None
    if store.note(path) is None:
        raise StoreError(f"{path} cannot be read any more. Nothing is lost; merge again, which sets it aside.")
    rows = tables.completed(table, segments.read_table(path))
    return tables.without(rows, tables.KEYS[table], out) if out else rows


def _groups(store: Folder, commits: Iterable[Commit]) -> Iterator[list[Commit]]:
    """Small commits together, until a segment is full."""
    group: list[Commit] = []
    rows = size = 0
    for commit in commits:
        notes = {path: store.note(path) for path in (commit.path, *commit.parts.values()) if path.exists()}
        more_rows = sum(note.rows for note in notes.values() if note is not None)
        more_bytes = sum(path.stat().st_size for path in notes)
        if more_rows >= _FULL_ROWS or more_bytes >= _FULL_BYTES:
            yield [commit]
            continue
        if group and (rows + more_rows > _FULL_ROWS or size + more_bytes > _FULL_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(commit)
        rows, size = rows + more_rows, size + more_bytes
    if group:
        yield group


def _merge_graphs(store: Folder) -> None:
    snapshot = store.snapshot()
    small = [path for path, _, _ in store.readable(snapshot, "graphs") if path.stat().st_size < _FULL_BYTES]
    if len(small) < 2:
        return
    read = [segments.read_table(path) for path in small]
    out = repeats([(p, frozenset(t.column("hash").to_pylist())) for p, t in zip(small, read, strict=True)])
    rows = [tables.without(t, "hash", out.get(p, ())) for p, t in zip(small, read, strict=True)]
    data = segments.encode(need("pyarrow").concat_tables(rows, promote_options="default"))
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
        bad = [path for path in bad if store.is_rotten(path)]
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
        for path in (*snapshot.replaced, *orphans):
            path.unlink(missing_ok=True)
        for table in snapshot.files:
            segments.clear_leftovers(store.root / table)  # where an older Foretell left them
        for table in snapshot.files:
            if (store.root / table).is_dir():
                segments.sync_folder(store.root / table)
        return moved


def _set_aside(store: Folder, path: Path) -> Path:
    place = store.root / "damaged" / path.parent.name / path.name
    segments.make_folder(segments.make_folder(store.root / "damaged") / path.parent.name)
    os.replace(path, place)
    return place


def _bytes(path: Path) -> bytes | None:
    """The bytes of a segment, if they are those of its name."""
    try:
        with segments.open_plain(path) as file:
            data = file.read()
    except OSError:
        return None
    return data if segments.name_of(data) == path.stem else None
