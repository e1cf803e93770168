"""`foretell bench`: how wrong Foretell is, on measurements others have published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.terminal import AsJson, console_of, guarded, print_drawn, print_json, progress

if TYPE_CHECKING:
    from foretell.bench.figures import Figure

app = typer.Typer(
    name="bench",
    help="Compare what Foretell says with what was measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[
    Path, typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements, as CSV files.")
]


@app.callback()
def _bench() -> None:
    """Compare what Foretell says with what was measured."""


@app.command()
@guarded
def distributed(
    data: Data,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="SOURCE", help="Only this source.")] = None,
    most: Annotated[
        int,
        typer.Option("--rows", min=1, metavar="N", help="Forecast at most N rows of a source; they are drawn evenly."),
    ] = 120,
    as_json: AsJson = False,
) -> None:
    """Steps of several devices: plans, collectives, scaling, memory."""
    from foretell.bench import run

    with progress() as say:
        figures = run(data, only or (), say, most)
    _show(figures, as_json)


@app.command()
@guarded
def accuracy(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="A store of measured steps to foretell unseen.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="What its steps were measured on.")] = "h200",
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="What is left out: family, architecture, random or batch.")
    ] = "family",
    products: Annotated[
        Path | None,
        typer.Option("--products", metavar="FILE", help="Public measurements of matrix products to learn from too."),
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show what --save wrote, and foretell nothing.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was said of each step.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write a page with tables, and charts beside it.")
    ] = None,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Take parts of the predictor away instead, and tell what each earns.")
    ] = False,
    parts: Annotated[
        Path | None,
        typer.Option("--ablated", metavar="FILE", help="What --ablations --save wrote, for a table on the page."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Fits that run side by side.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Steps of one device that the model has not seen: device time, step time, intervals, rivals."""
    from foretell.bench import accuracy as bench
    from foretell.errors import InputError

    if (data is None) == (saved is None):
        raise InputError(
            "give --data STORE to foretell its steps, or --from FILE to show what was saved, and not both."
        )
    if ablations:
        _ablate(data, device, products, save, workers, as_json)
        return
    if saved is not None:
        steps, moves = bench.read(saved)
    else:
        assert data is not None
        with progress() as say:
            steps = bench.foretell_store(data, device=device, products=products, split=split, workers=workers, say=say)
        moves = bench.noise(data, device)
    if save is not None:
        bench.save(steps, moves, save)
    if page is not None:
        from foretell.report.accuracy import write_page

        write_page(page, bench.tables(steps, moves), bench.read_ablations(parts) if parts else ())
    _show(bench.figures(steps, moves), as_json)


def _ablate(
    data: Path | None, device: str, products: Path | None, save: Path | None, workers: int, as_json: bool
) -> None:
    from foretell.bench import accuracy as bench
    from foretell.errors import InputError

    if data is None:
        raise InputError("--ablations fits anew with parts taken away. Give it --data STORE, not --from FILE.")
    with progress() as say:
        found = bench.ablate_store(data, device=device, products=products, workers=workers, say=say)
    if save is not None:
        bench.save_ablations(found, save)
    _show(bench.ablation_figures(found), as_json)


def _show(found: Sequence[Figure], as_json: bool) -> None:
    if as_json:
        print_json([figure.to_dict() for figure in found])
    else:
        from foretell.report.benches import bench_table

        print_drawn(bench_table(found), console_of())
