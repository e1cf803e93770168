"""`foretell bench measure`: the H200 dataset and its description, designs, this CPU adapted; `foretell bench captures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretell.cli.terminal import guarded

Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]…", help="Record files, as `points` leaves them.")]
Seconds = Annotated[float, typer.Option("--seconds", help="Begin nothing new after so long.")]

app = typer.Typer(
    name="measure",
    help="Make, pack and describe measurements of our own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
@guarded
def points(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT…",
            help="steps, repeats, later, classics, five, kinds, kinds-blind, kinds-operators, kinds-operators-later, or a file.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where record files go; a new folder.")],
    done: Annotated[
        Path | None, typer.Option("--done", metavar="FILE", help="Keys of points that are measured already.")
    ] = None,
    seconds: Seconds = 540.0,
    limit: Annotated[float, typer.Option("--limit", help="Seconds that preparing a round may take.")] = 40.0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that prepare side by side.")] = 14,
    device: Annotated[str, typer.Option("--device", help="As torch names it.")] = "cuda",
    plain: Annotated[
        bool, typer.Option("--plain", help="Times and peaks alone, where nothing was ever traced.")
    ] = False,
) -> None:
    """Measure the H200 dataset on this machine's accelerator."""
    from foretell_bench.measuring.h200.campaign import Options, run

    known = frozenset(done.read_text().split()) if done else frozenset()
    run(what, out, Options(done=known, seconds=seconds, limit=limit, workers=workers, device=device, plain=plain))


@app.command()
@guarded
def compiled(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where rows go.")],
    done: Annotated[
        Path | None, typer.Option("--done", metavar="FILE", help="Rows that are measured already, packed.")
    ] = None,
    later: Annotated[bool, typer.Option("--later", help="The part that is blind as a whole.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="End after so long.")] = 560.0,
    limit: Annotated[float, typer.Option("--limit", help="Seconds that compiling a point may take.")] = 120.0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that compile side by side.")] = 14,
    device: Annotated[str, typer.Option("--device", help="As torch names it.")] = "cuda",
) -> None:
    """Measure steps eager and compiled, kernel by kernel, with the schedules that the compiler made."""
    from foretell_bench.measuring.compiled.campaign import Options, run
    from foretell_bench.measuring.compiled.rows import keys_of

    known = keys_of(done) if done else frozenset()
    run(out, Options(done=known, later=later, seconds=seconds, limit=limit, workers=workers, device=device))


@app.command()
@guarded
def unseen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The campaign, for `points`.")],
    busy: Annotated[bool, typer.Option("--busy", help="Fewer, with batches that keep the device busy.")] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=17, help="Others again, none that an earlier draw has.")
    ] = None,
) -> None:
    """Draw steps of architectures that are not in the dataset."""
    from foretell_bench.measuring.h200.unseen import run

    run(file, busy=busy, seed=seed)


@app.command()
@guarded
def collect(
    files: Files = None,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The store.")] = Path("bench/data/h200"),
    anew: Annotated[bool, typer.Option("--anew", help="Write what is there again, as this version does.")] = False,
) -> None:
    """Pack record files into the dataset."""
    from foretell_bench.measuring.h200.collect import run

    run(files or [], to, anew=anew)


@app.command()
@guarded
def collect_sweeps(
    files: Files = None,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The store.")] = Path("bench/data/h200-sweep"),
) -> None:
    """Pack batch sweeps into a store; without files, say how far the steps that are there vary."""
    from foretell_bench.measuring.h200.collect_sweeps import run

    run(files or [], to)


@app.command()
@guarded
def card(
    folder: Annotated[Path, typer.Argument(metavar="[STORE]", help="The dataset.")] = Path("bench/data/h200"),
) -> None:
    """Print how much a dataset has, how well it is aligned, and how far the same point moves between occasions."""
    from foretell_bench.measuring.h200.card import run

    run(folder)


@app.command()
@guarded
def sequences(
    part: Annotated[Literal["recorded", "compare", "show"], typer.Argument(help="What to do.")],
    source: Annotated[Path, typer.Argument(metavar="FROM", help="The store, what `recorded` wrote, or the figures.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="A file for `recorded`, a folder for `compare`.")
    ] = Path(),
    seconds: Seconds = 500.0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that capture side by side.")] = 2,
) -> None:
    """Compare captured steps with the ops that CUDA ran, op by op."""
    from foretell_bench.measuring.h200 import sequences as bench

    if part == "recorded":
        bench.recorded(source, out)
    elif part == "compare":
        bench.compare(source, out, seconds, workers)
    else:
        bench.show_file(source)


@app.command()
@guarded
def sustained(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A JSON file.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How long each step runs.")] = 25.0,
) -> None:
    """How much slower a device gets once it is warm."""
    from foretell_bench.measuring.h200.sustained import run

    run(out, seconds)


@app.command()
@guarded
def design(
    store: Annotated[Path, typer.Argument(metavar="[STORE]", help="Measured steps.")] = Path("bench/data/h200"),
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="What was measured on.")] = "h200",
    splits: Annotated[int, typer.Option("--splits", min=1, help="Repetitions with other architectures left out.")] = 8,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Random choices in each split.")] = 16,
    operators: Annotated[bool, typer.Option("--operators", help="Operator points are candidates too.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Results; a chart lies next to it.")] = Path(
        "bench/results/design.json"
    ),
) -> None:
    """Choices of what to measure: D-optimal, A-optimal and random, by the error they lead to."""
    from foretell_bench.measuring.design import Options, run

    run(store, out, device, Options(splits=splits, draws=draws, operators=operators))


@app.command()
@guarded
def adapt_cpu(
    budget: Annotated[str, typer.Option("--budget", metavar="TIME", help="For measuring and fitting.")] = "10min",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Store, catalog and profile.")] = Path("adapted"),
) -> None:
    """Adapt to this machine's CPU, then measure models of other families and compare them with forecasts."""
    from foretell.units import parse_seconds
    from foretell_bench.measuring.adapt_cpu import run_all

    run_all(out, parse_seconds(budget))


@app.command()
@guarded
def products(
    data: Annotated[Path, typer.Argument(metavar="FOLDER", help="Public measurements.")],
) -> None:
    """How well any number of measured matrix products could predict others of the same device."""
    from foretell_bench.measuring.products_floor import run

    run(data)


@guarded
def captures(
    library: Annotated[
        list[str] | None, typer.Option("--library", metavar="NAME", help="Only timm, torchvision or hf.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, metavar="N", help="N names of each library, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Captures side by side.")] = 1,
    limit: Annotated[float, typer.Option("--limit", help="Seconds that a name may take.")] = 180.0,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Results; a run goes on where it stopped.")] = Path(
        "bench/results/capture_coverage.jsonl"
    ),
) -> None:
    """Which named architectures can be captured: one training step of every name."""
    from foretell.errors import InputError, check_choice
    from foretell_bench.measuring.captures import LIBRARIES, Options, run

    for name in library or ():
        check_choice("library", name, LIBRARIES, InputError)
    run(out, Options(libraries=library or LIBRARIES, sample=sample, seed=seed, jobs=jobs, limit=limit, retry=retry))
