"""The page of all figures that have a bar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.terminal import guarded


@guarded
def status(
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="Write this page.")],
    results: Annotated[Path, typer.Option("--results", metavar="FOLDER", help="Saved results.")] = Path(
        "bench/results"
    ),
    notes: Annotated[
        Path, typer.Option("--notes", metavar="FILE", help="What is written by hand: next, and in doubt.")
    ] = Path("bench/notes/status.md"),
) -> None:
    """The page of all figures that have a bar, from saved results."""
    from foretell_bench.pages.status import write_page

    write_page(page, results, notes)
