"""Laws for people: how often each was checked, and where it is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from foretell.report.terminal import grid

if TYPE_CHECKING:
    from foretell.laws.suite import Checked, Report

_SHOWN = 3  # worst cases of a law


def laws_table(found: Report, *, explain: bool = False) -> RenderableType:
    """All laws, then the worst cases of those that are broken."""
    table = grid("Law", "Checked", "Broken", "", left=("Law", ""))
    for each in found.laws:
        table.add_row(each.law.name, f"{each.checked:,}", f"{each.broken:,}", _verdict(each))
    parts: list[RenderableType] = [table]
    for each in found.broken:
        parts += ["", f"{each.law.name}: {each.law.says}"]
        parts += [f"  {c.where}: {c.number:.4g} is {c.beyond:.1%} beyond {c.limit:.4g}" for c in each.worst[:_SHOWN]]
    if explain:
        parts.append("")
        for each in found.laws:
            parts.append(f"{each.law.name}, over {each.law.over}: {each.law.says} Tolerance {_tolerance(each)}.")
    checked = sum(each.checked for each in found.laws)
    return Group(*parts, "", f"{checked:,} comparisons of {found.answers:,} forecasts.")


def _verdict(each: Checked) -> str:
    return "not checked" if not each.checked else "BROKEN" if each.broken else "kept"


def _tolerance(each: Checked) -> str:
    tolerance = each.law.tolerance
    return f"{tolerance.part:.1%}: {tolerance.why}" if tolerance.part else tolerance.why
