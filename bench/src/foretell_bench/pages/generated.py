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
    """`chance`: how likely so few, or so many, inside would be if nine of ten networks belonged there."""
    lines = ["| kind of data | steps | mean | median | inside 90 % | chance |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {kind} | {errors.count} | {errors.mean:.1%} | {errors.median:.1%} | {covered.inside:.0%} | {covered.p_value:.2f} |"
        for kind, errors, covered in by_kind(steps)
    ]
    return "\n".join(lines) + "\n"
