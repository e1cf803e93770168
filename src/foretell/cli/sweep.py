"""`foretell compare` and `foretell sweep`: the same question asked in several ways, side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretell.cli import hosts, options
from foretell.cli.options import OUTPUT, WHAT, option
from foretell.cli.terminal import answer, note, progress
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell import Cluster
    from foretell.planner.pool import Runner
    from foretell.report.compare import Compared

Csv = Annotated[Path | None, option(OUTPUT, "--csv", "Write the figures as CSV.", "FILE")]
_FIELDS = (
    "label",
    "workload",
    "cluster",
    "plan",
    "step_seconds",
    "low",
    "high",
    "samples_per_second",
    "tokens_per_second",
)
_MORE = ("mfu", "memory_bytes", "fits", "dollars_per_step", "why")


def compare(
    questions: Annotated[
        list[str],
        typer.Argument(metavar="A B …", help="Each is SOURCE[ NAME=VALUE…][ on=CLUSTER][ plan=dp:4/tp:2], in quotes."),
    ],
    on: Annotated[str | None, option(WHAT, "--on", "Where, unless a question says so.", "CLUSTER")] = None,
    as_json: options.AsJson = False,
    html: options.Html = None,
    table: Csv = None,
    host: options.Host = None,
    model: options.Model = None,
    profile: options.Profile = None,
    no_cache: options.NoCache = False,
) -> None:
    """Compare clusters, plans, models or settings: forecasts side by side, relative to the first."""
    cases = [_case(text, on) for text in questions]
    _answer(cases, as_json, html, table, host, model, profile, no_cache, options.runner(None, 1))


def sweep(
    source: options.Source,
    on: Annotated[list[str], option(WHAT, "--on", "Where; give several to try each.", "CLUSTER")],
    settings: Annotated[
        list[str] | None, option(WHAT, "--set", "Values of a parameter; several multiply out.", "NAME=A,B")
    ] = None,
    plan: Annotated[list[str] | None, option(WHAT, "--plan", "A plan; give several to try each.", "PLAN")] = None,
    as_json: options.AsJson = False,
    html: options.Html = None,
    table: Csv = None,
    host: options.Host = None,
    model: options.Model = None,
    profile: options.Profile = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    no_cache: options.NoCache = False,
) -> None:
    """Forecast every combination of clusters, plans and settings."""
    plans: list[str | None] = [*plan] if plan else [None]
    combined = product(on, plans, options.combinations(settings))
    cases = [(source, chosen, cluster, written) for cluster, written, chosen in combined]
    _answer(cases, as_json, html, table, host, model, profile, no_cache, options.runner(ray, workers))


Case = tuple[str, dict[str, str], str, str | None]  # source, settings, cluster, plan


def _case(text: str, on: str | None) -> Case:
    """`timm/resnet50 batch=64 on=h200 plan=dp:4/tp:2`: commas and equals signs of a plan are written : and /."""
    source, *words = text.split()
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{word!r} of {text!r} is no setting. Write it like batch=64, on=h200 or plan=dp:4/tp:2.")
        settings[name] = value
    cluster, plan = settings.pop("on", on), settings.pop("plan", None)
    if cluster is None:
        raise InputError(f"{text!r} does not say where. Write on=CLUSTER in it, or give --on.")
    return source, settings, cluster, None if plan is None else plan.replace("/", ",").replace(":", "=")


def _answer(
    cases: Sequence[Case],
    as_json: bool,
    html: Path | None,
    table: Path | None,
    host: str | None,
    model: str | None,
    profile: str | None,
    no_cache: bool,
    runner: Runner,
) -> None:
    from foretell.report.compare import comparison_table, write_comparison

    conditions = options.conditions_of(host=host)
    on = list(dict.fromkeys(cluster for _, _, cluster, _ in cases))
    common = options.terms(on, model=model, profile=profile, conditions=conditions)
    places = dict(zip(on, hosts.compared(options.priced(on, None), conditions.host), strict=True))
    with progress() as report:
        found = _compared(cases, places, common, not no_cache, runner, report)
    if all(each.forecast is None for each in found):
        raise InputError(f"none of {len(found)} can be forecast. The first: {found[0].why}")
    answer(as_json, lambda: [each.to_dict() for each in found], lambda width: comparison_table(found))
    if html is not None:
        write_comparison(found, html)
        note(f"Report written to {html}")
    if table is not None:
        table.write_text(_csv(found), encoding="utf-8")
        note(f"Figures written to {table}")


def _compared(
    cases: Sequence[Case],
    places: Mapping[str, Cluster],
    common: dict[str, Any],
    cache: bool,
    runner: Runner,
    report: Callable[[str], None],
) -> list[Compared]:
    """Captured one after another, forecast side by side. A script is run as it finds itself on each cluster."""
    import foretell
    from foretell.forecasting.question import decide
    from foretell.sources.scripts import script_of

    graphs: dict[tuple[str, ...], Any] = {}
    eager: dict[tuple[str, ...], Any] = {}  # what is compiled, as it is written
    questions = []
    for number, (source, settings, cluster, plan) in enumerate(cases):
        key = words = source, *(f"{k}={v}" for k, v in settings.items())
        if is_script := not isinstance(script_of(source), str):
            key = *words, cluster, plan or ""
        if key not in graphs and is_script:
            graphs[key] = decide(source, cluster, plan, settings=settings, progress=report, cache=cache).graph
        elif key not in graphs:
            how: dict[str, Any] = {"progress": report, "cache": cache}
            graphs[key] = foretell.capture_graph(source, settings, **how)
            if graphs[key].is_compiled and not source.endswith(".graph"):
                eager[key] = foretell.capture_graph(source, settings, **how, compiled=False)
        label = " ".join([*words, f"on {cluster}", *([plan] if plan else [])])
        questions.append((number, label, key, places[cluster], plan))
    found: dict[int, Compared] = {}
    for number, each in runner.each(_forecast, (graphs, eager, common), questions):
        found[number] = each
        report(f"forecast {len(found)} of {len(questions)}")
    return [found[number] for number in range(len(questions))]


def _forecast(
    shared: tuple[Any, Any, dict[str, Any]], question: tuple[int, str, tuple[str, ...], Cluster, str | None]
) -> Any:
    import foretell
    from foretell.forecasting.compile_gain import compile_gain
    from foretell.report.compare import Compared

    graphs, eager, common = shared
    number, label, key, cluster, plan = question
    try:
        forecast = foretell.forecast(graphs[key], cluster, **(common | {"plan": plan}))
        gain = None
        if (step := eager.get(key)) is not None:
            gain = compile_gain(forecast, foretell.forecast(step, cluster, **(common | {"plan": forecast.plan})))
        return number, Compared(label=label, forecast=forecast, gain=gain)
    except foretell.InputError as error:  # one that cannot be is a row of the table
        return number, Compared(label=label, why=str(error))


def _csv(found: Sequence[Compared]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=[*_FIELDS, *_MORE])
    writer.writeheader()
    for each in found:
        row: dict[str, Any] = {"label": each.label, "why": each.why}
        if (f := each.forecast) is not None:
            row |= {
                "workload": f.workload, "cluster": f.cluster, "plan": f.plan, "step_seconds": f.step_time.seconds,
                "low": f.step_time.low, "high": f.step_time.high, "samples_per_second": f.throughput.samples_per_second,
                "tokens_per_second": f.throughput.tokens_per_second, "mfu": f.throughput.mfu, "memory_bytes": f.memory.total,
                "fits": f.memory.fits, "dollars_per_step": f.cost.dollars_per_step,
            }  # fmt: skip
        writer.writerow(row)
    return out.getvalue()
