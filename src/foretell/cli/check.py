"""`foretell check`: fail where a change makes a step slower or bigger than agreed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli import options
from foretell.cli.options import OUTPUT, option
from foretell.cli.terminal import answer, progress, say
from foretell.errors import RequirementNotMet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from foretell.planner.agreed import Checked


def check(
    file: Annotated[
        Path, typer.Argument(metavar="PLAN.YAML", help="Steps with their limits (docs/guide/pipelines.md).")
    ],
    as_json: options.AsJson = False,
    markdown: Annotated[bool, option(OUTPUT, "--markdown", "Print a table for a pull request.")] = False,
    model: options.Model = None,
) -> None:
    """Forecast the steps of a file and exit with 3 if one is slower, bigger or dearer than agreed."""
    from foretell.forecasting.forecast import DEFAULT_MODEL
    from foretell.planner.agreed import check as checked
    from foretell.planner.agreed import read_agreement

    agreement = read_agreement(file)
    with progress() as report:
        found = checked(agreement, model=model or DEFAULT_MODEL, progress=report)
    if markdown:
        say(_markdown(found))
    else:
        answer(as_json, lambda: [asdict(c) for c in found], lambda width: _table(found))
    if over := [c for c in found if not c.kept]:
        what = "; ".join(f"{c.name}: {c.what} {c.shown[1]}, agreed {c.shown[0]}" for c in over)
        raise RequirementNotMet(f"{len(over)} of {len(found)} limits are not kept. {what}.")


def _table(found: Sequence[Checked]) -> RenderableType:
    from foretell.report.terminal import grid

    table = grid("Step", "", "Agreed", "Forecast", "Change", "", left=("Step", ""))
    for c in found:
        table.add_row(c.name, c.what, *c.shown, _change(c), "kept" if c.kept else "NOT KEPT")
    return table


def _markdown(found: Sequence[Checked]) -> str:
    lines = ["| step | what | agreed | forecast | change | |", "|---|---|---|---|---|---|"]
    for c in found:
        cells = (c.name.replace("|", "\\|"), c.what, *c.shown, _change(c), "✅" if c.kept else "❌")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _change(c: Checked) -> str:
    return f"{c.forecast / c.limit - 1:+.0%}".replace("%", " %") if c.limit else "–"
