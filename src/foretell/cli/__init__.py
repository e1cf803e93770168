"""The command line: one function a verb, each a few calls of the public API; heavy imports wait until asked for."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from foretell.cli import (
    adapt,
    check,
    design,
    devices,
    drift,
    fit,
    inspect,
    laws,
    measure,
    models,
    plan,
    predict,
    prices,
    profiles,
    scale,
    serve,
    store,
    sweep,
)
from foretell.cli.terminal import Verb, guarded, open_streams, plain_misuse, say, standard_output
from foretell.errors import InputError


class _Verbs(TyperGroup):
    """Our verbs, and those of other distributions, which are loaded when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*super().list_commands(ctx), *_extras()]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if (own is None or own.hidden) and (extra := _extras().get(cmd_name)) is not None:
            return typer.main.get_group(extra.load())
        return own

    def make_context(self, *args: Any, **settings: Any) -> Any:
        with plain_misuse():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        with plain_misuse():
            return super().invoke(ctx)


def _extras() -> dict[str, EntryPoint]:
    return {extra.name: extra for extra in entry_points(group="foretell.commands")}


app = typer.Typer(
    cls=_Verbs,
    name="foretell",
    help="Forecasts, before a deep-learning job runs, how long it will take and what it will consume.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # plain help: it is there in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    open_streams()
    guarded(_answer)()


def _answer() -> None:
    with standard_output():  # for what click prints itself
        app(prog_name="foretell")


def _print_version(wanted: bool) -> None:
    if wanted:
        from foretell import __version__

        say(f"foretell {__version__}")
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


for verb in (
    predict.predict,
    inspect.inspect,
    scale.scale,
    plan.plan,
    sweep.compare,
    sweep.sweep,
    check.check,
    laws.laws,
    measure.measure,
    design.design,
    fit.fit,
    adapt.adapt,
    profiles.profiles,
    drift.drift,
    devices.devices,
    prices.prices,
    models.models,
):
    app.command(cls=Verb)(guarded(verb))
app.add_typer(store.app)
app.add_typer(serve.app)
takes_anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
app.command("bench", hidden=True, context_settings=takes_anything)(guarded(_no_bench))
