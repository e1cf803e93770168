"""Steps of one device: time, memory, what the parts of the predictor contribute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import guarded, progress
from foretell_bench.cli.options import Page, Saved, show


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
    show(bench.figures(steps, moves), as_json)


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
    show(list(bench.figures(steps)), as_json)


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
    show(bench.figures(steps), as_json)


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
    show(bench.figures(steps), as_json)


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
    show(bench.ablation_figures(found), as_json)


def _fill_ablated(parts: Path, page: Path | None) -> None:
    from foretell.errors import InputError
    from foretell_bench.pages.accuracy import ablation_table
    from foretell_bench.pages.benches import put_table
    from foretell_bench.tables import accuracy as bench

    if page is None:
        raise InputError("--ablated fills in the table of a page. Give --page FILE too.")
    put_table(page, "ablations", ablation_table(bench.read_ablations(parts)))


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
    show(bench.figures(found), as_json)


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
    show(found, as_json)


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
    show(bench.figures(steps), as_json)
