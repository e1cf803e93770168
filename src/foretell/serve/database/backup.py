"""Everything in the database as one file, whatever keeps it: a zip with a file of JSON lines for each table."""

from __future__ import annotations

import base64
import json
import os
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import LargeBinary, Table, func, insert, select, text
from sqlalchemy.orm import Session

from foretell.errors import InputError
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Audit, Base

_ABOUT: Final = "about.json"
_FORMAT: Final = 1
_AT_ONCE: Final = 500  # rows
_LONGEST: Final = 256 * 2**20  # bytes of a line: a graph in base64


def back_up(database: Database, file: Path) -> int:
    """How many rows were written, all as they were at one moment. The file is there when it is whole, or not at all."""
    if file.exists() and not file.is_file():
        raise InputError(f"{file} is no plain file, and would be replaced by one. Choose another file.")
    draft = file.with_name(f"{file.name}.part")
    rows = 0
    try:
        with (
            zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            database.snapshot() as session,
        ):
            archive.writestr(_ABOUT, json.dumps({"format": _FORMAT, "revision": _revision(session)}))
            for table in Base.metadata.sorted_tables:
                with archive.open(f"{table.name}.jsonl", "w", force_zip64=True) as into:
                    for row in session.execute(select(table).execution_options(yield_per=_AT_ONCE)).mappings():
                        into.write(json.dumps(_written(dict(row))).encode() + b"\n")
                        rows += 1
        os.chmod(draft, 0o600)
        draft.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}. Choose another file.") from None
    finally:
        draft.unlink(missing_ok=True)
    return rows


def restore(database: Database, file: Path) -> int:
    """How many rows were read, into a database that has none; all of them or nothing."""
    try:
        with zipfile.ZipFile(file) as archive, database.writing() as session:
            about = json.loads(archive.read(_ABOUT))
            if about.get("format") != _FORMAT or about.get("revision") != (here := _revision(session)):
                raise InputError(
                    f"{file} is of revision {about.get('revision')!r}, and this Foretell has {here!r}. "
                    "Restore it with the version that wrote it; a newer one brings the tables along."
                )
            return sum(_read(session, table, archive) for table in Base.metadata.sorted_tables)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is no backup of a service: {error}. Write one: foretell serve backup FILE") from None


def _read(session: Session, table: Table, archive: zipfile.ZipFile) -> int:
    if session.scalar(select(func.count()).select_from(table)):
        raise InputError("the database is not empty. Restore into a new one: --database URL")
    rows = 0
    with archive.open(f"{table.name}.jsonl") as lines:
        parsed = (_parsed(table, json.loads(line)) for line in _lines(lines))
        while some := list(islice(parsed, _AT_ONCE)):
            session.execute(insert(table), some)
            rows += len(some)
    if (
        table.name == Audit.__tablename__ and session.get_bind().dialect.name == "postgresql"
    ):  # numbers go on after the last
        last = (
            "SELECT setval(pg_get_serial_sequence('audit', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM audit), false)"
        )
        session.execute(text(last))
    return rows


def _lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(_LONGEST):
        yield line


def _revision(session: Session) -> str:
    return str(session.scalar(text("SELECT version_num FROM alembic_version")))


def _written(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()
    }


def _parsed(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    kinds = {column.name: column.type for column in table.columns}
    return {
        name: base64.b64decode(value) if value is not None and isinstance(kinds[name], LargeBinary) else value
        for name, value in row.items()
    }
