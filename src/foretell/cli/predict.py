"""`foretell predict` and `foretell inspect`: what a step will cost, and what it is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.options import (
    Checkpoint,
    Evaluate,
    ExpertSkew,
    Jitter,
    Loader,
    Samples,
    Tokens,
    conditions_of,
    length_of,
)
from foretell.cli.terminal import (
    AsJson,
    NoCache,
    Settings,
    Source,
    console_of,
    note,
    print_drawn,
    print_json,
    progress,
    read_settings,
)
from foretell.errors import InputError, RequirementNotMet

Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="What prices operators: a shipped model, a fitted folder, or roofline."
    ),
]

Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="What makes the forecast fit one machine, cluster or trainer: a .toml file or its name.",
    ),
]

if TYPE_CHECKING:
    from foretell import Profile as ProfileFile
    from foretell.forecasting.conditions import Conditions
    from foretell.forecasting.job import JobLength
    from foretell.forecasting.result import Forecast
    from foretell.graph import Graph


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
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev, or a Chakra trace to FILE.et."
        ),
    ] = None,
    fit_batch: Annotated[bool, typer.Option("--fit-batch", help="Find the largest batch that fits.")] = False,
    require_fit: Annotated[bool, typer.Option("--require-fit", help="Exit with 3 if it does not fit.")] = False,
    loader: Loader = None,
    jitter: Jitter = None,
    expert_skew: ExpertSkew = None,
    samples: Samples = None,
    tokens: Tokens = None,
    evaluate: Evaluate = None,
    checkpoint: Checkpoint = None,
    model: Model = None,
    profile: Profile = None,
    no_cache: NoCache = False,
) -> None:
    """Forecast one step: time, memory, whether it fits, cost."""
    _check_model(model)
    if trace is not None and len(on) > 1:
        raise InputError(f"--trace writes one timeline, got {len(on)} --on. Give one --on, or run it once for each.")
    _check_question(on, plan)
    conditions = conditions_of(loader, jitter, expert_skew)
    job = length_of(samples, tokens, evaluate, checkpoint)
    chosen = read_settings(settings or [])
    fitted = profile_of(profile)
    batches: list[int] | None = None
    with progress() as say:
        if fit_batch:
            forecasts, batches = _fit_batches(
                source, chosen, on, plan, model, say, conditions, job, fitted, not no_cache
            )
        else:
            graph = _capture(source, chosen, say, cache=not no_cache)
            forecasts = _forecasts(graph, on, plan, model, say, conditions, job, fitted)
    if as_json:
        _print_answers(forecasts, batches)
    else:
        _print_forecasts(forecasts, batches)
    if html is not None:
        from foretell.report.html import write_html

        write_html(forecasts, html)
        note(f"Report written to {html}")
    if trace is not None:
        written = ", ".join(map(str, _write_trace(forecasts[0], trace)))
        note(f"Trace written to {written}" + ("" if trace.suffix == ".et" else "; open it at https://ui.perfetto.dev"))
    if require_fit and (over := [f.cluster for f in forecasts if not f.memory.fits]):
        raise RequirementNotMet(
            f"{forecasts[0].workload} does not fit on {', '.join(over)}, and --require-fit was given."
        )


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
    model: Model = None,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """Show what a step is made of: ops, modules, memory."""
    from foretell.report.inspection import inspection, inspection_dict

    _check_question([on], None)
    _check_model(model)
    if save is not None and save.suffix != ".graph":
        raise InputError(f"--save {save} must end in .graph, so that it can be used as a SOURCE again.")
    with progress() as say:
        graph = _capture(source, read_settings(settings or []), say, cache=not no_cache)
        [forecast] = _forecasts(graph, [on], None, model, say)
    if save is not None:
        _save(graph, save)
    if as_json:
        print_json(inspection_dict(forecast, top=top, depth=depth))
    else:
        console = console_of()
        print_drawn(inspection(forecast, top=top, depth=depth, width=console.width), console)
    if save is not None:
        note(f"Graph saved to {save}")


def _check_question(on: Sequence[str], plan: str | None) -> None:
    """A slip in a name is told at once, not after a long capture."""
    from foretell.hardware import Cluster
    from foretell.plan import Plan

    for cluster in on:
        Cluster.parse(cluster)
    if plan is not None:
        Plan.parse(plan)


def _capture(source: str, settings: Mapping[str, str], say: Callable[[str], None], *, cache: bool) -> Graph:
    from foretell.capture import capture

    return capture(source, settings, progress=say, cache=cache)


def _check_model(model: str | None) -> None:
    from foretell.forecasting.assemble import load_model

    if model is not None:
        load_model(model)


def profile_of(named: str | None) -> ProfileFile | None:
    from foretell import Profile

    return None if named is None else Profile.load(named)


def _forecasts(
    graph: Graph, on: Sequence[str], plan: str | None, model: str | None, say: Callable[[str], None],
    conditions: Conditions | None = None, job: JobLength | None = None, profile: ProfileFile | None = None,
) -> list[Forecast]:  # fmt: skip
    from foretell.forecasting.assemble import DEFAULT_MODEL, forecast

    forecasts = []
    for cluster in on:
        say(f"forecasting {graph.name} on {cluster}")
        priced_by = model or DEFAULT_MODEL
        forecasts.append(
            forecast(graph, on=cluster, plan=plan, model=priced_by, profile=profile, conditions=conditions, job=job)
        )
    return forecasts


def _fit_batches(
    source: str,
    settings: Mapping[str, str],
    on: Sequence[str],
    plan: str | None,
    model: str | None,
    say: Callable[[str], None],
    conditions: Conditions | None = None,
    job: JobLength | None = None,
    profile: ProfileFile | None = None,
    cache: bool = True,
) -> tuple[list[Forecast], list[int]]:
    from foretell.forecasting.assemble import DEFAULT_MODEL
    from foretell.forecasting.fit_batch import fit_batch

    fits = []
    for cluster in on:
        say(f"looking for the largest batch on {cluster}")
        priced_by = model or DEFAULT_MODEL
        fits.append(
            fit_batch(
                source,
                cluster,
                plan,
                settings=settings,
                model=priced_by,
                profile=profile,
                conditions=conditions,
                job=job,
                cache=cache,
                progress=say,
            )
        )
    return [fit.forecast for fit in fits], [fit.batch for fit in fits]


def _write_trace(forecast: Forecast, path: Path) -> list[Path]:
    """One file, or a Chakra trace for each kind of rank."""
    try:
        if path.suffix == ".et":
            return forecast.timeline.to_chakra(path)
        forecast.timeline.to_perfetto(path)
        return [path]
    except OSError as error:
        raise InputError(f"the trace cannot be written to {path}: {error.strerror}. Choose another file.") from None


def _save(graph: Graph, path: Path) -> None:
    try:
        graph.save(path)
    except OSError as error:
        raise InputError(f"the graph cannot be saved to {path}: {error.strerror}. Choose another file.") from None


def _print_forecasts(forecasts: Sequence[Forecast], batches: Sequence[int] | None) -> None:
    from foretell.report import terminal as tables

    console = console_of()
    if len(forecasts) == 1:
        print_drawn(tables.one(forecasts[0], batch=batches[0] if batches else None), console)
    else:
        print_drawn(tables.several(forecasts, batches=batches, width=console.width), console)


def _print_answers(forecasts: Sequence[Forecast], batches: Sequence[int] | None) -> None:
    if len(forecasts) == 1 and not batches:
        sys.stdout.write(forecasts[0].to_json() + "\n")
        return
    answers = [f.to_dict() for f in forecasts]
    for answer, batch in zip(answers, batches or (), strict=False):
        answer["batch"] = batch
    print_json(answers[0] if len(answers) == 1 else answers)
