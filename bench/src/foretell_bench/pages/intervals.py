"""How many steps of each class their intervals contain, as tables: for the terminal, and for docs/accuracy/other-devices.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from foretell_bench.tables.intervals import Held

_HEADS = ("steps", "left out", "rows", "inside 90 %", "high over low", "forecast over measured, median")


def drawn(found: Sequence[Held]) -> RenderableType:
    table = Table(*_HEADS, box=None, pad_edge=False, header_style="dim")
    for held in found:
        table.add_row(*_row(held))
    return table


def markdown(found: Sequence[Held]) -> str:
    """What misses a bar is bold."""
    lines = [_HEADS, ["---"] * len(_HEADS), *(_bold(held) for held in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(held: Held) -> tuple[str, ...]:
    return held.steps, held.left_out, f"{held.rows:,}", f"{held.held:.0%}", f"{held.width:.2f}", f"{held.ratio:.3f}"


def _bold(held: Held) -> list[str]:
    misses = (False, False, False, held.misses, held.is_too_wide, held.is_off)
    return [f"**{text}**" if miss else text for text, miss in zip(_row(held), misses, strict=True)]
