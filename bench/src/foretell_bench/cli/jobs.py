"""Jobs of several devices: what was measured, what papers and other tools say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import guarded, progress
from foretell_bench.cli.options import Answers, OnlyOpen, Page, PublicData, Saved, Workers, show


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
    show(figures, as_json)


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
    show(figures, as_json)


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
    show(figures, as_json)


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
    show(bench.figures(found), as_json)
