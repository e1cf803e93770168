"""Segments: the immutable Parquet files a store is made of, each named by the SHA-256 of its bytes.

So a segment is what its name says or it is damaged, the same rows written twice are one file, and files of two stores
can lie in one folder. What a segment says of itself is in the footer, as JSON.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell.errors import StoreError
from foretell.store.tables import Table, need

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a segment says of itself."""

    version: int
    parts: Mapping[str, str]  # of a step segment: table → name of the segment with the rows of these steps
    replaces: frozenset[str]  # segments of the same table that this one was merged from
    columns: tuple[str, ...]
    rows: int


class Damaged(Exception):
    """A segment that is not what its name says; the text says how."""


def encode(
    table: Table, *, version: int, parts: Mapping[str, str] | None = None, replaces: Iterable[str] = ()
) -> bytes:
    """The bytes of a segment with these rows."""
    note = {"version": version, "parts": dict(sorted((parts or {}).items())), "replaces": sorted(replaces)}
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
        use_dictionary=[name for name in _leaves(table) if name.partition(".")[0] not in plain],
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _leaves(table: Table) -> list[str]:
    """Columns as Parquet names them."""
    is_list = need("pyarrow.types").is_list
    return [f"{field.name}.list.element" if is_list(field.type) else field.name for field in table.schema]


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(folder: Path, data: bytes) -> str:
    """On the disk and whole when this returns; never half there under its name."""
    name = name_of(data)
    path = folder / (name + SUFFIX)
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
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


def sync_folder(folder: Path) -> None:
    """A new name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check(path: Path) -> None:
    try:
        rotten = _is_other(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"cannot be read: {error.strerror}") from None
    if rotten:
        raise Damaged("its bytes are not those it was written with")


def is_rotten(path: Path) -> bool:
    """Whether a segment can be read and holds other bytes than it should: no waiting will mend it."""
    try:
        return _is_other(path)
    except OSError:
        return False


def _is_other(path: Path) -> bool:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != path.stem


def read_note(path: Path) -> Note:
    """Checks every byte, then reads the footer."""
    read_metadata = need("pyarrow.parquet").read_metadata
    check(path)
    try:
        footer = read_metadata(path)
        note = json.loads(footer.metadata[_KEY])
        return Note(
            version=note["version"],
            parts=note["parts"],
            replaces=frozenset(note["replaces"]),
            columns=tuple(footer.schema.to_arrow_schema().names),
            rows=footer.num_rows,
        )
    except FileNotFoundError:
        raise
    except Exception as error:  # the name is right and the content is not ours
        raise Damaged(f"it is not a segment of a store ({type(error).__name__}: {error})") from None


def read_table(path: Path, columns: list[str] | None = None) -> Table:
    # Of a file, not of a dataset: opening thousands of small ones is what takes the time.
    with need("pyarrow.parquet").ParquetFile(path) as file:
        return file.read(columns=columns)


def rows_with(path: Path, key: str, wanted: Iterable[str]) -> Iterator[Table]:
    """The rows whose key is wanted, a row group at a time."""
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    keys = pa.array(sorted(wanted), pa.string())
    with need("pyarrow.parquet").ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            hits = pc.is_in(file.read_row_group(group, columns=[key]).column(0), value_set=keys)
            if pc.any(hits).as_py():
                yield file.read_row_group(group).filter(hits)


def names(folder: Path) -> list[str]:
    """The file names of all segments in a folder, sorted; not those that are being written."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def leftovers(folder: Path) -> list[Path]:
    """What killed writers left half written."""
    return sorted(folder.glob(_TEMPORARY + "*"))


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that dies with its process; False where another has it and `wait` is not."""
    try:
        file: Any = open(path, "rb" if shared else "ab")  # noqa: SIM115
    except (FileNotFoundError, PermissionError):
        if not shared:
            raise
        yield True  # nobody ever wrote here
        return
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
