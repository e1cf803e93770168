"""Records as Arrow tables and back. The schema is read off the dataclasses of `record.py`, here and nowhere else."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from foretell.errors import InputError
from foretell.measure.columns import Column, check_rows, columns_of
from foretell.measure.record import AllocationRow, GraphRow, OpRow, Record, SeriesRow, StepRow

if TYPE_CHECKING:
    from types import ModuleType

Table: TypeAlias = Any  # pyarrow.Table; pyarrow has no types of its own
Row: TypeAlias = StepRow | OpRow | GraphRow | SeriesRow | AllocationRow

ROWS: Final[Mapping[str, Any]] = {  # table → the dataclass of its rows
    "steps": StepRow,
    "ops": OpRow,
    "graphs": GraphRow,
    "series": SeriesRow,
    "allocations": AllocationRow,
}
PARTS: Final[tuple[str, ...]] = ("ops", "series", "allocations")  # tables whose rows belong to a step
KEYS: Final[Mapping[str, str]] = {"steps": "id", "graphs": "hash"} | dict.fromkeys(PARTS, "step")


def need(module: str) -> ModuleType:
    """Import what only the store needs, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(
            f"the store needs {package}, which is not installed. Install it with: pip install 'foretell[store]'"
        ) from None


@cache
def key_column(table: str) -> Column | None:
    """The column that its rows do not hold themselves."""
    return None if table == "graphs" else Column(name=KEYS[table], kind="text", default=dataclasses.MISSING)


@cache
def columns(table: str) -> tuple[Column, ...]:
    """The columns of a table: its key, then the fields of its rows."""
    key = key_column(table)
    return (*([key] if key else []), *columns_of(ROWS[table]))


@cache
def schema(table: str) -> Any:
    return need("pyarrow").schema([(column.name, arrow_type(column.kind, column.many)) for column in columns(table)])


@cache
def arrow_type(kind: str, many: bool = False) -> Any:
    pa = need("pyarrow")
    made = {"text": pa.string, "whole": pa.int64, "number": pa.float64, "bool": pa.bool_, "bytes": pa.binary}
    return pa.list_(made[kind]()) if many else made[kind]()


def misfit(name: str, found: Any) -> str | None:
    """Why a segment with this schema cannot be of the table; columns that we do not know are no reason."""
    kinds = {field.name: field.type for field in found}
    if len(kinds) < len(found):
        return "two of its columns have one name"
    for column in columns(name) if name in ROWS else ():
        kind = kinds.get(column.name)
        if kind is None and column.default is dataclasses.MISSING:
            return f"it has no column {column.name}"
        if kind is not None and kind != arrow_type(column.kind, column.many):
            return f"its column {column.name} has the type {kind}"
    return None


def tables_of(records: Sequence[Record]) -> dict[str, Table]:
    """The rows of some records as tables; a table without rows is left out."""
    ids = [record.step.id for record in records]
    graphs = {record.graph.hash: record.graph for record in records if record.graph is not None}
    rows: dict[str, tuple[Iterable[str], Sequence[Row]]] = {
        "steps": (ids, [record.step for record in records]),
        "graphs": (graphs, list(graphs.values())),
        "ops": _of_steps(ids, [record.ops for record in records]),
        "series": _of_steps(ids, [record.series for record in records]),
        "allocations": _of_steps(ids, [(r.allocations,) if r.allocations is not None else () for r in records]),
    }
    return {name: _table(name, keys, those) for name, (keys, those) in rows.items() if those}


def _of_steps(ids: Sequence[str], rows: Sequence[Sequence[Row]]) -> tuple[Iterable[str], Sequence[Row]]:
    keys = chain.from_iterable([key] * len(those) for key, those in zip(ids, rows, strict=True))
    return keys, list(chain.from_iterable(rows))


def _table(name: str, keys: Iterable[str], rows: Sequence[Row]) -> Table:
    pa = need("pyarrow")
    values = list(zip(*map(attrgetter(*(c.name for c in columns_of(ROWS[name]))), rows), strict=True))
    if key_column(name):
        values = [tuple(keys), *values]
    arrays = [pa.array(value, field.type) for value, field in zip(values, schema(name), strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema(name))


def completed(name: str, table: Table) -> Table:
    """The table with the columns it was written without, each holding its default. Columns we do not know stay."""
    if name not in ROWS or set(schema(name).names) <= set(table.schema.names):
        return table
    pa = need("pyarrow")
    for column in columns(name):
        if column.name not in table.schema.names:
            kind = arrow_type(column.kind, column.many)
            table = table.append_column(column.name, pa.repeat(pa.scalar(column.default, kind), len(table)))
    order = [*schema(name).names, *(n for n in table.schema.names if n not in schema(name).names)]
    return table.select(order)


def rows_of(name: str, table: Table) -> Iterator[tuple[str, Any]]:
    """(key, row) of each row of a table; InputError where one is not what its column says."""
    table = completed(name, table)
    row, known = ROWS[name], columns_of(ROWS[name])
    values = {}
    for column in known:
        cells = table.column(column.name).to_pylist()
        values[column.name] = [tuple(cell) for cell in cells] if column.many and None not in cells else cells
    check_rows(row, values)
    keys = table.column(KEYS[name]).to_pylist()
    for key, *cells in zip(keys, *values.values(), strict=True):
        yield key, row(**dict(zip(values, cells, strict=True)))


def without(table: Table, key: str, known: Iterable[str]) -> Table:
    """The rows whose key is not known."""
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    return table.filter(pc.invert(pc.is_in(table.column(key), value_set=pa.array(sorted(known), pa.string()))))


def exact(record: Record) -> Record:
    """The record as the store gives it back: a whole number in a column of fractions is one of them."""
    step = record.step
    numbers = (column.name for column in columns_of(StepRow) if column.kind == "number")
    whole: dict[str, Any] = {name: float(value) for name in numbers if type(value := getattr(step, name)) is int}
    return dataclasses.replace(record, step=dataclasses.replace(step, **whole)) if whole else record
