"""The table of a benchmark: what was found, and its bar."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.errors import InputError


class Line(Protocol):
    """A figure of a benchmark, as drawn."""

    @property
    def source(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def zero_shot(self) -> float | None: ...
    @property
    def bar(self) -> float | None: ...
    @property
    def at_least(self) -> bool: ...
    @property
    def rows(self) -> int: ...
    @property
    def note(self) -> str: ...
    @property
    def met(self) -> bool | None: ...


def bench_table(lines: Sequence[Line]) -> RenderableType:
    """One line a figure; notes stand below, so that figures stay in a row."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    found = _columns(lines)
    for name in ("data", "measure", *found, "bar", "", "rows"):
        table.add_column(name, justify="right" if name in (*found, "bar", "rows") else "left", overflow="fold")
    for line in lines:
        cells = (line.source, line.measure, *_values(line, len(found)), _bar(line), _verdict(line))
        table.add_row(*cells, f"{line.rows:,}" if line.rows else "")
    notes = [Text(f"{line.source}, {line.measure}: {line.note}.", style="dim") for line in lines if line.note]
    return Group(table, *([Text(), *notes] if notes else []))


def fill_page(path: Path, name: str, lines: Sequence[Line]) -> None:
    """Put the figures where a page asks for them: between `<!-- table: NAME -->` and `<!-- end -->`."""
    put_table(path, name, markdown(lines))


def put_table(path: Path, name: str, table: str) -> None:
    put_tables(path, {name: table})


def put_tables(path: Path, tables: Mapping[str, str]) -> None:
    """Fill in those that the page has a place for: figures are in docs/accuracy, what lies behind them in bench/notes."""
    try:
        page = filled = path.read_text()
    except OSError as error:
        raise InputError(f"the page {path} cannot be read: {error.strerror}. Give --page a Markdown file.") from None
    places = 0
    for name, table in tables.items():
        place = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        filled, found = place.subn("\\g<1>" + table.replace("\\", r"\\") + "\\g<2>", filled)
        places += found
    if not places:
        wanted = " or ".join(f"`<!-- table: {name} -->`" for name in tables)
        raise InputError(f"{path} has no place for the table. Write {wanted} and `<!-- end -->` there.")
    if filled != page:
        path.write_text(filled)


def side_by_side(lines: Sequence[Line], names: Mapping[str, str]) -> str:
    """A row for each source, a column for each way, the word its measure begins with; `names` says what it is called."""
    rows = [f"| | rows | {' | '.join(names.values())} |", "|---|---|" + "---|" * len(names)]
    for source, same in groupby(lines, key=lambda line: line.source):
        found = {line.measure.partition(",")[0]: line for line in same}
        values = [_shown(found[way].value) if way in found else "" for way in names]
        rows.append(f"| {source.partition(': ')[2]} | {next(iter(found.values())).rows:,} | {' | '.join(values)} |")
    return "\n".join(rows) + "\n"


def markdown(lines: Sequence[Line]) -> str:
    """One row a figure, its source named once; what misses its bar is bold."""
    found = _columns(lines)
    rows = [f"| data | measure | {' | '.join(found)} | bar | rows |", "|---|---|" + "---|" * len(found) + "---|---|"]
    for source, same in groupby(lines, key=lambda line: line.source):
        for number, line in enumerate(same):
            *first, value = _values(line, len(found))
            values = [*first, f"**{value}**" if line.met is False else value]
            named = f"`{source}`" if number == 0 else ""
            rows.append(f"| {named} | {line.measure} | {' | '.join(values)} | {_bar(line)} | {line.rows:,} |")
    return "\n".join(rows) + "\n"


def _columns(lines: Sequence[Line]) -> tuple[str, ...]:
    return ("zero-shot", "with a profile") if any(line.zero_shot is not None for line in lines) else ("found",)


def _values(line: Line, columns: int) -> list[str]:
    """What needs no forecast stands in the last column."""
    return [*([("" if line.zero_shot is None else _shown(line.zero_shot))] if columns > 1 else []), _shown(line.value)]


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _bar(line: Line) -> str:
    return "" if line.bar is None else f"{'≥' if line.at_least else '≤'} {line.bar:.1%}"


def _verdict(line: Line) -> str:
    return "" if line.met is None else "met" if line.met else "missed"
