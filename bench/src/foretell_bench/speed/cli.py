"""`foretell bench speed WHAT`: one verb per thing that is timed; what times it is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import guarded

Save = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep the figures here.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes of the planner or the service.")]

app = typer.Typer(
    name="speed", help="Time Foretell itself on this machine.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
@guarded
def forecasts() -> None:
    """Forecasts from captured graphs: new to the model, and with their ops priced before."""
    from foretell_bench.speed.forecasts import run

    run()


@app.command()
@guarded
def captures(as_json: AsJson = False) -> None:
    """Captures of a step, compared with PyTorch's own FlopCounterMode, and of a Llama of 70 B."""
    from foretell_bench.speed.captures import run

    run(as_json)


@app.command()
@guarded
def planner(
    workers: Workers = 2,
    rows: Annotated[
        list[int] | None, typer.Option("--row", min=0, max=4, metavar="N", help="Only this search, counted from 0.")
    ] = None,
    save: Save = None,
) -> None:
    """Searches for a Llama of 8 B over more and more candidates and devices."""
    from foretell_bench.speed.planner import run

    run(workers, rows or (), save)


@app.command()
@guarded
def store(
    rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Rows of ops.")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Appending, merging and querying a store of a million ops."""
    from foretell_bench.speed.store import run

    run(rows, as_json)


@app.command()
@guarded
def load(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A .graph file to ask about.")],
    on: Annotated[str, typer.Option("--on", metavar="CLUSTER", help="Where.")] = "64xh100-sxm",
    plan: Annotated[str, typer.Option("--plan", metavar="PLAN", help="How it is divided.")] = "dp=8,tp=8",
    clients: Annotated[int, typer.Option("--clients", min=1, help="Connections that ask at the same time.")] = 16,
    seconds: Annotated[float, typer.Option("--seconds", help="How long each kind of question is asked.")] = 10.0,
    workers: Workers = 2,
    save: Save = None,
) -> None:
    """The service under load, compared with a plain FastAPI app."""
    from foretell_bench.speed.service_load import Load, run

    run(graph, on, plan, Load(clients=clients, seconds=seconds), workers, save)


@app.command()
@guarded
def soak(
    minutes: Annotated[float, typer.Option("--minutes", help="How long.")] = 10.0,
    workers: Workers = 2,
    save: Save = None,
) -> None:
    """Whether the service's memory stays bounded under all kinds of requests."""
    from foretell_bench.speed.service_soak import run

    run(minutes, workers, save)


@app.command()
@guarded
def watch(
    seconds: Annotated[float, typer.Option("--seconds", help="How long the loop runs.")] = 120.0,
    every: Annotated[float, typer.Option("--every", help="Seconds between two rows that are written.")] = 60.0,
    width: Annotated[int, typer.Option("--width", min=1, help="Of the layers of its model.")] = 512,
) -> None:
    """What `foretell.watch` costs a training loop on this machine's CPU."""
    from foretell_bench.speed.watching import run

    run(seconds, every, width)
