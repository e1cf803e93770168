"""Segments: the immutable Parquet files a store is made of, each named by the SHA-256 of its bytes.

So a segment is what its name says or it is damaged, the same rows written twice are one file, and files of two stores
can lie in one folder. What a segment says of itself is in the footer, as JSON. `read_note` is where a segment is
checked before anything else is read of it, as it may be a stranger's: its name, its bytes, its footer, its columns.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from foretell.errors import InputError, StoreError
from foretell.store.tables import PARTS, ROWS, Table, misfit, need
from foretell.units import GIB

VERSION: Final = 1
SUFFIX: Final = ".parquet"
_KEY: Final = b"foretell"
_ROW_GROUP: Final = 1 << 16  # rows; small enough to read one step's without the rest
_FILE_GROUP: Final = 128  # of rows that hold a graph's file each
_LEVEL, _FILE_LEVEL = 9, 16  # of zstd; graphs are like each other, and looking longer finds it
_PAGE: Final = 1 << 26  # bytes; a page is compressed as one, and like graphs follow each other
_PACKED: Final = {  # columns that a dictionary makes larger: numbers that count up, series of samples
    "op": "DELTA_BINARY_PACKED",
    "seconds.list.element": "BYTE_STREAM_SPLIT",
    "values.list.element": "BYTE_STREAM_SPLIT",
}
_TEMPORARY: Final = ".writing-"
_NAME: Final = re.compile(r"[0-9a-f]{64}")
_MAX_SEGMENT_ROWS: Final = 1 << 21  # of a segment; ours have a million
_MAX_READ_BYTES: Final = GIB  # of the rows that are read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a segment says of itself."""

    parts: Mapping[str, str]  # of a step segment: table → name of the segment with the rows of these steps
    damaged: frozenset[str]  # of a step segment: tables whose rows of these steps were damaged
    columns: tuple[str, ...]
    rows: int


class Damaged(StoreError):
    """A segment that is not what its name says, and never will be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}. `foretell store merge` sets it aside.")
        self.path, self.reason = path, reason


class Unreadable(Damaged):
    """A segment that cannot be read now, and may be later."""


def encode(table: Table, *, parts: Mapping[str, str] | None = None, damaged: Iterable[str] = ()) -> bytes:
    """The bytes of a segment with these rows."""
    note = {"version": VERSION, "parts": dict(sorted((parts or {}).items())), "replaces": []}  # older readers need it
    note |= {"lost": sorted(damaged)} if damaged else {}
    table = table.replace_schema_metadata({_KEY: json.dumps(note).encode()})
    sink = need("pyarrow").BufferOutputStream()
    files = "file" in table.column_names
    packed = {column: how for column, how in _PACKED.items() if column.partition(".")[0] in table.column_names}
    plain = {column.partition(".")[0] for column in packed} | {"file"}
    need("pyarrow.parquet").write_table(
        table,
        sink,
        compression="zstd",
        compression_level=_FILE_LEVEL if files else _LEVEL,
        row_group_size=_FILE_GROUP if files else _ROW_GROUP,
        data_page_size=_PAGE,
        column_encoding=packed,
        use_dictionary=[name for name in _leaves(table.schema) if name.partition(".")[0] not in plain],
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _leaves(schema: Any) -> list[str]:
    """Columns as Parquet names them."""
    is_list = need("pyarrow.types").is_list
    return [f"{field.name}.list.element" if is_list(field.type) else field.name for field in schema]


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(folder: Path, data: bytes) -> str:
    """On the disk and whole when this returns; never half there under its name. Only in one's turn to write."""
    name = name_of(data)
    path = make_folder(folder) / (name + SUFFIX)
    handle, temporary = tempfile.mkstemp(dir=folder.parent, prefix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # others may read what is measured
        os.replace(temporary, path)  # also over a damaged file of the same name, which this mends
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return name


def make_folder(path: Path) -> Path:
    """A folder of the store, and no link to another place."""
    path.mkdir(parents=True, exist_ok=True)
    refuse_link(path)
    return path


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreError(f"{path} is a link, and a store keeps to its own folder. Put the folder itself there.")


def sync_folder(folder: Path) -> None:
    """A new name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_plain(path: Path, flags: int = os.O_RDONLY | os.O_NOFOLLOW) -> BufferedReader:
    """Open a file that is one: no link, which leads elsewhere, and no pipe or device, which would never end."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return open(handle, "rb")


def check(path: Path) -> None:
    """Its name and every byte."""
    if not _NAME.fullmatch(path.stem):
        raise Damaged(path, "its name is not 64 hexadecimal digits")
    try:
        with open_plain(path) as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == path.stem
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(path, f"cannot be read: {error.strerror}") from None
    if not whole:
        raise Damaged(path, "its bytes are not those it was written with")


def is_rotten(path: Path) -> bool:
    """Whether a segment can be read and is not what it should be: no waiting will mend it."""
    try:
        read_note(path)
    except Damaged as error:
        return not isinstance(error, Unreadable)
    except FileNotFoundError:
        return False
    return False


def read_note(path: Path) -> Note:
    """What a segment says of itself, once all of it is checked that can be without reading its rows."""
    check(path)
    with _reading(path):
        footer = need("pyarrow.parquet").read_metadata(path)
        schema = footer.schema.to_arrow_schema()
        note = json.loads(footer.metadata[_KEY])
        version = note["version"]
        if version != VERSION:
            if version < VERSION:
                raise Damaged(path, f"its version is {version!r}")
            raise StoreError(
                f"{path} has version {version}, this Foretell reads up to {VERSION}. "
                "Upgrade with: pip install -U foretell"
            )
        table = path.parent.name
        found = Note(
            parts=dict(note["parts"]),
            damaged=frozenset(note.get("lost", ())),
            columns=tuple(schema.names),
            rows=footer.num_rows,
        )
        size = max((footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)), default=0)
        if size > _MAX_READ_BYTES or (table in ROWS and not 0 <= found.rows <= _MAX_SEGMENT_ROWS):
            raise Damaged(path, f"it says it has {found.rows:,} rows, {size:,} bytes at once")
        odd = (found.damaged | set(found.parts)).difference(PARTS if table == "steps" else ())
        if odd or not all(map(_NAME.fullmatch, found.parts.values())):
            raise Damaged(path, "it names parts that cannot be")
        if reason := misfit(table, schema):
            raise Damaged(path, reason)
        return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever the content breaks in Parquet or JSON, the segment is to blame: its name is right, and it is not ours."""
    try:
        yield
    except (FileNotFoundError, InputError, MemoryError):
        raise
    except Exception as error:
        raise Damaged(path, f"it is not a segment of a store ({type(error).__name__}: {error})") from None


def read_table(path: Path, columns: list[str] | None = None) -> Table:
    # Of a file, not of a dataset: opening thousands of small ones is what takes the time.
    with _reading(path), need("pyarrow.parquet").ParquetFile(path) as file:
        return file.read(columns=columns)


def check_texts(path: Path) -> None:
    """Refuse a stranger's segment whose texts are kept once and repeated so often that they would fill the memory."""
    pa = need("pyarrow")
    with _reading(path), need("pyarrow.parquet").ParquetFile(path) as file:
        names = _leaves(file.schema_arrow)
        kinds = [{field.type, getattr(field.type, "value_type", None)} for field in file.schema_arrow]
        groups = file.num_row_groups
    texts = [name for name, kind in zip(names, kinds, strict=True) if pa.string() in kind]
    for group in range(groups):
        read_texts(path, texts, group)


def read_texts(path: Path, columns: list[str], group: int | None = None) -> Table:
    """Columns of texts, each text kept once; refused where they would fill the memory otherwise."""
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    with _reading(path), need("pyarrow.parquet").ParquetFile(path, read_dictionary=columns) as file:
        table = file.read(columns=columns) if group is None else file.read_row_group(group, columns=columns)
        size = 0
        for chunk in (chunk for column in table.columns for chunk in column.chunks):
            packed = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
            size += pc.sum(pc.binary_length(packed.dictionary).take(packed.indices)).as_py() or 0
    if size > _MAX_READ_BYTES:
        raise Damaged(path, f"its texts would take {size:,} bytes")
    return table


def rows_with(path: Path, key: str, wanted: Iterable[str]) -> Iterator[Table]:
    """The rows whose key is wanted, a row group at a time."""
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    keys = pa.array(sorted(wanted), pa.string())
    with _reading(path):
        file = need("pyarrow.parquet").ParquetFile(path)
    with file:
        for group in range(file.num_row_groups):
            with _reading(path):
                hits = pc.is_in(file.read_row_group(group, columns=[key]).column(0), value_set=keys)
                rows = file.read_row_group(group).filter(hits) if pc.any(hits).as_py() else None
            if rows is not None:
                yield rows


def listing(folder: Path) -> list[str]:
    """The names in a folder of a store; none where it is not there."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{folder} cannot be listed: {error.strerror}. Mend that and try again.") from error


def names(folder: Path) -> list[str]:
    """The file names of all segments in a folder, sorted."""
    refuse_link(folder)
    return sorted(name for name in listing(folder) if name.endswith(SUFFIX))


def clear_leftovers(folder: Path) -> None:
    """Remove what killed writers left half written. Only in one's turn to write: then no other is writing."""
    refuse_link(folder)
    for name in listing(folder):
        if name.startswith(_TEMPORARY):
            (folder / name).unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that dies with its process; False where another has it and `wait` is not."""
    try:
        file = open_plain(path, os.O_NOFOLLOW | (os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        if not shared:
            raise
        yield True  # nobody ever wrote here
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be locked: {error.strerror}. Remove it and try again.") from error
    with file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def disk_errors(doing: str, advice: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else (error.strerror or str(error))
        raise StoreError(
            f"{doing}: {what}. {'Make room' if full else advice} and try again; what was stored is whole."
        ) from error
