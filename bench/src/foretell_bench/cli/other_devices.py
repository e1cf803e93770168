"""Devices that the model has not seen, power, and what a few step times tell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, guarded, progress
from foretell_bench.cli.options import Answers, Page, PublicData, Saved, Workers, show


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
    show(figures, as_json)


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
    show(tailoring.figures(lines), as_json)


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
        show(public_power.figures(boards), as_json)
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
    show([*bench.figures(steps), *further], as_json)
