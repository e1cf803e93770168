"""`foretell bench fit`: what the catalog ships about links, fitted on measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.terminal import guarded, say

app = typer.Typer(
    name="fit",
    help="Fit how links perform in collectives, and refresh prices, as the catalog ships them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[Path, typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements.")]
Write = Annotated[bool, typer.Option("--write", help="Write the catalog of this checkout.")]


@app.command()
@guarded
def fabrics(
    data: Data,
    write: Write = False,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="FABRIC", help="Only this one.")] = None,
    each: Annotated[bool, typer.Option("--each", help="Leave each topology out in turn, too: minutes.")] = False,
) -> None:
    """Fabrics and latencies of links, with errors on topologies left out of the fit."""
    from foretell_bench.fitting import fabrics as fitting
    from foretell_bench.fitting.collectives import measured_rows

    rows = [row for row in measured_rows(data) if not only or row.topology.fabric in only]
    fits = fitting.fit_all(rows)
    fitting.report(rows, fits, say)
    if each:
        left_out = fitting.each_left_out(rows, fits)
        fitting.by_topology([pair for found in left_out.values() for pair in found], say)
        fitting.by_fabric(left_out, say)
    if write:
        fitting.write(fits, rows)


@app.command()
@guarded
def networks(
    write: Write = False,
    each: Annotated[bool, typer.Option("--each", help="Leave each source out in turn, too: minutes.")] = False,
) -> None:
    """Networks between nodes, on figures that operators published."""
    from foretell_bench.fitting import networks as fitting

    made = fitting.fit_all()
    fitting.report(made, say)
    if each:
        fitting.report_left_out(fitting.each_left_out(), say)
    if write:
        fitting.write(made)


@app.command()
@guarded
def compiled(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The model's, named as its version.")],
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="Measured compiled steps.")] = Path(
        "bench/data/h200-compiled"
    ),
    inherits: Annotated[
        str, typer.Option("--inherits", metavar="NAME", help="The shipped version that all else is taken from.")
    ] = "h200-2026.11.6",
) -> None:
    """Fused kernels and the host's launches of compiled steps, as a version that inherits all else."""
    from foretell_bench.fitting.compiled import fit

    fit(data, folder, inherits, say)


@app.command()
@guarded
def software(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The model's, named as its version.")],
    data: Data,
    inherits: Annotated[
        str, typer.Option("--inherits", metavar="NAME", help="The shipped version that all else is taken from.")
    ] = "h200-2026.11.8",
    models: Annotated[int, typer.Option("--models", min=5, help="Networks in inference, drawn by their names.")] = 400,
    trained: Annotated[int, typer.Option("--trained", min=0, help="Networks in training.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Captures side by side.")] = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Capture for so long at most.")] = 86_400.0,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="FILE", help="Keep what was compared, and go on from it.")
    ] = None,
) -> None:
    """How much longer kernels took under older versions of torch, as a version that inherits all else."""
    from foretell_bench.fitting.software import fit

    fit(data, folder, inherits, models, trained, jobs, say, seconds, rows)


@app.command()
@guarded
def links(
    data: Data,
    points: Annotated[str, typer.Option("--points", metavar="N,N", help="How many times are drawn.")] = "0,2,5,10,20",
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Random draws of each number.")] = 5,
) -> None:
    """A profile's links after a few times of a topology left out of the catalog's fit."""
    from foretell_bench.fitting.collectives import measured_rows
    from foretell_bench.fitting.few_times import report

    report(measured_rows(data), [int(n) for n in points.split(",")], seeds, say)


@app.command()
@guarded
def prices(
    tables: Annotated[
        Path, typer.Option("--tables", metavar="FOLDER", help="SkyPilot's tables, each as CLOUD/vms.csv in it.")
    ],
    date: Annotated[str, typer.Option("--date", metavar="YYYY-MM", help="Of which month they are.")],
    commit: Annotated[str, typer.Option("--commit", metavar="HASH", help="Of which commit of its repository.")],
    write: Write = False,
) -> None:
    """Prices of the catalog's instances, anew from the tables of SkyPilot's catalog."""
    from foretell_bench.fitting import prices as fitting

    found = list(fitting.refreshed(tables, date, commit))
    fitting.report(found, say)
    if write:
        fitting.write(found)
