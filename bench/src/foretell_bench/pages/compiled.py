"""The page of compiled steps: its tables, filled in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from foretell_bench.errors import Errors
from foretell_bench.pages.benches import markdown, put_table
from foretell_bench.tables.compiled import CompiledStep, figures, part_of


def fill(path: Path, steps: Sequence[CompiledStep]) -> None:
    """Tables of the open steps, or of the blind ones; those of the other parts stay as they are."""
    part = part_of(steps)
    put_table(path, part, markdown(list(figures(steps))))
    put_table(path, f"{part} families", "\n".join(_families(steps)) + "\n")


def _families(steps: Sequence[CompiledStep]) -> Iterator[str]:
    yield "| family | steps | device time, mean | step time, mean | peak allocated, mean |"
    yield "|---|---|---|---|---|"
    compiled = [step for step in steps if step.fused]
    for family in sorted({step.family for step in compiled}):
        own = [step for step in compiled if step.family == family]
        plain = [s.allocated for s in own if s.mode == "default"]  # those of CUDA graphs are not modelled
        means = map(_mean, ([s.device for s in own], [s.step for s in own], plain))
        yield f"| {family or 'other'} | {len(own)} | " + " | ".join(means) + " |"


def _mean(pairs: Sequence[tuple[float, float]]) -> str:
    return f"{Errors.of([p for _, p in pairs], [m for m, _ in pairs]).mean:.1%}" if pairs else "–"
