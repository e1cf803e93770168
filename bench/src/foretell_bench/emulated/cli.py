"""`foretell bench emulated`: jobs, steps and collectives on emulated hosts."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import guarded, print_json, say

if TYPE_CHECKING:
    from foretell_bench.emulated.collectives import Row as CollectiveRow
    from foretell_bench.emulated.steps import Row as StepRow

app = typer.Typer(
    name="emulated",
    help="Train on emulated hosts: network namespaces of this machine, joined by links of a limited rate.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Graphs = Annotated[bool, typer.Option("--graphs", help="Capture the graphs of the networks, and run nothing.")]
HostCounts = Annotated[str, typer.Option("--hosts", metavar="N,N", help="Numbers of hosts.")]
Rates = Annotated[str, typer.Option("--rates", metavar="R,R", help="Bits per second of every link.")]
Networks = Annotated[int | None, typer.Option("--networks", min=1, metavar="N", help="Only the first N networks.")]
Loopback = Annotated[bool, typer.Option("--loopback", help="Make no namespaces, even where they can be made.")]


def _need_namespaces() -> None:
    from foretell.errors import InputError
    from foretell_bench.emulated import namespaces

    if reason := namespaces.why_not():
        raise InputError(f"no hosts can be emulated here: {reason}.")


@app.command()
@guarded
def hosts(
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Runs; those there stay.")] = Path(
        "bench/data/box"
    ),
    minutes: Annotated[float, typer.Option("--minutes", help="Start no setting after these.")] = 25.0,
    only: Annotated[str, typer.Option("--only", metavar="SETTING", help="Only this setting, like dp=2@200.")] = "",
    most: Annotated[int | None, typer.Option("--rows", min=1, metavar="N", help="At most N runs of a setting.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat runs whose counters were read late.")] = False,
    graphs: Graphs = False,
) -> None:
    """Jobs on two to four hosts with a share of a core each: times, and use of network and processor."""
    from foretell_bench.emulated.models import NETWORKS, network, save_graphs

    if graphs:
        usual = [(name, batch) for name, (_, batch) in NETWORKS.items()]
        say(
            "\n".join(
                save_graphs(folder, network, [(name, times * batch) for name, batch in usual for times in (1, 2)])
            )
        )
        return
    _need_namespaces()
    from foretell_bench.emulated.host_jobs import run_all

    run_all(folder, minutes=minutes, only=only, most=most, again=again, say=say)


@app.command()
@guarded
def cnns(
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Runs; those there stay.")] = Path(
        "bench/data/box-cnns"
    ),
    cores: Annotated[str, typer.Option("--cores", metavar="N,N", help="One for each worker, like 4,5,6,7.")] = "0,1",
    seconds: Annotated[float, typer.Option("--seconds", help="Begin no job after these.")] = 540.0,
    networks: Networks = None,
    loopback: Loopback = False,
    graphs: Graphs = False,
) -> None:
    """Jobs of 45 convolutional networks on one to eight workers, a core each."""
    from foretell_bench.emulated.cnn_models import NETWORKS, network
    from foretell_bench.emulated.models import save_graphs

    if graphs:
        say("\n".join(save_graphs(folder, network, [(name, batch) for name, (_, batch) in NETWORKS.items()])))
        return
    import torch

    from foretell_bench.emulated.cnn_jobs import run_all

    torch.set_num_threads(1)
    chosen, end = [int(core) for core in cores.split(",")], time.monotonic() + seconds
    run_all(folder, chosen, list(NETWORKS)[:networks], namespaced=not loopback, end=end, say=say)


@app.command()
@guarded
def gpu(
    state: Annotated[Path | None, typer.Option("--state", metavar="FOLDER", help="Where it keeps what it did.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Start nothing after these.")] = 540.0,
    device: Annotated[Literal["cuda", "cpu"], typer.Option("--device", help="What workers share.")] = "cuda",
    cores: Annotated[str, typer.Option("--cores", metavar="N,N", help="The last one is for counters.")] = "",
    networks: Networks = None,
    batches: Annotated[int, typer.Option("--batches", min=1, metavar="N", help="Of every network.")] = 8,
    loopback: Loopback = False,
    collect: Annotated[
        Path | None, typer.Option("--collect", metavar="FOLDER", help="Write rows of such a state, and run nothing.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Where --collect writes.")] = Path(
        "bench/data/box-gpu"
    ),
    graphs: Graphs = False,
) -> None:
    """Jobs of two workers that share one GPU, over links of a limited rate."""
    from foretell.errors import InputError

    if graphs:
        from foretell_bench.emulated.gpu_jobs import batches as batches_of
        from foretell_bench.emulated.models import ON_A_DEVICE, network, save_graphs

        # At the two smallest batches, from which the others are continued.
        smallest = [(name, batch) for name in ON_A_DEVICE for batch in batches_of(name)[:2]]
        say("\n".join(save_graphs(folder, network, smallest)))
    elif collect is not None:
        from foretell_bench.emulated.collect import collect as collect_rows
        from foretell_bench.emulated.readings import read_lines

        rows, both = collect_rows(read_lines(collect / "raw.jsonl"), read_lines(collect / "device.jsonl"), folder)
        say(f"{rows} rows, {both} with both")
    elif state is None:
        raise InputError("give --state FOLDER to measure, --collect FOLDER to write its rows, or --graphs.")
    else:
        from foretell_bench.emulated.gpu_jobs import Campaign

        chosen = [int(core) for core in cores.split(",")] if cores else sorted(os.sched_getaffinity(0))
        made = Campaign(
            state=state, device=device, cores=chosen, loopback=loopback, networks=networks, batches=batches, say=say
        )  # fmt: skip
        made.run(seconds)


@app.command()
@guarded
def steps(
    counts: HostCounts = "2,3,4",
    rates: Rates = "1e9,5e8,2e8",
    width: Annotated[int, typer.Option("--width", help="Of the network: gradients grow with its square.")] = 400,
    zero: Annotated[int, typer.Option("--zero", min=0, max=3, help="ZeRO stage: 3 is FSDP.")] = 0,
    as_json: AsJson = False,
) -> None:
    """A step over gloo: bytes on the wire and step time, measured and forecast."""
    _need_namespaces()
    from foretell_bench.emulated.steps import rows

    wanted = [float(rate) for rate in rates.split(",")]
    found = [row for number in map(int, counts.split(",")) for row in rows(number, wanted, width, zero)]
    if as_json:
        print_json([asdict(row) for row in found])
    else:
        say(step_table(found))


def step_table(rows: list[StepRow]) -> str:
    lines = ["| hosts | plan | rate, Mbit/s | sent per step | forecast | error | step | forecast | error | no limit |"]
    lines.append("|---" * 10 + "|")
    for row in rows:
        lines.append(
            f"| {row.hosts} | {row.plan} | {row.bits_per_second / 1e6:.0f} | {row.sent_bytes:,} | {row.forecast_bytes:,} "
            f"| {row.bytes_error:+.2%} | {row.step_seconds * 1e3:.0f} ms | {row.forecast_seconds * 1e3:.0f} ms "
            f"| {row.step_error:+.1%} | {row.compute_seconds * 1e3:.0f} ms |"
        )
    return "\n".join(lines)


@app.command()
@guarded
def collectives(
    counts: HostCounts = "2,3,4",
    rates: Rates = "1e9,2e8",
    fit_hosts: Annotated[int, typer.Option("--fit-hosts", min=2, metavar="N", help="Fit links on times of these.")] = 2,
    listed: Annotated[float, typer.Option("--listed", metavar="R", help="Bits per second before the fit.")] = 1e9,
    as_json: AsJson = False,
) -> None:
    """Collectives over gloo: errors as listed, and with links fitted on three times."""
    _need_namespaces()
    from foretell_bench.emulated.collectives import run

    numbers = [int(number) for number in counts.split(",")]
    every = [run(float(rate), numbers, fit_hosts=fit_hosts, listed=listed) for rate in rates.split(",")]
    found = [row for rows in every for row in rows]
    if as_json:
        print_json([asdict(row) for row in found])
    else:
        say(collective_table(found))


def collective_table(rows: list[CollectiveRow]) -> str:
    lines = ["| rate, Mbit/s | hosts | collective | as listed | fitted | below 256 KiB, as listed | fitted |"]
    lines.append("|---" * 7 + "|")
    for long, short in zip(rows[::2], rows[1::2], strict=True):
        shown = " | ".join(f"{error:.0%}" for row in (long, short) for error in (row.before, row.after))
        lines.append(f"| {long.rate / 1e6:.0f} | {long.hosts} | {long.kind} | {shown} |")
    return "\n".join(lines)


@app.command()
@guarded
def picture(
    series: Annotated[Path, typer.Option("--series", metavar="FILE", help="Measured series.")] = Path(
        "bench/data/box/series.jsonl.gz"
    ),
    network: Annotated[str, typer.Option("--network", help="Whose jobs are drawn.")] = "transformer-128x3",
    seconds: Annotated[float, typer.Option("--seconds", help="How much of a job is drawn.")] = 1.2,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="An SVG file.")] = Path(
        "bench/notes/methods/driple-series.svg"
    ),
) -> None:
    """Draw what a worker's steps do to its network and processor."""
    from foretell_bench.emulated import picture as drawing

    out.write_text(drawing.picture(drawing.series(series, network), network, seconds), encoding="utf-8")
