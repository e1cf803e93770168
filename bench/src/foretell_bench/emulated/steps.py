"""Steps on emulated hosts: measured with `foretell.measure`, as a user would, and compared with their forecasts.

python -m foretell_bench.emulated.steps NAME OUT TIMEOUT RUN…     one rank, which measures some runs in turn
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import foretell
from foretell.errors import ForetellError
from foretell.measure.record import Point, Record
from foretell_bench.emulated.launch import Programs, started
from foretell_bench.emulated.namespaces import Cluster, cluster

SOURCE: Final = "foretell_bench.emulated.models:cnn"
UNLIMITED: Final = 1e11  # bits a second, more than this machine moves
NO_HOST: Final = 1e-6  # a profile's factor: a processor that computes issues no kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A step to measure, with all links at a rate."""

    bits_per_second: float
    plan: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def ranks(
    made: Cluster, runs: Sequence[Run], folder: Path, *, torchrun: bool = False, timeout: float = 300.0
) -> AbstractContextManager[Programs]:
    """A rank on every host, which measures these runs into `out.jsonl`."""
    arguments = ["-m", "foretell_bench.emulated.steps", made.name, str(folder / "out.jsonl"), str(timeout)]
    return started(
        made, [*arguments, *(json.dumps(dataclasses.asdict(run)) for run in runs)], folder, torchrun=torchrun
    )


def measured(hosts: int, runs: Sequence[Run], folder: Path, *, torchrun: bool = False) -> list[list[Record]]:
    """The records of all ranks, run by run."""
    with (
        cluster(hosts, bits_per_second=runs[0].bits_per_second) as made,
        ranks(made, runs, folder, torchrun=torchrun) as programs,
    ):
        programs.wait()
    records = read(folder / "out.jsonl")
    assert [r.step.rank for r in records] == list(range(hosts)) * len(runs)
    return [records[i : i + hosts] for i in range(0, len(records), hosts)]


def read(path: Path) -> list[Record]:
    return [Record.from_line(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    hosts: int
    plan: str
    bits_per_second: float
    sent_bytes: int  # of the rank that is farthest from the forecast
    forecast_bytes: int
    step_seconds: float  # of the slowest rank
    forecast_seconds: float
    compute_seconds: float  # a step over links without a limit

    @property
    def bytes_error(self) -> float:
        return self.sent_bytes / self.forecast_bytes - 1

    @property
    def step_error(self) -> float:
        return self.forecast_seconds / self.step_seconds - 1


def rows(hosts: int, rates: Sequence[float], width: int, zero: int = 0) -> Iterator[Row]:
    """Forecasts with a profile in which compute takes what it takes over links without a limit, as hosts share the cores."""
    from foretell_bench.sources.emulated import emulated_cluster

    plan, settings = f"dp={hosts}" + (f",zero={zero}" if zero else ""), {"width": str(width)}
    runs = [Run(bits_per_second=rate, plan=plan, settings=settings) for rate in (UNLIMITED, *rates)]
    with tempfile.TemporaryDirectory(prefix="foretell-hosts-") as folder:
        results = measured(hosts, runs, Path(folder))
    steps = [max(record.step.step_seconds or 0.0 for record in records) for records in results]
    graph = foretell.capture_graph(SOURCE, settings)
    listed = foretell.forecast(graph, emulated_cluster(1, 0.0), model="roofline").device_time.seconds
    profile = foretell.Profile(name="emulated hosts", device=steps[0] / listed, host=NO_HOST)
    for rate, step, records in zip(rates, steps[1:], results[1:], strict=True):
        on = emulated_cluster(hosts, rate / 8)
        found = foretell.forecast(graph, on, foretell.Plan.parse(plan), model="roofline", profile=profile)
        sent, expected = [record.step.sent_bytes or 0 for record in records], found.network.sent_bytes
        yield Row(
            hosts=hosts, plan=plan, bits_per_second=rate, sent_bytes=max(sent, key=lambda b: abs(b - expected)),
            forecast_bytes=expected, step_seconds=step, forecast_seconds=found.step_time.seconds, compute_seconds=steps[0],
        )  # fmt: skip


def _rank(name: str, out: str, timeout: str, *runs: str) -> None:
    from foretell.measure.ranks.measure import join, measure_ranks

    with join(timeout=float(timeout)) as world:
        links = Cluster(name=name, size=world.place.size)
        for run in (Run(**json.loads(text)) for text in runs):
            if world.place.rank == 0:  # the namespaces are all of this machine, so one rank may set the links of all
                links.limit(run.bits_per_second)
            world.barrier()
            print("measuring", flush=True)
            measure_ranks(Point(source=SOURCE, plan=run.plan, settings=run.settings), world, seconds=0.3, out=Path(out))


if __name__ == "__main__":
    try:
        _rank(*sys.argv[1:])
    except ForetellError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
