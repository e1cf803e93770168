"""The page of generated networks: its tables, filled in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretell_bench.pages.benches import markdown, put_table
from foretell_bench.tables.generated import FIRST, SECOND, BlindStep, by_kind, figures


def fill(path: Path, steps: Sequence[BlindStep]) -> None:
    for name, part in (("blind", FIRST), ("after", SECOND)):
        own = [s for s in steps if s.part == part]
        put_table(path, name, markdown(figures(own)))
        put_table(path, f"{name} kinds", _kinds(own))


def _kinds(steps: Sequence[BlindStep]) -> str:
    lines = ["| kind of data | steps | mean | median | inside 90 % |", "|---|---|---|---|---|"]
    lines += [
        f"| {kind} | {count} | {mean:.1%} | {median:.1%} | {inside:.0%} |"
        for kind, count, mean, median, inside in by_kind(steps)
    ]
    return "\n".join(lines) + "\n"
