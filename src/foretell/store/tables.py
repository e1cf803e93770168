"""Records as Arrow tables and back. The schema is read off the dataclasses of `record.py`, here and nowhere else."""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

from foretell.errors import InputError
from foretell.measure.record import AllocationRow, GraphRow, OpRow, Record, SeriesRow, StepRow

if TYPE_CHECKING:
    from types import ModuleType

Table: TypeAlias = Any  # pyarrow.Table; pyarrow has no types of its own
Row: TypeAlias = StepRow | OpRow | GraphRow | SeriesRow | AllocationRow

ROWS: Final[Mapping[str, type[Row]]] = {
    "steps": StepRow,
    "ops": OpRow,
    "graphs": GraphRow,
    "series": SeriesRow,
    "allocations": AllocationRow,
}
PARTS: Final[tuple[str, ...]] = ("ops", "series", "allocations")  # tables whose rows belong to a step
KEYS: Final[Mapping[str, str]] = {"steps": "id", "graphs": "hash"} | dict.fromkeys(PARTS, "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    kind: str  # text, whole, number, bool, bytes, texts, wholes, numbers
    default: Any  # None where a value may be missing
    extra: bool = False  # the key, which the row itself does not hold


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
def columns(table: str) -> tuple[Column, ...]:
    """The columns of a table: its key, then the fields of its rows."""
    row = ROWS[table]
    hints = get_type_hints(row)
    key = () if table == "graphs" else (Column(name=KEYS[table], kind="text", default=None, extra=True),)
    fields = (
        Column(name=f.name, kind=_kind(hints[f.name]), default=None if f.default is dataclasses.MISSING else f.default)
        for f in dataclasses.fields(row)
    )
    return (*key, *fields)


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = (argument for argument in get_args(hint) if argument is not types.NoneType)
    if get_origin(hint) is tuple:
        return _kind(get_args(hint)[0]) + "s"
    return {str: "text", int: "whole", float: "number", bool: "bool", bytes: "bytes"}[hint]


@cache
def schema(table: str) -> Any:
    return need("pyarrow").schema([(column.name, arrow_type(column.kind)) for column in columns(table)])


@cache
def arrow_type(kind: str) -> Any:
    pa = need("pyarrow")
    if kind in ("texts", "wholes", "numbers"):
        return pa.list_(arrow_type(kind[:-1]))
    made = {"text": pa.string, "whole": pa.int64, "number": pa.float64, "bool": pa.bool_, "bytes": pa.binary}
    return made[kind]()


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
    values = list(zip(*map(attrgetter(*(c.name for c in columns(name) if not c.extra)), rows), strict=True))
    if any(column.extra for column in columns(name)):
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
            kind = arrow_type(column.kind)
            table = table.append_column(column.name, pa.repeat(pa.scalar(column.default, kind), len(table)))
    order = [*schema(name).names, *(n for n in table.schema.names if n not in schema(name).names)]
    return table.select(order)


def rows_of(name: str, table: Table) -> Iterator[tuple[str, Any]]:
    """(key, row) of each row of a table."""
    table = completed(name, table)
    row, known = ROWS[name], [column for column in columns(name) if not column.extra]
    keys = table.column(KEYS[name]).to_pylist()
    values = []
    for column in known:
        cells = table.column(column.name).to_pylist()
        values.append([tuple(cell) for cell in cells] if column.kind in ("texts", "wholes", "numbers") else cells)
    names = [column.name for column in known]
    for key, *cells in zip(keys, *values, strict=True):
        yield key, row(**dict(zip(names, cells, strict=True)))


def without(table: Table, key: str, known: Iterable[str]) -> Table:
    """The rows whose key is not known."""
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    return table.filter(pc.invert(pc.is_in(table.column(key), value_set=pa.array(sorted(known), pa.string()))))


def exact(record: Record) -> Record:
    """The record as the store gives it back: a whole number in a column of fractions is one of them."""
    step = record.step
    numbers = (column.name for column in columns("steps") if column.kind == "number")
    whole: dict[str, Any] = {name: float(value) for name in numbers if type(value := getattr(step, name)) is int}
    return dataclasses.replace(record, step=dataclasses.replace(step, **whole)) if whole else record
