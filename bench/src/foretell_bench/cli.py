"""`foretell bench`: how wrong Foretell is, on measurements others have published."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, guarded, progress

if TYPE_CHECKING:
    from foretell_bench.tables.figures import Figure

# Options that several benchmarks share.
PublicData = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes that forecast side by side.")]
Answers = Annotated[
    Path | None,
    typer.Option("--answers", metavar="FILE", help="Keep each forecast here, to go on after a run was stopped."),
]
Saved = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Show what --save wrote, and forecast nothing.")
]
OnlyOpen = Annotated[bool, typer.Option("--open", help="Only jobs that may be looked at while Foretell is changed.")]
Page = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Fill in the table of this page.")]

# Verbs that lie in packages of their own, and are loaded when they are run: `foretell --help` waits for none of them.
_PACKAGED: Final = {
    "answers": "answers.cli:answers",
    "captures": "measuring.cli:captures",
    "emulated": "emulated.cli:app",
    "fit": "fitting.cli:app",
    "measure": "measuring.cli:app",
    "memory": "measuring.memory.cli:app",
    "scripts": "studies.scripts.cli:app",
    "speed": "speed.cli:app",
    "study": "studies.cli:app",
}


class _Verbs(TyperGroup):
    """The verbs below, and those of the packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_PACKAGED]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _PACKAGED:
            return super().get_command(ctx, cmd_name)
        module, _, name = _PACKAGED[cmd_name].partition(":")
        verb = getattr(import_module(f"foretell_bench.{module}"), name)
        if isinstance(verb, typer.Typer):
            return typer.main.get_group(verb)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name)(verb)
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Verbs,
    name="bench",
    help="Compare what Foretell predicts with what was measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _bench() -> None:
    """Compare what Foretell predicts with what was measured."""


@app.command()
@guarded
def distributed(
    data: PublicData = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="SOURCE", help="Only this source.")] = None,
    most: Annotated[
        int,
        typer.Option("--rows", min=1, metavar="N", help="Forecast at most N rows of a source; they are drawn evenly."),
    ] = 20_000,
    workers: Workers = 1,
    answers: Answers = None,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found; other sources there stay.")
    ] = None,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Steps of several devices: plans, collectives, scaling, memory."""
    from foretell.errors import InputError
    from foretell_bench.tables import distributed as bench

    if saved is not None:
        found = bench.read(saved)
    elif data is None:
        raise InputError("give --data FOLDER to forecast anew, or --from FILE to show what was saved.")
    else:
        found = []
        with progress() as say:
            for each in bench.run(data, only or (), say, most, workers=workers, answers=answers):
                found.append(each)
                if save is not None:  # at once: the next source may take minutes
                    bench.save(each, save)
    figures = [figure for each in found for figure in each.figures]
    if page is not None:
        from foretell_bench.pages.benches import fill_page

        kept = bench.read(save) if save is not None else found
        fill_page(page, "distributed", [figure for each in kept for figure in each.figures])
    _show(figures, as_json)


@app.command()
@guarded
def published(
    data: PublicData = None,
    workers: Workers = 1,
    answers: Answers = None,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found of each job.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="MODEL",
            help="Make this model's trainers and intervals of several devices from these jobs.",
        ),
    ] = None,
    only_open: OnlyOpen = False,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Published jobs of one to a thousand devices, with nothing fitted: step time, memory, whether they fit."""
    from foretell.errors import InputError
    from foretell_bench.tables import published as bench

    if saved is not None:
        found = bench.read(saved)
    elif data is None:
        raise InputError("give --data FOLDER to forecast anew, or --from FILE to show what was saved.")
    else:
        with progress() as say:
            found = bench.run(data, say, workers=workers, answers=answers, calibrate=calibrate, only_open=only_open)
        if save is not None:
            bench.save(found, save)
    figures = bench.figures(found)
    if page is not None:
        from foretell_bench.pages.benches import markdown, put_tables

        parts = [
            f for f in figures if f.source.partition(": ")[0] in ("network", "regime", "source", "trainer", "device")
        ]
        whole = [f for f in figures if f not in parts]
        put_tables(page, {"published": markdown(whole), "published parts": markdown(parts)})
    _show(figures, as_json)


@app.command()
@guarded
def papers(
    workers: Workers = 1,
    only: Annotated[str | None, typer.Option("--only", metavar="NAME", help="Jobs whose name holds this.")] = None,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found of each job.")
    ] = None,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Jobs as their papers ran them, from one device to 16,384: MFU or device-hours, and whether they fit."""
    from foretell_bench.tables import papers as bench

    if saved is not None:
        found = bench.read(saved)
    else:
        with progress() as say:
            found = bench.run(say, workers=workers, only=only)
        if save is not None:
            bench.save(found, save)
    figures = bench.figures(found)
    if page is not None:
        from foretell_bench.pages.benches import markdown, put_tables

        put_tables(page, {"papers": markdown(figures)})
    _show(figures, as_json)


@app.command()
@guarded
def peers(
    data: PublicData = None,
    workers: Workers = 1,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep every answer, and go on from those kept there.")
    ] = None,
    llm_analysis: Annotated[
        str | None,
        typer.Option(
            "--llm-analysis", metavar="PYTHON", help="An interpreter with llm-analysis; else as others ran it."
        ),
    ] = None,
    only_open: OnlyOpen = False,
    most: Annotated[int | None, typer.Option("--rows", min=1, metavar="N", help="Ask about at most N jobs.")] = None,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Foretell and other tools on the same published jobs: errors, failures, seconds, and what must be written to ask."""
    from foretell.errors import InputError
    from foretell_bench.tables import peers as bench

    if saved is not None:
        found = bench.read(saved)
    elif data is None:
        raise InputError("give --data FOLDER to ask anew, or --from FILE to show what was saved.")
    else:
        with progress() as say:
            found = bench.run(
                data, say, llm_analysis=llm_analysis, only_open=only_open, most=most, keep=save, workers=workers
            )
    if page is not None:
        from foretell_bench.pages.benches import put_table

        put_table(page, "peers", bench.page_table(found))
    _show(bench.figures(found), as_json)


@app.command()
@guarded
def resources(
    store: Annotated[
        Path | None, typer.Option("--store", metavar="FOLDER", help="Measured steps, as bench/data/h200 has them.")
    ] = None,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found of each step.")
    ] = None,
    jobs: Annotated[
        Path | None, typer.Option("--jobs", metavar="FILE", help="What `foretell bench published --save` wrote.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FOLDER", help="Write how far forecasts are off into a model's folder; with --jobs."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Memory of steps of one device, and the figures of it that a model ships with."""
    from foretell.errors import InputError
    from foretell_bench.tables import published
    from foretell_bench.tables import resources as bench

    if saved is not None:
        steps = bench.read(saved)
    elif store is None:
        raise InputError("give --store FOLDER to forecast anew, or --from FILE to show what was saved.")
    else:
        with progress() as say:
            steps = bench.run(store, say=say)
        if save is not None:
            bench.save(steps, save)
    if write is not None:
        if jobs is None:
            raise InputError(
                "--write needs --jobs FILE too: of several devices, published jobs say how far memory is off."
            )
        known = published.read(jobs).jobs
        bench.write(bench.accuracy(steps, known), steps, known, write)
    _show(bench.figures(steps), as_json)


@app.command()
@guarded
def planner(
    data: PublicData = None,
    workers: Workers = 1,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found of each table.")
    ] = None,
    page: Page = None,
    spaces: Annotated[
        int | None,
        typer.Option("--spaces", min=1, metavar="N", help="Instead, N random spaces: is the best ever beaten?"),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option("--answers", metavar="FILE", help="Keep each space's answer, to go on after a run was stopped."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plans chosen from measured configurations: what they lose to the best, compared with CherryPick."""
    from dataclasses import asdict

    from foretell.errors import InputError
    from foretell_bench.pages import planner as pages
    from foretell_bench.pages.benches import put_table
    from foretell_bench.tables import planner as bench
    from foretell_bench.tables import spaces as random_spaces

    if spaces is not None:
        with progress() as say:
            counted = random_spaces.figures(random_spaces.run(spaces, say, workers=workers, answers=answers))
        _show(counted, as_json)
        return
    if saved is not None:
        found = bench.read(saved)
    elif data is None:
        raise InputError("give --data FOLDER to plan anew, or --from FILE to show what was saved.")
    else:
        with progress() as say:
            found = bench.run(data, say, workers=workers, keep=save)
    summaries = bench.summaries(found)
    if page is not None:
        put_table(page, "planner", pages.markdown(found, summaries))
    answer(as_json, lambda: [asdict(f) for f in found], lambda width: pages.drawn(summaries))


@app.command()
@guarded
def accuracy(
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", metavar="FOLDER", help="A store of measured steps to predict unseen; may be given again."
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="What its steps were measured on.")] = "h200",
    split: Annotated[
        str,
        typer.Option(
            "--split",
            metavar="NAME",
            help="What is left out: family, architecture, random, batch, generated or kinds; compiled: compiled steps.",
        ),
    ] = "family",
    products: Annotated[
        Path | None,
        typer.Option("--products", metavar="FILE", help="Public measurements of matrix products to learn from too."),
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show what --save wrote, and predict nothing.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep the prediction of each step.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write a page with tables, and charts next to it.")
    ] = None,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Remove parts of the predictor instead, and show what each contributes.")
    ] = False,
    parts: Annotated[
        Path | None,
        typer.Option("--ablated", metavar="FILE", help="Put what --ablations --save wrote on the page, and no more."),
    ] = None,
    later: Annotated[
        Path | None, typer.Option("--newer", metavar="FILE", help="What `bench newer --save` wrote, for the page too.")
    ] = None,
    graphs: Annotated[
        Path, typer.Option("--graphs", metavar="FOLDER", help="Where graphs of compiled steps are kept.")
    ] = Path("out/compiled"),
    kept: Annotated[bool, typer.Option("--kept", help="Of compiled steps, those whose graphs are kept.")] = False,
    blind: Annotated[bool, typer.Option("--blind", help="Of compiled steps, those that no fit has seen.")] = False,
    capture_only: Annotated[
        bool, typer.Option("--capture-only", help="Capture graphs of compiled steps, and forecast nothing.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Fits, or captures, that run side by side.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Steps of one device that the model has not seen: device time, step time, intervals, rivals."""
    from foretell.errors import InputError
    from foretell_bench.research.coverage import GENERATED
    from foretell_bench.studies.compiled import SPLIT as COMPILED
    from foretell_bench.tables import accuracy as bench
    from foretell_bench.tables.kinds import SPLIT as KINDS

    if parts is not None:
        _fill_ablated(parts, page)
        return
    if bool(data) == (saved is not None):
        raise InputError("give --data STORE to predict its steps, or --from FILE to show what was saved, and not both.")
    if split == COMPILED:
        if not kept and saved is None:
            _capture_compiled(data or [], graphs, blind, workers)
        if not capture_only:
            _compiled(data or [], saved, save, page, graphs, blind, workers, as_json)
        return
    if split == GENERATED:
        _generated(data or [], saved, save, page, as_json)
        return
    if split == KINDS:
        _kinds(data or [], saved, save, as_json)
        return
    if ablations:
        _ablate(data, device, products, save, workers, as_json)
        return
    if saved is not None:
        unseen, moves = bench.read(saved)
    else:
        assert data
        with progress() as say:
            unseen = bench.predict_stores(
                data, device=device, products=products, split=split, workers=workers, progress=say
            )
        moves = bench.noise(data, device)
    steps = unseen.steps
    if save is not None:
        bench.save(unseen, moves, save)
    if page is not None:
        from foretell_bench.pages.accuracy import write_page

        write_page(
            page,
            bench.tables(steps, moves),
            newer=bench.read_newer(later) if later else None,
        )
    _show(bench.figures(steps, moves), as_json)


def _capture_compiled(data: list[Path], graphs: Path, blind: bool, workers: int) -> None:
    """Graphs of compiled steps and of the same steps eager; what failed is said, and tried again by the next call."""
    from foretell_bench.studies import compiled as bench

    with progress() as say:
        found = [bench.capture(each, graphs, blind=blind, workers=workers, progress=say) for each in data]
    for name, reason in (item for failed in found for item in failed.items()):
        typer.echo(f"{name}: {reason}", err=True)


def _compiled(
    data: list[Path],
    saved: Path | None,
    save: Path | None,
    page: Path | None,
    graphs: Path,
    blind: bool,
    workers: int,
    as_json: bool,
) -> None:
    """Compiled steps as they are captured and forecast."""
    from foretell_bench.studies.compiled import predict
    from foretell_bench.tables import compiled as bench

    if saved is not None:
        steps = bench.read(saved)
    else:
        with progress() as say:
            steps = [
                step for each in data for step in predict(each, graphs, blind=blind, workers=workers, progress=say)
            ]
    if save is not None:
        bench.save(steps, save)
    if page is not None:
        from foretell_bench.pages.compiled import fill

        fill(page, steps)
    _show(list(bench.figures(steps)), as_json)


def _generated(data: list[Path], saved: Path | None, save: Path | None, page: Path | None, as_json: bool) -> None:
    from foretell_bench.tables import generated as bench

    if saved is not None:
        steps = bench.read(saved)
    else:
        with progress() as say:
            steps = bench.predict_blind(data, progress=say)
    if save is not None:
        bench.save(steps, save)
    if page is not None:
        from foretell_bench.pages.generated import fill

        fill(page, steps)
    _show(bench.figures(steps), as_json)


def _kinds(data: list[Path], saved: Path | None, save: Path | None, as_json: bool) -> None:
    from foretell_bench.tables import kinds as bench
    from foretell_bench.tables.generated import read
    from foretell_bench.tables.generated import save as keep

    if saved is not None:
        steps = read(saved)
    else:
        with progress() as say:
            steps = bench.predict(data, progress=say)
    if save is not None:
        keep(steps, save)
    _show(bench.figures(steps), as_json)


def _ablate(
    data: list[Path] | None, device: str, products: Path | None, save: Path | None, workers: int, as_json: bool
) -> None:
    from foretell.errors import InputError
    from foretell_bench.tables import accuracy as bench

    if not data:
        raise InputError("--ablations fits anew with parts removed. Give it --data STORE, not --from FILE.")
    with progress() as say:
        found = bench.ablate_stores(data, device=device, products=products, workers=workers, progress=say)
    if save is not None:
        bench.save_ablations(found, save)
    _show(bench.ablation_figures(found), as_json)


def _fill_ablated(parts: Path, page: Path | None) -> None:
    from foretell.errors import InputError
    from foretell_bench.pages.accuracy import ablation_table
    from foretell_bench.pages.benches import put_table
    from foretell_bench.tables import accuracy as bench

    if page is None:
        raise InputError("--ablated fills in the table of a page. Give --page FILE too.")
    put_table(page, "ablations", ablation_table(bench.read_ablations(parts)))


def _show(found: Sequence[Figure], as_json: bool) -> None:
    from foretell_bench.pages.benches import bench_table

    answer(as_json, lambda: [figure.to_dict() for figure in found], lambda width: bench_table(found))


@app.command()
@guarded
def newer(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="A store of measured steps.")],
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="A shipped model, or the folder of a fitted one.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found, for `accuracy --newer`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Steps of new architectures, measured after a model was fitted and predicted by that model as it is."""
    from foretell_bench.tables import newer as bench

    with progress() as say:
        found = bench.predict_newer(data, model, progress=say)
    if save is not None:
        bench.save(found, save)
    _show(bench.figures(found), as_json)


@app.command()
@guarded
def power(
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="Steps that ran for seconds.")] = Path(
        "bench/data/h200_power.jsonl"
    ),
    graphs: Annotated[Path, typer.Option("--graphs", metavar="FOLDER", help="The store with their graphs.")] = Path(
        "bench/data/h200"
    ),
    saved: Saved = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found.")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FOLDER", help="Fit the numbers of a model's folder.")
    ] = None,
    limits: Annotated[
        Path | None, typer.Option("--limits", metavar="FILE", help="With steps that go on at their limit of power.")
    ] = None,
    public: Annotated[
        Path | None, typer.Option("--public", metavar="FOLDER", help="Instead, public runs on other boards.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Power of steps that ran for seconds, forecast and measured, and the numbers of it that a model ships with."""
    from foretell_bench.tables import power as bench
    from foretell_bench.tables import public_power

    if public is not None:
        with progress() as say:
            boards = list(public_power.run(public, say))
        _show(public_power.figures(boards), as_json)
        return
    if saved is not None:
        steps = bench.read(saved)
    else:
        with progress() as say:
            steps = bench.run(data, graphs, progress=say)
    if save is not None:
        bench.save(steps, save)
    limited = bench.read_limited(limits) if limits is not None else None
    if write is not None:
        bench.write(steps, write, limited)
    further = bench.limited_figures(steps, limited) if limited else []
    _show([*bench.figures(steps), *further], as_json)


@app.command()
@guarded
def plain(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="A store of plainly timed steps.")] = Path(
        "bench/data/h200-plain"
    ),
    graphs: Annotated[
        list[Path] | None, typer.Option("--graphs", metavar="FOLDER", help="Stores with their graphs and kernels.")
    ] = None,
    saved: Saved = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found.")] = None,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Steps that were timed where nothing was ever traced: what the host takes, with the model as shipped."""
    from foretell_bench.pages.benches import fill_page
    from foretell_bench.tables import plain as bench

    if saved is not None:
        steps = bench.read(saved)
    else:
        with progress() as say:
            steps = bench.predict(
                data, graphs or [Path("bench/data/h200"), Path("bench/data/h200-generated")], progress=say
            )
    if save is not None:
        bench.save(steps, save)
    found = list(bench.figures(steps))
    if page is not None:
        fill_page(page, "plain", found)
    _show(found, as_json)


@app.command()
@guarded
def devices(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements, as CSV files."),
    ] = None,
    most: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="Predict at most N steps of each source and device.")
    ] = 24,
    workers: Workers = 1,
    answers: Answers = None,
    saved: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show what --save wrote, and predict nothing.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found.")] = None,
    intervals: Annotated[
        Path | None,
        typer.Option("--intervals", metavar="FOLDER", help="Fit intervals on other devices into a model's folder."),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option("--jobs", metavar="FILE", help="Jobs of one device for --intervals: what bench published saved."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Fill in the tables of this page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ops and steps of devices that the model has not seen: errors of each way to predict them, intervals."""
    from foretell.errors import InputError
    from foretell_bench.tables import devices as bench

    if saved is not None:
        found = bench.read(saved)
    elif data is not None:
        with progress() as say:
            found = bench.run(data, most=most, workers=workers, answers=answers, progress=say)
    else:
        raise InputError("give --data FOLDER to predict anew, or --from FILE to show what was saved.")
    if save is not None:
        bench.save(found, save)
    if intervals is not None:
        bench.write_intervals(found, jobs, intervals)
    figures = bench.figures(found)
    if page is not None:
        from foretell_bench.pages.benches import fill_page, put_table, side_by_side

        for kind in ("ops", "steps"):
            lines = [figure for figure in figures if figure.source.startswith(f"{kind}: ")]
            put_table(page, kind, side_by_side(lines, bench.WAYS[kind]))
        fill_page(page, "bars", bench.bars(found))
    _show(figures, as_json)


@app.command()
@guarded
def intervals(
    results: Annotated[
        Path,
        typer.Option("--results", metavar="FOLDER", help="With accuracy.json, devices.json and published.json."),
    ] = Path("bench/results"),
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Of each class of steps: how many lie inside their intervals, how wide those are, and where their middle is."""
    from dataclasses import asdict

    from foretell_bench.pages import intervals as pages
    from foretell_bench.tables.intervals import read_classes

    found = read_classes(results)
    if page is not None:
        from foretell_bench.pages.benches import put_table

        put_table(page, "intervals", pages.markdown(found))
    answer(as_json, lambda: [asdict(each) for each in found], lambda width: pages.drawn(found))


@app.command()
@guarded
def transfer(
    data: PublicData = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="SOURCE", help="Only this source.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Random draws of each number.")] = 5,
    workers: Workers = 1,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found; other settings there stay.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", help="Fill in the tables of this page, and draw its curves."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """New devices, clusters and trainers: errors as it is and after 5 to 50 step times, compared with rivals on the same rows."""
    from foretell.errors import InputError
    from foretell_bench.tables import tailoring
    from foretell_bench.tables import transfer as bench

    if saved is not None:
        lines = bench.read(saved).lines
    elif data is None:
        raise InputError("give --data FOLDER to forecast anew, or --from FILE to show what was saved.")
    else:
        lines = []
        with progress() as say:
            for found in bench.run(data, only or (), say, workers=workers, seeds=seeds):
                lines += found.lines
                if save is not None:  # at once: the next setting may take minutes
                    bench.save(found, save)
    if page is not None:
        from foretell_bench.pages.transfer import fill

        fill(page, lines if save is None else bench.read(save).lines)
    _show(tailoring.figures(lines), as_json)


@app.command()
@guarded
def methods(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements, as CSV files."),
    ] = None,
    stores: Annotated[
        Path, typer.Option("--stores", metavar="FOLDER", help="The project's own measurements: h200 and box.")
    ] = Path("bench/data"),
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="METHOD", help="Only this method; one of your own is package.module:Class."),
    ] = None,
    source: Annotated[list[str] | None, typer.Option("--source", metavar="NAME", help="Only this data.")] = None,
    most: Annotated[
        int | None, typer.Option("--rows", min=8, metavar="N", help="Take at most N rows of a source, drawn evenly.")
    ] = None,
    save: Annotated[
        Path, typer.Option("--save", metavar="FILE", help="Where results are kept; others there stay.")
    ] = Path("bench/results/methods.json"),
    saved: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show what was saved, and fit nothing.")
    ] = None,
    pages: Annotated[
        list[Path] | None,
        typer.Option("--pages", metavar="PATH", help="Fill in the tables of this page, or of a folder's pages."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Fits that run side by side.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out what the results have already.")] = False,
    folds: Annotated[
        Path | None,
        typer.Option("--folds", metavar="FILE", help="Five folds and three seeds of all instead, into this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The published systems and ours on the same rows and splits: errors, and what each fit consumed."""
    from foretell_bench.tables import methods as bench
    from foretell_bench.tables import paired
    from foretell_bench.tables.results import read, study_results

    if folds is not None:
        with progress() as say:
            paired.run_all(
                folds, data, stores, folds.parent / "methods-blind.json", only=only or (), chosen=source or (),
                workers=workers, say=say,
            )  # fmt: skip
    elif saved is None:
        with progress() as say:
            bench.run_all(
                data,
                stores,
                save,
                only=only or (),
                chosen=source or (),
                rows=most,
                workers=workers,
                say=say,
                resume=resume,
            )
    results = read(saved or save)
    from foretell_bench.pages.methods import fill_pages, methods_table

    for page in pages or ():
        fill_pages(page, results, study_results((saved or save).parent))
    answer(as_json, lambda: results, lambda width: methods_table(results))


@app.command()
@guarded
def status(
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="Write this page.")],
    results: Annotated[Path, typer.Option("--results", metavar="FOLDER", help="Saved results.")] = Path(
        "bench/results"
    ),
    notes: Annotated[
        Path, typer.Option("--notes", metavar="FILE", help="What is written by hand: next, and in doubt.")
    ] = Path("bench/notes/status.md"),
) -> None:
    """The page of all figures that have a bar, from saved results."""
    from foretell_bench.pages.status import write_page

    write_page(page, results, notes)
