"""Tables that pandas would read: columns appear as they are named, with the kind of value that their name says."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable
from sys import _getframe
from typing import Any, Final

import numpy as np

from foretell.capture.reads import is_library
from foretell.capture.script.guesses import COLUMNS
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files.callers import (
    endings_in,
    function_source,
    is_ready,
    reading_frame,
    source_of,
    words_of,
)
from foretell.capture.script.pretend.files.kinds import PICTURES
from foretell.capture.script.pretend.files.known_tables import columns_of, ratings_in
from foretell.capture.script.pretend.files.unknown import value_of
from foretell.capture.script.session import Session

_THINGS: Final = 1999
_ROWS: Final = 4096
_FEATURES: Final = 31  # columns of numbers, of a table of which no column is named
_READERS: Final = (
    "read_csv",
    "read_table",
    "read_parquet",
    "read_json",
    "read_pickle",
    "read_excel",
    "read_feather",
    "read_hdf",
)
_BY_COLUMN: Final = ("groupby", "sort_values", "set_index", "drop_duplicates", "value_counts", "dropna")
_LABELS: Final = ("label", "target", "class", "category", "y", "score", "rating", "sentiment", "polarity")
_CELLS: Final = re.compile(r"\.(?:i?loc|ix|i?at)\[[^\[\],]+,\s*(\d+)\s*\]")  # of a column that has a number, no name
_JOINED: Final = re.compile(r"join\([^()]*\.(?:i?loc|ix|i?at)\[[^\[\],]+,\s*(\d+)\s*\]")
_DATES: Final = ("date", "datetime", "timestamp", "time")


def install(session: Session, pandas: Any) -> None:
    _let_arrays_be_written(pandas)
    table = _table_class(session, pandas)
    for name in _READERS:
        if hasattr(pandas, name):
            setattr(pandas, name, _reading(session, pandas, table, getattr(pandas, name)))


def _let_arrays_be_written(pandas: Any) -> None:
    """Arrays of a table are the reader's own, as they were before pandas 3: scripts write to them."""

    def own(read: Callable[..., Any]) -> Callable[..., Any]:
        def to_numpy(*args: Any, **kwargs: Any) -> Any:
            found = read(*args, **kwargs)
            return found.copy() if isinstance(found, np.ndarray) and not found.flags.writeable else found

        return to_numpy

    for kind in (pandas.DataFrame, pandas.Series):
        kind.to_numpy = own(kind.to_numpy)
        kind.values = property(own(kind.values.fget))


def _reading(session: Session, pandas: Any, table: Any, read: Callable[..., Any]) -> Callable[..., Any]:
    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return read(*args, **kwargs)
        except (FileNotFoundError, OSError) as error:
            path = args[0] if args else next(iter(kwargs.values()))
            frame = reading_frame()
            if not isinstance(path, str | os.PathLike) or frame is None or is_ready(frame, os.fspath(path)):
                raise
            known = columns_of(os.path.basename(os.fspath(path)))
            if known is not None:
                session.stand_in(f"table {path}", f"{known[1]:,} rows of {len(known[0])} columns")
                whole = pandas.DataFrame({name: column(pandas, name, known[1]) for name in known[0]})
                return _shaped(pandas, whole, kwargs)
            if (rated := ratings_in(os.path.basename(os.fspath(path)))) is not None:
                session.stand_in(f"table {path}", f"{rated['userId'].max():,} users, {rated['movieId'].max():,} items")
                names = kwargs.get("names") or (range(4) if kwargs.get("header", 0) is None else rated)
                return pandas.DataFrame(dict(zip(names, rated.values(), strict=False)))
            if isinstance(error, FileNotFoundError) or not overlay.is_there(path):
                session.stand_in(
                    f"table {path}", f"{_ROWS:,} rows; columns as the script names them", decides_size=True
                )
                return _made(pandas, table, kwargs, frame)
            raise

    return either


def _made(pandas: Any, table: Any, how: dict[str, Any], frame: types.FrameType) -> Any:
    """With the columns that the reader is given names for."""
    names = how.get("names") or how.get("usecols") or how.get("columns")
    ending = next(iter(endings_in(words_of(frame), PICTURES)), ".jpg")
    if names is not None and not callable(names):
        made = table({name: column(pandas, str(name), _ROWS, ending) for name in names})
    elif "header" in how and how["header"] is None:
        kinds = _numbered(frame, how.get("sep") or how.get("delimiter"))
        made = table({i: column(pandas, kind, _ROWS, ending) for i, kind in enumerate(kinds)})
    else:
        made = table(index=pandas.RangeIndex(_ROWS))
    return _shaped(pandas, made, {**how, "usecols": None})


def _shaped(pandas: Any, made: Any, how: dict[str, Any]) -> Any:
    """With the columns, the index and the dates that the reader is asked for."""

    def named(wanted: Any) -> list[Any]:
        """Columns by their names or their places; none that is not there."""
        plain = wanted if isinstance(wanted, list | tuple) else [wanted]
        names = list(pandas.DataFrame.columns.__get__(made))
        places = [names[n] if isinstance(n, int) and n not in names and -1 < n < len(names) else n for n in plain]
        return [name for name in places if name in names]

    if (wanted := how.get("usecols")) is not None and not callable(wanted) and (found := named(list(wanted))):
        made = made[found]
    dates = how.get("parse_dates")
    index = how.get("index_col")
    for name in named(dates) if isinstance(dates, list | tuple) else ():
        made[name] = pandas.to_datetime(made[name])
    if index is not None and index is not False and (found := named(index)):
        made = made.set_index(found if len(found) > 1 else found[0])
        if dates is True:
            made.index = pandas.to_datetime(made.index)
    return made


def _numbered(frame: types.FrameType, mark: str | None) -> list[str]:
    """Names for columns that are looked at by their number: two at least.

    Transcripts, whose parts a bar divides, have a name and texts; a column that is joined to a folder has names of files.
    """
    module = source_of(frame.f_code.co_filename)
    found = [*re.findall(r"\[:,\s*:?(\d+)", function_source(frame)), *_CELLS.findall(module)]
    count = max([2, *(int(number) + 1 for number in found if int(number) < 1000)])
    names = {int(number) for number in _JOINED.findall(module)}
    if mark == "|":
        return ["file", *["text"] * (count - 1)]
    return ["filename" if i in names else str(i) for i in range(count)]


def column(pandas: Any, name: str, rows: int, ending: str = ".jpg") -> Any:
    """Values of a column of that name."""
    plain = name.lower()
    if plain in _DATES:
        return pandas.date_range("2016-07-01", periods=rows, freq="h").astype(str)
    if any(word in plain for word in _LABELS):
        return np.arange(rows) % 2
    first = value_of(plain, 1)
    if isinstance(first, str) and not first.isdigit():
        values = [str(value_of(plain, row)) for row in range(rows)]
        return [value.replace(".jpg", ending) for value in values]
    if plain in ("id", "idx", "index", "user", "item", "userid", "movieid", "user_id", "item_id") or plain == "0":
        return np.arange(rows)
    if plain.endswith("id"):  # of things that rows share, as `uid` and `productId`
        return np.arange(rows) % _THINGS
    return np.random.default_rng(len(plain)).random(rows)


class _Row:
    """A row of a table, which has every column."""

    def __init__(self, pandas: Any, row: Any, number: Any) -> None:
        self._pandas, self._row, self._number = pandas, row, number

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self._row.index:
            return list(column(self._pandas, key, int(self._number) + 1))[-1]
        return self._row[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name) if hasattr(self._row, name) else self[name]


def _table_class(session: Session, pandas: Any) -> Any:
    places = _places(pandas)

    class Table(pandas.DataFrame):  # type: ignore[misc]
        """A table of which a column is made when it is named."""

        @property
        def _constructor(self) -> Any:
            return Table

        def __getitem__(self, key: Any) -> Any:
            wanted = [key] if isinstance(key, str) else key if isinstance(key, list) else []
            for name in [n for n in wanted if isinstance(n, str) and n not in self.columns]:
                super().__setitem__(name, column(pandas, name, len(self)))
            return super().__getitem__(key)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name in ("dtype", "name"):
                return super().__getattr__(name)
            try:
                return super().__getattr__(name)
            except AttributeError:
                return self[name]

        def _named(self) -> Any:
            """With some columns where none was named: a file and a label, or numbers where a run has failed with those."""
            if not len(super().columns):
                numbers = session.guesses.about(COLUMNS, "files") == "numbers"
                for name in map(str, range(_FEATURES)) if numbers else ("filename", "label"):
                    super().__setitem__(name, column(pandas, name, len(self)))
            return self

        @property
        def columns(self) -> Any:
            if is_library(_getframe(1).f_code.co_filename):
                return super().columns
            return pandas.DataFrame.columns.__get__(self._named())

        @columns.setter
        def columns(self, names: Any) -> None:
            if not len(pandas.DataFrame.columns.__get__(self)):
                for name in names:
                    super().__setitem__(name, column(pandas, str(name), len(self)))
            else:
                pandas.DataFrame.columns.__set__(self, names)

        @property
        def loc(self) -> Any:
            return places(name="loc", obj=self)

        @property
        def iloc(self) -> Any:
            self._named()
            return super().iloc

        @property
        def values(self) -> Any:
            self._named()
            return super().values

        def to_numpy(self, *args: Any, **kwargs: Any) -> Any:
            self._named()
            return super().to_numpy(*args, **kwargs)

        def iterrows(self) -> Any:
            return ((i, _Row(pandas, row, i)) for i, row in super().iterrows())

        def drop(self, labels: Any = None, *args: Any, **kwargs: Any) -> Any:
            return super().drop(labels, *args, **{**kwargs, "errors": "ignore"})

    for name in _BY_COLUMN:
        setattr(Table, name, _naming(getattr(pandas.DataFrame, name)))
    return Table


def _places(pandas: Any) -> Any:
    class Places(type(pandas.DataFrame().loc)):  # type: ignore[misc]
        """Rows and columns by name, of which columns are made first."""

        def __getitem__(self, key: Any) -> Any:
            columns = key[1] if isinstance(key, tuple) and len(key) == 2 else None
            if isinstance(columns, str | list):
                self.obj[columns]
            return super().__getitem__(key)

    return Places


def _naming(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that names columns, which are made first."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args[:1], *(kwargs.get(key) for key in ("by", "subset", "keys", "columns"))]
        for value in given:
            for name in value if isinstance(value, list | tuple) else [value]:
                if isinstance(name, str):
                    self[name]
        return method(self, *args, **kwargs)

    return run
