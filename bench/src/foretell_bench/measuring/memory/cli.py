"""`foretell bench memory`: memory of real steps, measured on a CUDA device, packed, compared with forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import guarded

Only = Annotated[str, typer.Option("--only", metavar="TEXT", help="Only steps with this in their key.")]
DeviceName = Annotated[str, typer.Option("--device", metavar="NAME", help="What was measured on.")]

app = typer.Typer(name="memory", help="Memory of real training steps.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
@guarded
def measure(
    part: Annotated[Literal["steps", "unseen", "limits", "probes"], typer.Argument(help="What to measure.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Results; a run goes on where it stopped.")],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Steps that run side by side; one is timed too.")] = 1,
    seconds: Annotated[float, typer.Option("--seconds", help="Start nothing new after so long.")] = 540.0,
    each: Annotated[float, typer.Option("--each", help="Seconds that one step may take.")] = 90.0,
    only: Only = "",
) -> None:
    """Peaks and op temporaries of steps, the largest batch that runs, which attention kernel is chosen."""
    from foretell_bench.measuring.memory.campaign import Limits, run

    run(part, out, Limits(jobs=jobs, seconds=seconds, each=each), only)


@app.command()
@guarded
def sweep(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON lines, appended.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How long.")] = 120.0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 4,
    strange: Annotated[
        bool, typer.Option("--strange", help="Convolutions as networks nobody named have them.")
    ] = False,
) -> None:
    """What single operators allocate inside themselves: convolutions, RNNs, attention."""
    from foretell_bench.measuring.memory.sweep import run

    run(out, seconds, jobs, strange=strange)


@app.command()
@guarded
def collect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `measure` and `sweep` left.")],
    device: DeviceName = "h200",
) -> None:
    """Pack what was measured into bench/data."""
    from foretell_bench.measuring.memory.collect import run

    run(folder, device)


@app.command()
@guarded
def compare(
    part: Annotated[
        Literal["all", "steps", "unseen"], typer.Option("--part", help="unseen: nothing was derived from these.")
    ] = "all",
    recorded: Annotated[
        Path | None, typer.Option("--recorded", metavar="FOLDER", help="Graphs that `measure` recorded there.")
    ] = None,
    captured: Annotated[
        Path | None, typer.Option("--captured", metavar="FOLDER", help="Graphs captured before: KEY/answer.graph.")
    ] = None,
    inside: Annotated[
        bool, typer.Option("--inside", help="With --recorded: the ops that make a step miss its target.")
    ] = False,
    device: DeviceName = "h200",
) -> None:
    """Forecast peaks against measured ones; exits with 3 where their mean error misses the target."""
    from foretell_bench.measuring.memory.compare import Graphs, run

    parts = ("steps", "unseen") if part == "all" else (part,)
    run(parts, Graphs(recorded=recorded, captured=captured), device, show_ops=inside)


@app.command()
@guarded
def limits(only: Only = "", as_json: AsJson = False) -> None:
    """The largest batch that fits, as forecast and as found by bisection on the device."""
    from foretell_bench.measuring.memory.limits import run

    run(only, as_json)


@app.command()
@guarded
def fit_convolution(
    check: Annotated[
        bool, typer.Option("--check", help="Print errors on shapes left out and on real steps; write nothing.")
    ] = False,
) -> None:
    """Fit which algorithm cuDNN chooses for a convolution, from sweeps."""
    from foretell_bench.measuring.memory.fit_convolution import run

    run(check)
