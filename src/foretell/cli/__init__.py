"""The command line: one function a verb, each a few calls of the public API; heavy imports wait until asked for."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from foretell.cli import design, devices, fit, inspect, measure, predict, scale, store
from foretell.cli.terminal import Verb, guarded
from foretell.errors import InputError

app = typer.Typer(
    name="foretell",
    help="Forecasts, before a deep-learning job runs, how long it will take and what it will consume.",
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


def _no_bench() -> None:
    """Compare forecasts with measurements; it comes with the distribution foretell-bench."""
    raise InputError(
        "`foretell bench` comes with the distribution foretell-bench, which is not installed. Install it beside Foretell: "
        "pip install foretell-bench, or pip install ./bench in a checkout of the repository."
    )


for verb in (predict.predict, inspect.inspect, scale.scale, measure.measure, design.design, fit.fit, devices.devices):
    app.command(cls=Verb)(guarded(verb))
app.add_typer(store.app)
_extras = {extra.name: extra for extra in entry_points(group="foretell.commands")}  # verbs of other distributions
for extra in _extras.values():
    app.add_typer(extra.load())
if "bench" not in _extras:
    takes_anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command("bench", hidden=True, context_settings=takes_anything)(guarded(_no_bench))
