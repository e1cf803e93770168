"""SQL over a store: DuckDB views of its tables, columns that a segment lacks filled with their defaults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from foretell.errors import InputError, StoreError
from foretell.measure.columns import Column
from foretell.store import tables
from foretell.store.folder import Folder, Snapshot
from foretell.store.tables import ROWS, need

_SQL_TYPES: Final = {"text": "VARCHAR", "whole": "BIGINT", "number": "DOUBLE", "bool": "BOOLEAN", "bytes": "BLOB"}


def ask(folder: Folder, sql: str, question: Callable[[Any], Any]) -> Any:
    """Put the question to a connection that knows the tables which the SQL names."""
    return folder.retried(lambda: _ask(folder, sql, question))


def _ask(folder: Folder, sql: str, question: Callable[[Any], Any]) -> Any:
    duckdb = need("duckdb")
    snapshot = folder.snapshot()
    words = set(re.findall(r"\w+", sql.lower()))
    used = [table for table in snapshot.files if table in words]  # the others need not be opened
    with duckdb.connect() as connection:
        for table in used:
            _define(connection, folder, snapshot, table)
        try:
            return question(connection)
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


def _define(connection: Any, folder: Folder, snapshot: Snapshot, table: str) -> None:
    """A view of a table over its readable segments, one SELECT for those alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    selects: list[tuple[tuple[str, ...], str]] = []
    for number, (path, note, out) in enumerate(folder.readable(snapshot, table)):
        place = sql_text(re.sub(r"([*?\[])", r"[\1]", str(path)))  # DuckDB reads them as patterns
        if out:
            connection.register(f"out_{table}_{number}", need("pyarrow").table({"id": sorted(out)}))
            condition = f"WHERE {tables.KEYS[table]} NOT IN (SELECT id FROM out_{table}_{number})"
            selects.append((note.columns, f"FROM read_parquet([{place}]) {condition}"))
        else:
            alike.setdefault(note.columns, []).append(place)
    selects += [(names, f"FROM read_parquet([{', '.join(places)}])") for names, places in alike.items()]
    if not selects:
        if table in ROWS:  # else all of it is damaged, and warned about
            connection.register(table, tables.schema(table).empty_table())
        return
    known = {column.name: column for column in tables.columns(table)} if table in ROWS else {}
    every = list(dict.fromkeys([*known, *(name for names, _ in selects for name in names)]))
    union = []
    for names, origin in selects:
        columns = (_quoted(n) if n in names else f"{_default(known.get(n))} AS {_quoted(n)}" for n in every)
        union.append(f"SELECT {', '.join(columns)} {origin}")
    connection.execute(f"CREATE VIEW {_quoted(table)} AS {' UNION ALL '.join(union)}")


def sql_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _default(column: Column | None) -> str:
    """What a segment holds in a column it was written without."""
    if column is None:
        return "NULL"
    kind = _SQL_TYPES[column.kind] + ("[]" if column.many else "")
    value = column.default
    if value is None:
        return f"CAST(NULL AS {kind})"
    literal = "[]" if column.many else sql_text(value) if isinstance(value, str) else str(value).lower()
    return f"CAST({literal} AS {kind})"
