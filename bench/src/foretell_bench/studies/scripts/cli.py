"""`foretell bench scripts`: training scripts measured on a device, forecast, and captured as Workloads by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.terminal import guarded, say
from foretell_bench.checkout import RESULTS

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Only these jobs; all of them without.")]
Checkouts = Annotated[
    Path | None,
    typer.Option(
        "--checkouts", metavar="FOLDER", help="Public scripts, in checkouts here named owner+name, not our examples."
    ),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="A JSON file, written as results come.")]
PUBLIC = RESULTS / "public_scripts.json"
LATER = RESULTS / "public_scripts_open.json"
CONFIGURATIONS = RESULTS / "public_configs.json"

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
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="PROFILE", help="What `adapt` made of this machine.")
    ] = None,
) -> None:
    """Forecast the scripts and print a table of errors."""
    from foretell_bench.studies.scripts.forecasts import run

    run(measured, names or (), on, save, checkouts, profile)


@app.command()
@guarded
def same(names: Names = None) -> None:
    """Ten jobs as scripts and as Workloads written by hand: whether their steps are the same, op for op."""
    from foretell_bench.studies.scripts.same_steps import run

    run(names or ())


@app.command()
@guarded
def coverage(out: Out, names: Names = None) -> None:
    """Examples of our own in the style of many projects, and a few of archives: which give a forecast without an edit."""
    from foretell_bench.studies.scripts.coverage import run

    run(out, names or ())


@app.command()
@guarded
def public(
    checkouts: Annotated[
        Path | None, typer.Option("--checkouts", metavar="FOLDER", help="Checkouts of the list, named owner+name.")
    ] = None,
    drawn: Annotated[
        int | None, typer.Option("--drawn", metavar="N", help="Only scripts of this draw; 0: those of none.")
    ] = None,
    python: Annotated[
        Path | None, typer.Option("--python", metavar="INTERPRETER", help="Has the libraries of the scripts.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Scripts that run at a time.")] = 1,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Results; what is there stays.")] = PUBLIC,
    later: Annotated[
        Path, typer.Option("--later", metavar="FILE", help="Results of scripts that are open by now, to show too.")
    ] = LATER,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Also write the page of results.")] = None,
) -> None:
    """Public scripts as published: which give a forecast, and is it right; without checkouts, show the results."""
    from foretell_bench.studies.scripts import public
    from foretell_bench.studies.scripts.public_list import left_out, scripts
    from foretell_bench.studies.scripts.public_page import write_page

    chosen = [script for script in scripts() if drawn in (None, script.drawn)]
    if checkouts is not None:
        public.Examination(checkouts=checkouts, python=python).run(chosen, out, jobs)
    results = public.judged_anew(public.read_results(out))
    by_set = public.sets(results, public.judged_anew(public.read_results(later)), scripts())
    say(public.show(by_set))
    if page is not None:
        write_page(page, by_set, left_out())


@app.command()
@guarded
def configurations(
    checkouts: Annotated[
        Path | None, typer.Option("--checkouts", metavar="FOLDER", help="Checkouts of the list, named owner+name.")
    ] = None,
    first: Annotated[
        bool | None, typer.Option("--first/--others", help="Only files that were drawn first, or only the others.")
    ] = None,
    python: Annotated[Path | None, typer.Option("--python", metavar="INTERPRETER", help="That runs Foretell.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Results; what is there stays.")] = CONFIGURATIONS,
) -> None:
    """Public configurations as published: which give a forecast, and is it right; without checkouts, judge the results anew."""
    from foretell_bench.studies.scripts import public_configs
    from foretell_bench.studies.scripts.public import write_results

    if checkouts is not None:
        public_configs.examine(checkouts, out, first=first, python=python)
    results = public_configs.judged_anew(out)
    write_results(out, results)
    say(public_configs.show(results))
