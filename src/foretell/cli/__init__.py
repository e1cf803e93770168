"""The command line: one function a verb, each a few calls of the public API; heavy imports wait until asked for."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from foretell.cli import design, devices, fit, measure, predict, scale, store
from foretell.cli.terminal import guarded

app = typer.Typer(
    name="foretell",
    help="Tells, before a deep-learning job runs, how long it will take and what it will consume.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: it is there in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without × must not end the program
    app(prog_name="foretell")


def _print_version(asked: bool) -> None:
    if asked:
        from foretell import __version__

        print(f"foretell {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error ($FORETELL_DEBUG=1).")] = False,
) -> None:
    if debug:
        os.environ["FORETELL_DEBUG"] = "1"


for verb in (predict.predict, predict.inspect, scale.scale, measure.measure, design.design, fit.fit, devices.devices):
    app.command()(guarded(verb))
app.add_typer(store.app)
for extra in entry_points(group="foretell.commands"):  # verbs of other distributions, such as foretell-bench
    app.add_typer(extra.load())
