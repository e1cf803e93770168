"""`foretell bench study NAME`: one published system at a time, fitted and compared in its own setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from foretell.cli.terminal import guarded, note, say

app = typer.Typer(
    name="study",
    help="Fit one published system in its own setting, and compare it on the same rows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", envvar="FORETELL_DATA", help="Public measurements.")
]
Stores = Annotated[Path, typer.Option("--stores", metavar="FOLDER", help="The project's own measurements.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Fits that run side by side.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Random seeds.")]
On = Annotated[str, typer.Option("--on", metavar="DEVICE", help="Where networks are trained: cpu or cuda.")]
Show = Annotated[bool, typer.Option("--show", help="Show the results that are there, and fit nothing.")]
STORES = Path("bench/data")
RESULTS = Path("bench/results")
PICTURES = Path("bench/notes/methods")


def _out(what: str) -> Any:
    return typer.Option("--out", metavar="FILE", help=f"Results{what}; what is there stays.")


@app.command()
@guarded
def predictddl(
    data: Data = None,
    stores: Stores = STORES,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PART", help="Only this data.")] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Fit only this method; keep the others.")
    ] = None,
    architectures: Annotated[int, typer.Option("--architectures", metavar="N", help="Networks of timm.")] = 80,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps of the H200 store.")] = 300,
    precisions: Annotated[
        list[str] | None, typer.Option("--precision", metavar="NAME", help="Of cnn_many_gpus; usually fp16 and fp32.")
    ] = None,
    workers: Workers = 1,
    untimed: Annotated[bool, typer.Option("--untimed", help="Keep the seconds to an answer that are there.")] = False,
    out: Annotated[Path, _out("")] = RESULTS / "predictddl.json",
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw what the results have, and fit nothing.")
    ] = None,
) -> None:
    """PredictDDL on networks it has not seen, with Ernest and Foretell on the same rows."""
    from foretell.errors import InputError, check_choice
    from foretell_bench.studies.predictddl.fits import METHODS
    from foretell_bench.studies.predictddl.report import chart
    from foretell_bench.studies.predictddl.run import PARTS, Options, read, run

    if picture is not None:
        picture.write_text(chart(read(out)), encoding="utf-8")
        return
    for names, choices, what in ((only, PARTS, "--only"), (methods, METHODS, "--method")):
        for name in names or ():
            check_choice(what, name, tuple(choices), InputError)
    if data is None and (only is None or {"cnn", "timm"} & set(only)):
        raise InputError("give --data FOLDER with the public measurements, or --only PART of the project's own.")
    options = Options(
        data=data or Path(), stores=stores, results=out, methods=methods or METHODS, architectures=architectures,
        steps=steps, precisions=precisions or ("fp16", "fp32"), workers=workers, untimed=untimed, say=say,
    )  # fmt: skip
    run(options, only or tuple(PARTS))


@app.command()
@guarded
def scaledl(
    store: Annotated[Path, typer.Option("--store", metavar="FOLDER", help="Steps with times of ops.")] = STORES
    / "h200",
    by_architecture: Annotated[
        Path | None, typer.Option("--architecture", metavar="FILE", help="Forecasts with architectures left out.")
    ] = None,
    by_batch: Annotated[
        Path | None, typer.Option("--batch", metavar="FILE", help="Forecasts with largest batches left out.")
    ] = None,
    by_family: Annotated[
        Path | None, typer.Option("--family", metavar="FILE", help="Forecasts with families left out.")
    ] = RESULTS / "accuracy.json",
    predictions: Annotated[
        Path | None, typer.Option("--predictions", metavar="FILE", help="Keep predictions; those there stay.")
    ] = None,
    families: Annotated[bool, typer.Option("--families", help="Leave out whole families too.")] = False,
    seeds: Seeds = 1,
    workers: Workers = 2,
    on: On = "cpu",
    out: Annotated[Path, _out("")] = RESULTS / "scaledl.json",
    picture: Annotated[Path, typer.Option("--picture", metavar="FILE", help="Its chart.")] = PICTURES / "scaledl.svg",
    show: Show = False,
) -> None:
    """ScaleDL on steps of an H200, with additive models, its ablations and forecasts that `bench accuracy --save` wrote."""
    from foretell_bench.studies.scaledl import report
    from foretell_bench.studies.scaledl.run import Options, run

    if not show:
        options = Options(
            store=store, forecasts={"architecture": by_architecture, "batch": by_batch, "family": by_family},
            predictions=predictions, families=families, seeds=seeds, workers=workers, on=on, say=note,
        )  # fmt: skip
        out.write_text(json.dumps(run(options), indent=1) + "\n", encoding="utf-8")
    made = json.loads(out.read_text(encoding="utf-8"))
    report.show(made, say)
    picture.write_text(report.chart(made), encoding="utf-8")


@app.command()
@guarded
def driple(
    data: Annotated[
        Literal["box", "box-gpu"], typer.Option("--data", help="Jobs of hosts, or that share a GPU.")
    ] = "box",
    stores: Stores = STORES,
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Only settings whose name has this.")] = "",
    seeds: Seeds = 5,
    workers: Workers = 1,
    seconds: Annotated[float, typer.Option("--seconds", help="Begin no fit after these, and end.")] = 1e9,
    forecasts: Annotated[bool, typer.Option("--forecasts", help="Foretell and the median on the fits' rows.")] = False,
    h200: Annotated[int, typer.Option("--h200", metavar="N", help="Fit N rows of the H200 store instead.")] = 0,
    as_released: Annotated[bool, typer.Option("--as-released", help="100 groups, 50 rounds; needs a GPU.")] = False,
    stacked: Annotated[
        bool, typer.Option("--stacked", help="As released, until patience, all fits side by side on one GPU.")
    ] = False,
    on: On = "cpu",
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Graphs in an update.")] = None,
    patience: Annotated[
        int | None, typer.Option("--patience", metavar="N", help="Epochs without a better one.")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", help="At most so many.")] = None,
    labels: Annotated[Literal["largest", "log"] | None, typer.Option("--labels", help="What 1.0 means.")] = None,
    out: Annotated[Path | None, _out(", bench/results/driple.json or driple-box-gpu.json")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="Draw its curves.")] = None,
    show: Show = False,
) -> None:
    """Driple by setting: errors on unseen architectures, and what tailoring a network saves."""
    from foretell_bench.studies.driple import patience as patience_study
    from foretell_bench.studies.driple import report
    from foretell_bench.studies.driple.fits import by_setting, data_of
    from foretell_bench.studies.driple.run import Options, Study, compare, fit_h200, run

    training = {"batch": batch, "patience": patience, "epochs": epochs, "labels": labels}
    options = Options(
        data=data, stores=stores, only=only, seeds=seeds, workers=workers, seconds=seconds, as_released=as_released, on=on,
        training={name: value for name, value in training.items() if value}, say=note,
    )  # fmt: skip
    path = out or RESULTS / ("driple.json" if data == "box" else f"driple-{data}.json")
    study = Study(path, data_of(data, stores).source)
    if stacked and not show:
        of = data_of(data, stores)
        patience_study.run(
            by_setting(of.read()), of, path, study.results.setdefault("until patience", {}), seeds=seeds,
            seconds=seconds, on=on, say=note, keep=study.keep,
        )  # fmt: skip
    elif forecasts:
        compare(study, options)
    elif h200:
        fit_h200(study, options, h200)
    elif not show:
        run(study, options)
    report.show(study.results, study.source, say)
    if picture is not None:
        drawn = (
            report.curves(study.results["until patience"]["from scratch"])
            if stacked
            else report.picture(study.results, study.source)
        )
        picture.write_text(drawn, encoding="utf-8")


@app.command()
@guarded
def variants(
    data: Data = None,
    stores: Stores = STORES,
    source: Annotated[list[str] | None, typer.Option("--source", metavar="NAME", help="Only this data.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="VARIANT", help="Only this variant.")] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=8, metavar="N", help="At most N rows of a source.")] = None,
    seeds: Seeds = 5,
    workers: Workers = 1,
    on: On = "cpu",
    out: Annotated[Path, _out("")] = RESULTS / "variants.json",
    show: Show = False,
) -> None:
    """What parts of the published systems are worth, on the same folds and seeds."""
    from foretell.errors import InputError, check_choice
    from foretell_bench.studies import variants as study
    from foretell_bench.tables import variants as table

    for names, choices, what in ((source, study.ALL_SOURCES, "--source"), (only, table.VARIANTS, "--only")):
        for name in names or ():
            check_choice(what, name, tuple(choices), InputError)
    for each in () if show else source or study.ALL_SOURCES:
        study.run(
            each, data, stores, out, only=only or (), rows=rows, seeds=seeds, workers=workers, on=on, say=note
        )  # fmt: skip
    for row in table.table(table.read(out)):
        say("| " + " | ".join(row) + " |")
