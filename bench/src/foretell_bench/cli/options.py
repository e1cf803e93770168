"""What the verbs share: options, and how figures are answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.terminal import answer

if TYPE_CHECKING:
    from foretell_bench.tables.figures import Figure

PublicData = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes that forecast side by side.")]
Answers = Annotated[
    Path | None,
    typer.Option("--answers", metavar="FILE", help="Keep each forecast here, to go on after a run was stopped."),
]
Saved = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Show what --save wrote, and forecast nothing.")
]
OnlyOpen = Annotated[bool, typer.Option("--open", help="Only jobs that may be looked at while Foretell is changed.")]
Page = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Fill in the table of this page.")]


def show(found: Sequence[Figure], as_json: bool) -> None:
    """Answer with figures and their bars."""
    from foretell_bench.pages.benches import bench_table

    answer(as_json, lambda: [figure.to_dict() for figure in found], lambda width: bench_table(found))
