"""`foretell bench scripts`: training scripts measured on a device, forecast, and captured as Workloads by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.terminal import guarded

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Only these jobs; all of them without.")]
Checkouts = Annotated[
    Path | None,
    typer.Option(
        "--checkouts", metavar="FOLDER", help="Public scripts, in checkouts here named owner+name, not our examples."
    ),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="A JSON file, written as results come.")]

app = typer.Typer(name="scripts", help="Training scripts as they are.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
@guarded
def measure(out: Out, names: Names = None, checkouts: Checkouts = None) -> None:
    """Run the scripts on this machine's accelerator and measure their steps; `host` measures its host."""
    from foretell_bench.studies.scripts.on_device import run, run_public

    if checkouts:
        run_public(out, checkouts, names or ())
    else:
        run(out, names or ())


@app.command()
@guarded
def compare(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED", help="What `measure` wrote.")],
    names: Names = None,
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="What they were measured on.")] = "h200",
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep the forecasts here.")] = None,
    checkouts: Checkouts = None,
) -> None:
    """Forecast the scripts and print a table of errors."""
    from foretell_bench.studies.scripts.forecasts import run

    run(measured, names or (), on, save, checkouts)


@app.command()
@guarded
def same(names: Names = None) -> None:
    """Ten jobs as scripts and as Workloads written by hand: whether their steps are the same, op for op."""
    from foretell_bench.studies.scripts.same_steps import run

    run(names or ())


@app.command()
@guarded
def coverage(out: Out, names: Names = None) -> None:
    """Scripts and configurations of many projects: which give a forecast without an edit."""
    from foretell_bench.studies.scripts.coverage import run

    run(out, names or ())
