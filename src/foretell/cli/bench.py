"""`foretell bench`: how wrong Foretell is, on measurements others have published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.terminal import AsJson, console_of, guarded, print_drawn, print_json, progress

app = typer.Typer(
    name="bench",
    help="Compare what Foretell says with what was measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[
    Path, typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements, as CSV files.")
]


@app.callback()
def _bench() -> None:
    """Compare what Foretell says with what was measured."""


@app.command()
@guarded
def distributed(
    data: Data,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="SOURCE", help="Only this source.")] = None,
    most: Annotated[
        int,
        typer.Option("--rows", min=1, metavar="N", help="Forecast at most N rows of a source; they are drawn evenly."),
    ] = 120,
    as_json: AsJson = False,
) -> None:
    """Steps of several devices: plans, collectives, scaling, memory."""
    from foretell.bench import run

    with progress() as say:
        figures = run(data, only or (), say, most)
    if as_json:
        print_json([figure.to_dict() for figure in figures])
    else:
        from foretell.report.benches import bench_table

        print_drawn(bench_table(figures), console_of())
