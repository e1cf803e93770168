"""The one reader of public measurements: CSV files into tables and rows with clear names and SI units.

A file is known by its columns, not by its name; `importers.toml` lists the formats, their units and where they are from.

    rows = public_rows(folder, "llm_h100_sweep")      # every row of the file, as the TOML file names its columns
    taken = take(rows, make_example)                  # make_example raises LeftOut("no memory") for what it cannot use
    taken.items, taken.left_out, str(taken)           # "668 of 1,227 rows; left out: 559 crashed"
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

from foretell.errors import InputError
from foretell.store.segments import open_plain
from foretell.store.tables import Table, arrow_type, need
from foretell.units import GIB, MIB

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]  # our column name → value in SI units, None where the file has none

_UNITS: Final[Mapping[str, float]] = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "MiB": MIB, "GiB": GIB, "GB/s": 1e9, "TFLOP/s": 1e12, "W": 1.0,
    "M": 1e6, "G": 1e9, "percent": 1e-2,
}  # fmt: skip
_KINDS: Final[Mapping[str, str]] = {
    "text": "text", "digits": "text", "whole": "whole", "B": "whole", "number": "number", "flag": "bool",
} | dict.fromkeys(_UNITS, "number")  # fmt: skip
_LARGEST: Final = 512 * MIB  # of a file, unpacked; known ones have some ten
_ADDED: Final = ("source", "licence", "evaluation_only", "origin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A column of a file and what becomes of it."""

    ours: str
    kind: str
    theirs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of public file."""

    name: str
    row: str  # what one row is
    source: str
    licence: str
    columns: tuple[Renamed, ...]
    evaluation_only: bool = False

    def missing(self, header: Iterable[str]) -> list[str]:
        have = set(header)
        return [column.theirs for column in self.columns if column.theirs not in have]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    format: Format
    table: Table
    ignored: tuple[str, ...]  # columns of the file that the format does not name


@cache
def formats() -> Mapping[str, Format]:
    text = resources.files("foretell.store").joinpath("importers.toml").read_text(encoding="utf-8")
    return {
        name: Format(name=name, **(entry | {"columns": tuple(map(_renamed, entry["columns"].strip().splitlines()))}))
        for name, entry in tomllib.loads(text).items()
    }


def _renamed(line: str) -> Renamed:
    ours, kind, *theirs = line.split(maxsplit=2)
    if kind not in _KINDS or ours in _ADDED:
        raise ValueError(f"importers.toml: {line!r} has an unknown kind or takes a name that we add")
    return Renamed(ours=ours, kind=kind, theirs=theirs[0].strip() if theirs else ours)


def recognise(header: Iterable[str], path: Path) -> Format:
    """The format with all of its columns in the header."""
    names = list(header)
    nearest = max(formats().values(), key=lambda f: (len(f.columns) - len(f.missing(names))) / len(f.columns))
    whole = [f for f in formats().values() if not f.missing(names)]
    if whole:
        return max(whole, key=lambda f: len(f.columns))
    missing = nearest.missing(names)
    if len(missing) * 2 <= len(nearest.columns):
        raise InputError(
            f"{path} looks like {nearest.name}, but lacks the columns {', '.join(map(repr, missing))}. "
            "Get the whole file, or name the columns as the source does."
        )
    raise InputError(
        f"{path} has the columns {', '.join(map(repr, names[:8]))}{', …' if len(names) > 8 else ''}, "
        f"which is no public file we know. Known: {', '.join(formats())}. See docs/reference/store.md."
    )


def public_file(folder: Path, name: str) -> Path | None:
    """Where a public file lies in a folder, if it does."""
    return next((path for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if path.is_file()), None)


def public_rows(folder: Path, name: str) -> list[Row]:
    """Every row of a public file."""
    path = public_file(folder, name)
    if path is None:
        raise InputError(f"no {name}.csv or {name}.csv.gz in {folder}. Give the folder of public measurements.")
    read = read_public(path, formats()[name])
    rows: list[Row] = read.table.select([column.ours for column in read.format.columns]).to_pylist()
    return rows


def public_lines(folder: Path, name: str) -> list[Row]:
    """Every row of a public file of JSON lines, as it is there."""
    path = next((p for p in (folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl") if p.is_file()), None)
    if path is None:
        raise InputError(f"no {name}.jsonl or {name}.jsonl.gz in {folder}. Give the folder of public measurements.")
    rows = list[Row]()
    for number, line in enumerate(_content(path).splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path}, line {number}, is no JSON: {error}. Get the file anew.") from error
    return rows


class LeftOut(Exception):
    """A row that a loader cannot use; the text is the reason it is counted under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Generic[T]):
    """What a loader made of a file: every row became an item or is counted with the reason why not."""

    items: tuple[T, ...]
    left_out: Mapping[str, int]

    @property
    def rows(self) -> int:
        return len(self.items) + sum(self.left_out.values())

    def __str__(self) -> str:
        most_first = sorted(self.left_out.items(), key=lambda each: (-each[1], each[0]))
        why = ", ".join(f"{count:,} {reason}" for reason, count in most_first)
        return f"{len(self.items):,} of {self.rows:,} rows" + (f"; left out: {why}" if why else "")


def take(rows: Iterable[Row], make: Callable[[Row], T]) -> Selection[T]:
    """An item of each row, but for those at which `make` raises LeftOut."""
    items, left_out = list[T](), Counter[str]()
    for row in rows:
        try:
            items.append(make(row))
        except LeftOut as reason:
            left_out[str(reason)] += 1
    return Selection(items=tuple(items), left_out=dict(left_out))


def read_public(path: Path, wanted: Format | None = None) -> Imported:
    """A public CSV file (.csv or .csv.gz) as a table, of the wanted format or the one its columns show."""
    csv = need("pyarrow.csv")
    data = _content(path)
    try:
        header = csv.open_csv(io.BytesIO(data.split(b"\n", 1)[0] + b"\n")).schema.names if data.strip() else []
    except need("pyarrow").ArrowInvalid as error:
        raise InputError(f"{path} is no CSV file: {error}. Get it anew.") from error
    form = recognise(header, path)
    if wanted is not None and form is not wanted:
        raise InputError(f"{path} has the columns of {form.name}, not of {wanted.name}. Get the file anew.")
    types = {column.theirs: _read_as(column.kind) for column in form.columns}
    try:
        read = csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(block_size=len(data) + 1),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                strings_can_be_null=True,
                null_values=["", "nan", "NaN"],
            ),
        )
        arrays = {column.ours: _in_si(read.column(column.theirs), column.kind) for column in form.columns}
    except need("pyarrow").ArrowInvalid as error:
        raise InputError(
            f"{path} cannot be read as {form.name}: {error}. Get the file anew, or mend that value."
        ) from error
    added = {
        "source": form.source,
        "licence": form.licence,
        "evaluation_only": form.evaluation_only,
        "origin": hashlib.sha256(data).hexdigest()[:16],  # two versions of a file have two
    }
    pa = need("pyarrow")
    table = pa.table(arrays | {name: pa.repeat(value, read.num_rows) for name, value in added.items()})
    return Imported(format=form, table=table, ignored=tuple(name for name in header if name not in types))


def _content(path: Path) -> bytes:
    try:
        with open_plain(path, os.O_RDONLY) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            data = (gzip.GzipFile(fileobj=raw) if packed else raw).read(_LARGEST + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is not a whole gzip file ({error}). Get it anew.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    if len(data) > _LARGEST:
        raise InputError(f"{path} has more than {_LARGEST // MIB} MiB, unpacked. It is no public file we know.")
    return data


def _read_as(kind: str) -> Any:
    """Whole numbers come as `8.0` from tools that have no missing integers."""
    kind = _KINDS[kind]
    return arrow_type("number" if kind == "whole" else kind)


def _in_si(values: Any, kind: str) -> Any:
    pc = need("pyarrow.compute")
    if kind == "digits":
        return pc.replace_substring_regex(values, pattern=r"\.0$", replacement="")
    if _KINDS[kind] == "whole":
        return values.cast(arrow_type("whole"))  # refuses a fraction
    scale = _UNITS.get(kind, 1.0)
    if scale == 1.0:
        return values
    # Dividing by a round number is exact where multiplying by its inverse is not.
    return pc.divide(values, round(1 / scale)) if scale < 1 else pc.multiply(values, scale)
