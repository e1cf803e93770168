"""How many steps of each class their intervals contain, as tables: for the terminal, and for docs/accuracy/other-devices.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from foretell_bench.tables.intervals import IntervalClass

_HEADS = ("steps", "left out", "rows", "inside 90 %", "high over low", "forecast over measured, median")


def drawn(found: Sequence[IntervalClass]) -> RenderableType:
    table = Table(*_HEADS, box=None, pad_edge=False, header_style="dim")
    for each in found:
        table.add_row(*_row(each))
    return table


def markdown(found: Sequence[IntervalClass]) -> str:
    """What misses a bar is bold."""
    lines = [_HEADS, ["---"] * len(_HEADS), *(_bold(each) for each in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(each: IntervalClass) -> tuple[str, ...]:
    return each.steps, each.left_out, f"{each.rows:,}", f"{each.inside:.0%}", f"{each.width:.2f}", f"{each.ratio:.3f}"


def _bold(each: IntervalClass) -> list[str]:
    misses = (False, False, False, each.misses, each.is_too_wide, each.is_off)
    return [f"**{text}**" if miss else text for text, miss in zip(_row(each), misses, strict=True)]
