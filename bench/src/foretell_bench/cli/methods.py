"""The published systems beside the product."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, guarded, progress


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
