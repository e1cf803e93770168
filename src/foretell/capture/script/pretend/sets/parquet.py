"""Parquet files that are not on this machine, which scripts read by pyarrow itself: real ones, of the columns they name."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.sets.columns import Spec, suggested, text
from foretell.capture.script.pretend.sets.mentions import mentioned_columns
from foretell.capture.script.session import Session

_GROUPS: Final = 64  # so that each of many processes finds one of its own
_ROWS: Final = 256  # of each
_FALLBACK: Final[Mapping[str, Spec]] = {"text": "text:2000"}


def install(session: Session) -> None:
    once_imported("pyarrow.parquet", lambda module: _adapt(module, session))


def _adapt(parquet: Any, session: Session) -> None:
    make: Callable[..., Any] = parquet.ParquetFile.__init__

    def either(source: Any) -> Any:
        if not isinstance(source, str | os.PathLike) or overlay.is_there(source) or "://" in os.fspath(source):
            return source
        columns = tuple(mentioned_columns(session.script.arguments)) or tuple(_FALLBACK)
        session.stand_in(f"tables in {os.path.dirname(os.fspath(source)) or '.'}", f"columns {', '.join(columns)}")
        return io.BytesIO(_written(columns))

    def init(self: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        make(self, either(source), *args, **kwargs)

    replace(parquet.ParquetFile, "__init__", init)
    for name in ("read_table", "read_schema", "read_metadata"):
        read: Callable[..., Any] = getattr(parquet, name)
        replace(parquet, name, functools.partial(_first, read, either))


def _first(read: Callable[..., Any], either: Callable[[Any], Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    return read(either(source), *args, **kwargs)


@functools.cache
def _written(columns: tuple[str, ...]) -> bytes:
    """The same rows in every group."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({name: [_value(suggested(name) or "string", i) for i in range(_ROWS)] for name in columns})
    file = io.BytesIO()
    with pyarrow.parquet.ParquetWriter(file, table.schema) as writer:
        for _ in range(_GROUPS):
            writer.write_table(table)
    return file.getvalue()


def _value(spec: Spec, row: int) -> Any:
    kind, *details = spec.split(":") if isinstance(spec, str) else ("class", str(len(spec)))
    if kind == "text":
        return text(int(details[0]) * 4)  # whole documents
    if kind in ("ints", "floats"):
        return [1] * int(details[0])
    if kind == "class":
        return row % int(details[0])
    if kind in ("int", "float", "bool"):
        return row
    if kind in ("messages", "sharegpt"):
        roles = ("user", "assistant") if kind == "messages" else ("human", "gpt")
        names = ("role", "content") if kind == "messages" else ("from", "value")
        return [dict(zip(names, (roles[i % 2], text(int(details[1]))), strict=True)) for i in range(int(details[0]))]
    return text(80)
