"""The command line: one function a verb, each a few calls of the public API; heavy imports wait until asked for."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

from foretell.errors import ForetellError, InputError, RequirementNotMet

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from foretell.answer import Forecast
    from foretell.graph import Graph

P = ParamSpec("P")
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_READER_GONE = 141  # 128 + SIGPIPE

app = typer.Typer(
    name="foretell",
    help="Tells, before a deep-learning job runs, how long it will take and what it will consume.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: it is there in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="file.py:function, package.module:function, timm/NAME, torchvision/NAME, hf/NAME, a config.json or a "
        ".graph file. Python sources are your own code and are executed.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of SOURCE, like batch=256.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Capture again, even if this was captured before.")]


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """Make a function a verb of the command line, whose errors become a paragraph and an exit code."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except ForetellError as error:
            _fail(str(error), error.exit_code, error)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has gone; Python must not complain about it a second time when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(_READER_GONE) from None
        except Exception as error:
            _fail(_bug_text(error), 1, error)

    app.command()(guarded)
    return guarded


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


@verb
def predict(
    source: Source,
    on: Annotated[
        list[str],
        typer.Option(
            "--on", metavar="CLUSTER", help="Where: h200, 8xh100-sxm, 2xaws:p5.48xlarge, … Give several to compare."
        ),
    ],
    settings: Settings = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="How it is spread: dp=4,tp=2,zero=1.")
    ] = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report as one HTML file.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
    ] = None,
    fit_batch: Annotated[bool, typer.Option("--fit-batch", help="Find the largest batch that fits.")] = False,
    require_fit: Annotated[bool, typer.Option("--require-fit", help="Exit with 3 if it does not fit.")] = False,
    no_cache: NoCache = False,
) -> None:
    """Forecast one step: time, memory, whether it fits, cost."""
    if trace is not None and len(on) > 1:
        raise InputError(f"--trace writes one timeline, got {len(on)} --on. Give one --on, or run it once for each.")
    _check_question(on, plan)
    chosen = _read_settings(settings or [])
    batches: list[int] | None = None
    with _progress() as say:
        if fit_batch:
            forecasts, batches = _fit_batches(source, chosen, on, plan, say)
        else:
            forecasts = _forecasts(_capture(source, chosen, say, cache=not no_cache), on, plan, say)
    if as_json:
        _print_json(forecasts, batches)
    else:
        _print_forecasts(forecasts, batches)
    if html is not None:
        from foretell.report.html import write_html

        write_html(forecasts, html)
        _note(f"Report written to {html}")
    if trace is not None:
        _write_trace(forecasts[0], trace)
        _note(f"Trace written to {trace}; open it at https://ui.perfetto.dev")
    if require_fit and (over := [f.cluster for f in forecasts if not f.memory.fits]):
        raise RequirementNotMet(
            f"{forecasts[0].workload} does not fit on {', '.join(over)}, and --require-fit was given."
        )


@verb
def inspect(
    source: Source,
    settings: Settings = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="How many operators to show.")] = 12,
    depth: Annotated[
        int | None, typer.Option("--depth", min=0, metavar="N", help="How deep to show the module tree.")
    ] = None,
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="The device that prices the ops.")] = "h100-sxm",
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE.graph", help="Save the captured step, to use as a SOURCE.")
    ] = None,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """Show what a step is made of: ops, modules, memory."""
    from foretell.report.inspection import inspection, inspection_dict

    _check_question([on], None)
    if save is not None and save.suffix != ".graph":
        raise InputError(f"--save {save} must end in .graph, so that it can be used as a SOURCE again.")
    with _progress() as say:
        graph = _capture(source, _read_settings(settings or []), say, cache=not no_cache)
        [forecast] = _forecasts(graph, [on], None, say)
    if save is not None:
        _save(graph, save)
    if as_json:
        _print_json_text(inspection_dict(forecast, top=top, depth=depth))
    else:
        console = _console()
        _print(inspection(forecast, top=top, depth=depth, width=console.width), console)
    if save is not None:
        _note(f"Graph saved to {save}")


@verb
def devices(
    text: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only those whose name or title holds this text.")
    ] = "",
    vendor: Annotated[str | None, typer.Option("--vendor", help="Only devices of this vendor.")] = None,
    links: Annotated[bool, typer.Option("--links", help="List links instead.")] = False,
    instances: Annotated[bool, typer.Option("--instances", help="List instances that clouds rent instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the hardware catalogue: devices, links, rented instances."""
    from foretell import hardware
    from foretell.report import catalogue

    if links and instances:
        raise InputError("--links and --instances list different things. Give one of them.")
    if vendor is not None and (links or instances):
        raise InputError("--vendor filters devices. Leave it out with --links and --instances.")
    things: Sequence[Any]
    table: Callable[..., RenderableType]
    if links:
        things, table = hardware.links(), catalogue.link_table
    elif instances:
        things, table = hardware.instances(), catalogue.instance_table
    else:
        things, table = _of_vendor(hardware.devices(), vendor), catalogue.device_table
    wanted = text.lower()
    found: list[Any] = [t for t in things if wanted in t.name.lower() or wanted in t.title.lower()]
    if as_json:
        import dataclasses

        _print_json_text([dataclasses.asdict(thing) for thing in found])
    elif found:
        console = _console()
        _print(table(found, width=console.width), console)
    else:
        _note(f"Nothing in the catalogue holds {text!r} in its name or title.")


def _of_vendor(devices: Sequence[Any], vendor: str | None) -> list[Any]:
    if vendor is None:
        return list(devices)
    found = [device for device in devices if device.vendor.lower() == vendor.lower()]
    if not found:
        known = ", ".join(sorted({device.vendor for device in devices}))
        raise InputError(f"no device of vendor {vendor!r} in the catalogue. Vendors: {known}.")
    return found


def _check_question(on: Sequence[str], plan: str | None) -> None:
    """A slip in a name is told at once, not after a long capture."""
    from foretell.hardware import Cluster
    from foretell.workload import Plan

    for cluster in on:
        Cluster.parse(cluster)
    if plan is not None:
        Plan.parse(plan)


def _read_settings(written: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for item in written:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {item!r} is not a setting. Write it like --set batch=256.")
        if name.strip() in settings:
            raise InputError(f"--set {name.strip()} is given twice. Give it once.")
        settings[name.strip()] = value.strip()
    return settings


def _capture(source: str, settings: Mapping[str, str], say: Callable[[str], None], *, cache: bool) -> Graph:
    from foretell.capture import capture

    return capture(source, settings, progress=say, cache=cache)


def _forecasts(graph: Graph, on: Sequence[str], plan: str | None, say: Callable[[str], None]) -> list[Forecast]:
    from foretell.forecasting import forecast

    forecasts = []
    for cluster in on:
        say(f"forecasting {graph.name} on {cluster}")
        forecasts.append(forecast(graph, on=cluster, plan=plan))
    return forecasts


def _fit_batches(
    source: str, settings: Mapping[str, str], on: Sequence[str], plan: str | None, say: Callable[[str], None]
) -> tuple[list[Forecast], list[int]]:
    from foretell.forecasting import fit_batch

    fits = []
    for cluster in on:
        say(f"looking for the largest batch on {cluster}")
        fits.append(fit_batch(source, settings, cluster, plan, say))
    return [fit.forecast for fit in fits], [fit.batch for fit in fits]


def _write_trace(forecast: Forecast, path: Path) -> None:
    try:
        forecast.timeline.to_perfetto(path)
    except OSError as error:
        raise InputError(f"the trace cannot be written to {path}: {error.strerror}. Choose another file.") from None


def _save(graph: Graph, path: Path) -> None:
    try:
        graph.save(path)
    except OSError as error:
        raise InputError(f"the graph cannot be saved to {path}: {error.strerror}. Choose another file.") from None


def _print_forecasts(forecasts: Sequence[Forecast], batches: Sequence[int] | None) -> None:
    from foretell.report import tables

    console = _console()
    if len(forecasts) == 1:
        _print(tables.one(forecasts[0], batch=batches[0] if batches else None), console)
    else:
        _print(tables.several(forecasts, batches=batches, width=console.width), console)


def _print_json(forecasts: Sequence[Forecast], batches: Sequence[int] | None) -> None:
    if len(forecasts) == 1 and not batches:
        sys.stdout.write(forecasts[0].to_json() + "\n")
        return
    answers = [f.to_dict() for f in forecasts]
    for answer, batch in zip(answers, batches or (), strict=False):
        answer["batch"] = batch
    _print_json_text(answers[0] if len(answers) == 1 else answers)


def _print_json_text(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _print(what: RenderableType, console: Console) -> None:
    """Draw first, then write: a reader that goes away then meets one plain write."""
    with console.capture() as drawn:
        console.print(what)
    sys.stdout.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _note(text: str) -> None:
    _console(stderr=True).print(text, style="dim", soft_wrap=True)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A function that says what is going on, on standard error and only to a person."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.text import Text

    with _console(stderr=True).status(Text("Starting")) as status:
        yield lambda text: status.update(Text(text))


def _fail(text: str, code: int, error: Exception) -> NoReturn:
    from rich.text import Text

    console = _console(stderr=True)
    if os.environ.get("FORETELL_DEBUG", "0") not in ("", "0"):
        import traceback

        sys.stderr.write("".join(traceback.format_exception(error)))
    # A file or pipe gets the paragraph in one line, which is easier to search.
    console.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=not console.is_terminal)
    raise SystemExit(code)


def _bug_text(error: Exception) -> str:
    return (
        f"this is a bug in Foretell ({type(error).__name__}: {error}). Run it again with foretell --debug … to see "
        "where, and please report it with the command you ran."
    )


if __name__ == "__main__":
    main()
