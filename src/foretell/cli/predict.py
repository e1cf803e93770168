"""`foretell predict`: what a step will cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from foretell.cli import hosts, methods, options, remote
from foretell.cli.options import OUTPUT, PRICES, WHAT, option
from foretell.cli.terminal import answer, note, progress, write_error
from foretell.errors import InputError, RequirementNotMet

if TYPE_CHECKING:
    from rich.console import RenderableType

    from foretell import Cluster, Forecast, Script
    from foretell.forecasting.compile_gain import CompileGain


def predict(
    *,
    source: options.SourceOrLaunch = None,
    on: Annotated[
        list[str],
        option(WHAT, "--on", "Where: h200, 8xh100-sxm, 2xaws:p5.48xlarge, … Give several to compare.", "CLUSTER"),
    ],
    arguments: options.Arguments = None,
    settings: options.Settings = None,
    plan: Annotated[str | None, option(WHAT, "--plan", "How it is parallelized: dp=4,tp=2,zero=1.", "PLAN")] = None,
    fit_batch: Annotated[bool, option(WHAT, "--fit-batch", "Find the largest batch that fits.")] = False,
    headroom: Annotated[
        float | None,
        option(
            WHAT,
            "--headroom",
            "Memory that --fit-batch leaves free, as a part; else what makes it likely to fit.",
            "PART",
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        option(
            WHAT,
            "--lengths",
            "How long sequences are: a length in each line, or LENGTH,COUNT. Batches are padded.",
            "FILE",
        ),
    ] = None,
    require_fit: Annotated[bool, option(WHAT, "--require-fit", "Exit with 3 if it does not fit.")] = False,
    launch: options.Launch = None,
    nproc: options.Processes = None,
    fake_data: options.FakeData = False,
    opaque: options.Opaque = None,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
    html: options.Html = None,
    trace: Annotated[
        list[Path] | None,
        option(
            OUTPUT,
            "--trace",
            "Write a trace for ui.perfetto.dev, or Chakra traces to FILE.et; give several for both.",
            "FILE",
        ),
    ] = None,
    memory_snapshot: Annotated[
        Path | None,
        option(OUTPUT, "--memory-snapshot", "Write a snapshot of memory for pytorch.org/memory_viz.", "FILE"),
    ] = None,
    resources: Annotated[
        bool, option(OUTPUT, "--resources", "Also how device, memory and network are used over the step.")
    ] = False,
    explain: Annotated[
        bool, option(OUTPUT, "--explain", "Also all that was stood in for, cut short or assumed, one by one.")
    ] = False,
    loader: options.Loader = None,
    jitter: options.Jitter = None,
    expert_skew: options.ExpertSkew = None,
    trainer: options.Trainer = None,
    host: options.Host = None,
    software: options.Software = None,
    job_samples: options.JobSamples = None,
    job_tokens: options.JobTokens = None,
    evaluate: options.Evaluate = None,
    checkpoint: options.Checkpoint = None,
    startup: options.Startup = None,
    failures: options.Failures = None,
    preemptions: options.Preemptions = None,
    restart: options.Restart = None,
    prices: options.Prices = None,
    model: options.Model = None,
    profile: options.Profile = None,
    method: Annotated[
        Path | None,
        option(PRICES, "--method", "Also what a published system says: the folder of fit --method.", "FOLDER"),
    ] = None,
    no_cache: options.NoCache = False,
    server: options.Server = None,
) -> None:
    """Forecast one step: time, memory, whether it fits, cost."""
    from foretell.forecasting.trainer import trainer_settings

    for name, file in (("--trace", trace), ("--memory-snapshot", memory_snapshot)):
        if file and len(on) > 1:
            raise InputError(f"{name} writes one forecast, got {len(on)} --on. Give one --on, or run it once for each.")
    chosen = options.read_settings(settings)
    source, script = options.source_or_launch(source, launch, arguments, fake_data, opaque, nproc)
    methods.refuse(method, resources, {"--server": server, "--fit-batch": fit_batch, "--lengths": lengths})
    methods.refuse(method, False, {"a script": script})
    job = options.job_of(job_samples, job_tokens, (evaluate, checkpoint), (startup, failures, preemptions, restart))
    conditions = options.conditions_of(loader, jitter, expert_skew, trainer, host, software)
    chosen = dict(trainer_settings(script or source, chosen, conditions) or {})
    if server is not None:
        remote.refuse({"--fit-batch": fit_batch, "--html": html, "--trace": trace, "--memory-snapshot": memory_snapshot,
                       "--prices": prices, "a script": script})  # fmt: skip
        remote.predict(
            server, source, on, chosen, plan, as_json=as_json, require_fit=require_fit, cache=not no_cache,
            model=model, profile=profile, conditions=conditions, job=job,
        )  # fmt: skip
        return
    terms = options.terms(on, plan=plan, model=model, profile=profile, conditions=conditions, job=job)
    places = hosts.compared(options.priced(on, prices), conditions.host)
    if script is not None and fit_batch:
        raise InputError(
            f"--fit-batch varies a setting called batch, and {source} is a script. Give it other batches as arguments of its "
            "own, after --, and see which fit."
        )
    if lengths is not None:
        if script is not None or fit_batch:
            raise InputError(
                "--lengths goes with a SOURCE that takes batch and seq, without --fit-batch. Leave one of them out."
            )
        _show_lengths(source, places, lengths, chosen, terms, as_json)
        return
    if headroom is not None and not fit_batch:
        raise InputError(
            "--headroom is the memory that --fit-batch leaves free. Give --fit-batch too, or leave it out."
        )
    forecasts: list[Forecast]
    batches: list[int] = []
    if fit_batch:
        forecasts, batches = _fit_batches(source, places, chosen, not no_cache, {**terms, "headroom": headroom})
    else:
        forecasts = _forecasts(script or source, places, chosen, not no_cache, terms, write_error if verbose else None)
    gains = {} if script or fit_batch else _gains(str(source), forecasts, places, chosen, not no_cache, terms)
    predictions = methods.ask(method, source, chosen, forecasts, not no_cache) if method is not None else []
    answer(
        as_json,
        lambda: _answers(forecasts, batches, resources, predictions, gains),
        lambda width: _tables(forecasts, batches, width, resources, predictions, explain, gains),
    )
    if html is not None:
        from foretell.report.html import write_html

        write_html(forecasts, html)
        note(f"Report written to {html}")
    for file in trace or ():
        _write_trace(forecasts[0], file)
    if memory_snapshot is not None:
        _write_snapshot(forecasts[0], memory_snapshot)
    if require_fit and (over := [f.cluster for f in forecasts if not f.memory.fits]):
        raise RequirementNotMet(
            f"{forecasts[0].workload} does not fit on {', '.join(over)}, and --require-fit was given."
        )


def _show_lengths(
    source: str, on: Sequence[Cluster], path: Path, settings: Mapping[str, str], terms: Mapping[str, Any], as_json: bool
) -> None:
    """The forecast of the longest batch, and how long steps of all lengths take."""
    from rich.console import Group

    from foretell.forecasting.lengths import Lengths, varied
    from foretell.report.terminal import forecast_panel, lengths_section

    lengths = Lengths.read(path)
    if terms["job"] is not None and terms["job"].tokens is not None:
        raise InputError(
            "a job of sequences of many lengths is counted in samples. Give --job-samples instead of --job-tokens."
        )
    with progress() as report:
        report(f"forecasting {source} at several lengths")
        found = [varied(source, where, lengths, settings=settings, **terms) for where in on]
    answer(
        as_json,
        lambda: [each.to_dict() for each in found],
        lambda width: Group(*(part for v in found for part in (forecast_panel(v.worst), lengths_section(v)))),
    )


def _forecasts(
    subject: Script | str,
    on: Sequence[Cluster],
    settings: Mapping[str, str],
    cache: bool,
    terms: Mapping[str, Any],
    output: Any,
) -> list[Forecast]:
    """A script is run once for each cluster: it may ask what it runs on. Anything else is captured once."""
    import foretell
    from foretell.forecasting.question import decide

    forecasts = []
    with progress(verbose=output is not None) as report:
        how: dict[str, Any] = {"progress": report, "cache": cache}
        step = foretell.capture_graph(subject, settings, **how) if isinstance(subject, str) else subject
        own = None if isinstance(subject, str) else settings
        for where in on:
            question = decide(step, where, terms["plan"], settings=own, output=output, **how)
            report(f"forecasting {question.graph.name} on {where}")
            forecasts.append(foretell.forecast(question.graph, where, **{**terms, "plan": question.plan}))
            if question.remark:
                note(question.remark)
    return forecasts


def _gains(
    source: str,
    forecasts: Sequence[Forecast],
    on: Sequence[Cluster],
    settings: Mapping[str, str],
    cache: bool,
    terms: Mapping[str, Any],
) -> dict[str, CompileGain]:
    """By cluster, what compiling gains over the eager step by the same plan; nothing where it is not compiled."""
    import foretell
    from foretell.forecasting.compile_gain import compile_gain

    if source.endswith(".graph") or not forecasts[0].graph.is_compiled:
        return {}
    with progress() as report:
        step = foretell.capture_graph(source, settings, progress=report, cache=cache, compiled=False)
        report(f"forecasting {step.name} as it is written")
        eager = [
            foretell.forecast(step, where, **{**terms, "plan": f.plan}) for where, f in zip(on, forecasts, strict=True)
        ]
    return {f.cluster: compile_gain(f, other) for f, other in zip(forecasts, eager, strict=True)}


def _fit_batches(
    source: str, on: Sequence[Cluster], settings: Mapping[str, str], cache: bool, terms: Mapping[str, Any]
) -> tuple[list[Forecast], list[int]]:
    import foretell

    with progress() as report:
        fits = [
            foretell.fit_batch(source, cluster, settings=settings, cache=cache, progress=report, **terms)
            for cluster in on
        ]
    return [fit.forecast for fit in fits], [fit.batch for fit in fits]


def _write_snapshot(forecast: Forecast, path: Path) -> None:
    try:
        forecast.to_memory_snapshot(path)
    except OSError as error:
        raise InputError(f"the snapshot cannot be written to {path}: {error.strerror}. Choose another file.") from None
    note(f"Snapshot of memory written to {path}; open it at https://pytorch.org/memory_viz")


def _write_trace(forecast: Forecast, path: Path) -> None:
    """One file, or a Chakra trace for each kind of rank."""
    try:
        if path.suffix == ".et":
            note(f"Trace written to {', '.join(map(str, forecast.timeline.to_chakra(path)))}")
        else:
            forecast.timeline.to_perfetto(path)
            note(f"Trace written to {path}; open it at https://ui.perfetto.dev")
    except OSError as error:
        raise InputError(f"the trace cannot be written to {path}: {error.strerror}. Choose another file.") from None


def _tables(
    forecasts: Sequence[Forecast],
    batches: Sequence[int],
    width: int,
    resources: bool = False,
    predictions: Sequence[methods.Named] = (),
    explain: bool = False,
    gains: Mapping[str, CompileGain] | None = None,
) -> RenderableType:
    from rich.console import Group

    from foretell.report.compiling import gain_section
    from foretell.report.methods import method_section, resources_section
    from foretell.report.terminal import explanation_section, forecast_panel, forecast_table

    one = len(forecasts) == 1
    whole = forecast_panel(forecasts[0], batch=batches[0] if batches else None) if one else None
    parts: list[RenderableType] = [whole or forecast_table(forecasts, batches=batches, width=width)]
    if gains:
        parts.append(gain_section(gains))
    for i, found in enumerate(forecasts):
        name, values = "", dict[str, float]()
        if predictions:
            name, predicted = predictions[i]
            values = dict(predicted.values)
            parts.append(method_section(found, name, values, predicted.why))
        if resources:
            parts.append(resources_section(found, values, name))
    if explain:
        parts.append(explanation_section(forecasts))
    return Group(*parts)


def _answers(
    forecasts: Sequence[Forecast],
    batches: Sequence[int],
    resources: bool = False,
    predictions: Sequence[methods.Named] = (),
    gains: Mapping[str, CompileGain] | None = None,
) -> Any:
    from foretell.report.methods import method_dict, series_dict

    answers = [f.to_dict() for f in forecasts]
    for each, batch in zip(answers, batches, strict=False):
        each["batch"] = batch
    for each, found in zip(answers, forecasts, strict=True):
        if gains:
            each["compiled"] = gains[found.cluster].to_dict()
        if resources:
            each["resources_over_step"] = series_dict(found)
    for each, (name, predicted) in zip(answers, predictions, strict=False):
        each["method"] = method_dict(name, predicted.values, predicted.why)
    return answers[0] if len(answers) == 1 else answers
