"""The table of a benchmark: what was found beside what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


class Line(Protocol):
    """A figure of a benchmark, as drawn."""

    @property
    def source(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def value(self) -> float | None: ...
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
    for name in ("data", "measure", "found", "bar", "", "rows"):
        table.add_column(name, justify="right" if name in ("found", "bar", "rows") else "left", overflow="fold")
    for line in lines:
        cells = (line.source, line.measure, _shown(line.value), _bar(line), _verdict(line))
        table.add_row(*cells, f"{line.rows:,}" if line.rows else "")
    notes = [Text(f"{line.source}, {line.measure}: {line.note}.", style="dim") for line in lines if line.note]
    return Group(table, *([Text(), *notes] if notes else []))


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _bar(line: Line) -> str:
    return "" if line.bar is None else f"{'≥' if line.at_least else '≤'} {line.bar:.1%}"


def _verdict(line: Line) -> str:
    return "" if line.met is None else "met" if line.met else "missed"
