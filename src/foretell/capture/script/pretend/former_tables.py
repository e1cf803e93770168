"""What tables of pandas did when a script was written, and do no longer."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from typing import Any

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.former import add
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    once_imported("pandas", _pandas)


def _pandas(module: Any) -> None:
    def append(self: Any, other: Any, ignore_index: bool = False, **how: Any) -> Any:
        rows = module.DataFrame([other]) if isinstance(other, dict | module.Series) else other
        rows = module.DataFrame(rows) if isinstance(rows, list) else rows
        return module.concat([self, rows], ignore_index=ignore_index)

    add(module.DataFrame, "append", append)
    add(
        module.Series,
        "append",
        lambda self, other, ignore_index=False: module.concat([self, other], ignore_index=ignore_index),
    )
    add(module, "np", sys.modules.get("numpy"))
    for kind in (module.DataFrame, module.Series):
        add(kind, "iteritems", kind.items)
        add(kind, "ix", property(_ByNameOrPlace))
        add(kind, "as_matrix", lambda self, columns=None: (self if columns is None else self[columns]).to_numpy())
    _count_weeks(module)
    values = module.Series.values.fget

    def writable(self: Any) -> Any:
        """What a column's numbers are in was once written into."""
        array = values(self)
        if not getattr(getattr(array, "flags", None), "writeable", True):
            array = array.view()
            with contextlib.suppress(ValueError):
                array.flags.writeable = True
        return array

    module.Series.values = property(writable)
    _read_words(module)
    _write_through()


def _count_weeks(module: Any) -> None:
    """`weekofyear` and `week` of dates, in an index and in a column."""
    index = property(lambda self: module.Index(self.isocalendar().week.to_numpy("int64")))
    column = property(lambda self: self.isocalendar().week.astype("int64"))
    for name in ("weekofyear", "week"):
        add(module.DatetimeIndex, name, index)
        add(module.Timestamp, name, property(lambda self: self.isocalendar()[1]))
        add(module.core.indexes.accessors.DatetimeProperties, name, column)


class _ByNameOrPlace:
    """`table.ix[rows, columns]`: as they are called, or else as they lie."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._table.loc[key]
        except (KeyError, TypeError):
            return self._table.iloc[key]


def _write_through() -> None:
    """`table.column[row] = value` changed the table."""
    with contextlib.suppress(ImportError, AttributeError):
        manager: Any = importlib.import_module("pandas.core.internals.managers").SingleBlockManager
        write = manager.setitem_inplace

        def setitem_inplace(self: Any, *args: Any, **how: Any) -> Any:
            manager._has_no_reference = lambda self, block: True
            try:
                return write(self, *args, **how)
            finally:
                del manager._has_no_reference

        manager.setitem_inplace = setitem_inplace


def _read_words(module: Any) -> None:
    read = module.read_csv

    @functools.wraps(read)
    def read_csv(*args: Any, delim_whitespace: bool = False, **given: Any) -> Any:
        return read(*args, **({"sep": r"\s+"} if delim_whitespace else {}), **given)

    if "delim_whitespace" not in inspect.signature(read).parameters:
        module.read_csv = read_csv
