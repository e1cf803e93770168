"""Real training jobs on several hosts: how long they take, and what hosts do to network and processor meanwhile.

    python bench/scripts/box_runs.py [--minutes 25] [--only dp=2@200 [--most 20]] [--again] [--graphs]

Hosts are network namespaces of this machine with links of a limited rate and a limited share of a core; needs root,
iproute2 and cgroups. What is already in bench/data/box is not run again. --graphs captures the networks' graphs.
bench/data/README.md says what the files hold.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench" / "scripts")]

from box_graphs import save_graphs
from box_models import NETWORKS, network
from box_rank import Job, Place, be_rank
from foretell_bench.rounding import short

from foretell.measure.record import SeriesRow
from foretell.measure.resources import reduce_series
from foretell.plans import Plan
from tests.measure import netns

FOLDER: Final = ROOT / "bench" / "data" / "box"
SHARE: Final = 0.4  # of a core for each host: four of them leave some for the machine itself
PERIOD: Final = 5000  # microseconds in which a host may use its share
INTERVAL: Final = 0.005  # seconds between samples
LATE: Final = 0.02  # a sample this late misses what happened meanwhile
COUNTED: Final = ("_idle_seconds", "_active_seconds", "_peak")
GAPS: Final = 0.2  # of the time in such gaps: resources are left out, for what is not seen is not measured
SMOOTH: Final = 5  # samples of processor time in one: a share is kept on average, not in every moment
PATIENCE: Final = 300.0  # seconds for the jobs of a setting
DATA: Final = 40  # usual batches in the data of a job
BUSY: Final = 0.25  # of its share; below, a host only moves bytes, which takes a processor too
DIGITS: Final = 6  # more than any of this is worth
CGROUPS: Final = Path("/sys/fs/cgroup")
FRACTIONED: Final = (
    "mlp-512x4",
    "plain-24x5",
    "residual-48x2",
    "separable-48x6",
    "transformer-128x3",
    "recurrent-192x1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    plan: str  # as Foretell writes it: dp=2, or dp=2,servers=1
    mbit: int  # per second, of every link in each direction

    @property
    def name(self) -> str:
        return f"{self.plan}@{self.mbit}"

    @property
    def hosts(self) -> int:
        plan = Plan.parse(self.plan)
        return plan.dp + plan.servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    network: str
    batch: int
    fraction: float  # of the data

    def job(self, setting: Setting) -> Job:
        """The data is shared out among the workers."""
        plan = Plan.parse(setting.plan)
        samples = DATA * NETWORKS[self.network][1] * self.fraction
        return Job(
            name=self.network, batch=self.batch, steps=ceil(samples / (self.batch * plan.dp) - 1e-9),
            servers=plan.servers, asynchronous=plan.asynchronous,
        )  # fmt: skip


SETTINGS: Final = tuple(
    Setting(plan=plan, mbit=mbit)
    for plan in ("dp=2", "dp=2,servers=1", "dp=3", "dp=4", "dp=3,servers=1", "dp=3,servers=1,asynchronous=true",
                 "dp=2,servers=2")
    for mbit in (1000, 200)
)  # fmt: skip


def points(setting: Setting) -> list[Point]:
    """Every network at two batches; of some, where ranks are alike, three parts of the data."""
    found = []
    for name, (_, batch) in NETWORKS.items():
        found += [Point(network=name, batch=batch, fraction=0.5), Point(network=name, batch=2 * batch, fraction=1.0)]
        if name in FRACTIONED and "servers" not in setting.plan:
            found += [Point(network=name, batch=batch, fraction=f) for f in (0.25, 1.0)]
    return found


# Running.


def run_setting(setting: Setting, wanted: Sequence[Point]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """A line of every point, and lines of series."""
    jobs = [point.job(setting) for point in wanted]
    with (
        tempfile.TemporaryDirectory(prefix="foretell-box-") as folder,
        netns.cluster(setting.hosts, bits_per_second=setting.mbit * 1e6) as made,
        shares(made.name, setting.hosts),
    ):
        with sampled(made) as readings:
            ranks = [start(made, host, Path(folder), jobs) for host in range(made.size)]
            try:
                end = time.monotonic() + PATIENCE
                for rank in ranks:
                    rank.join(max(0.1, end - time.monotonic()))
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.join()
        told = [_lines(Path(folder) / f"{host}.jsonl") for host in range(made.size)]
    for point, job, *ends in zip(wanted, jobs, *told, strict=False):  # what was done before one broke off, counts
        yield line_of(setting, point, job, ends, readings)


def start(made: netns.Cluster, host: int, folder: Path, jobs: Sequence[Job]) -> Any:
    place = Place(
        namespace=made.hosts[host], rank=host, size=made.size, master=made.address(0), interface=netns.INTERFACE
    )
    process = get_context("fork").Process(target=be_rank, args=(place, jobs, folder / f"{host}.jsonl"))
    process.start()
    return process


@contextmanager
def shares(name: str, hosts: int) -> Iterator[None]:
    """A cgroup for each host, with its share of a core; it comes before whoever else is busy on this machine."""
    made = [CGROUPS / controller / f"{name}-{i}" for i in range(hosts) for controller in ("cpu", "cpuacct")]
    made.append(CGROUPS / "cpu" / f"{name}-sampler")
    try:
        for folder in made:
            folder.mkdir()
            if folder.parent.name == "cpu":
                (folder / "cpu.shares").write_text("262144")  # the most there is: its quota is all it takes
            if folder.parent.name == "cpu" and not folder.name.endswith("sampler"):
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
                (folder / "cpu.cfs_quota_us").write_text(str(round(PERIOD * SHARE)))
        yield
    finally:
        for folder in made:
            if folder.exists():
                for process in (folder / "cgroup.procs").read_text().split():  # of a job that was interrupted
                    os.kill(int(process), 9)
                time.sleep(0.1)
                folder.rmdir()


@contextmanager
def sampled(made: netns.Cluster) -> Iterator[list[list[float]]]:
    """Readings of all hosts, there when the `with` ends."""
    rows: list[list[float]] = []
    # `ip netns exec` would hide the cgroups.
    command = [
        "nsenter",
        f"--net=/run/netns/{made.switch}",
        sys.executable,
        str(ROOT / "bench" / "scripts" / "box_sampler.py"),
    ]
    command += [str(made.size), made.name, str(INTERVAL)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            yield rows
        finally:
            said = process.communicate()[0]
            rows += json.loads(said or "[]")


# What was seen.


def line_of(
    setting: Setting, point: Point, job: Job, told: Sequence[dict[str, Any]], readings: Sequence[Sequence[float]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    plan = Plan.parse(setting.plan)
    run = f"{setting.name}/{point.network}/{point.batch}/{point.fraction:g}"
    ranks, series = [], []
    for host, moments in enumerate(told):
        facts, own = host_facts(host, moments, readings, worker=host < plan.dp)
        ranks.append(facts)
        if host in (0, plan.dp):  # one of a kind is enough to see what it does
            series.append({"run": run, "rank": host, **own})
    late = gap_share(between(readings, told[0]["ends"][0], told[0]["ends"][-1]))
    if late > GAPS:
        ranks = [{name: v for name, v in rank.items() if not name.endswith(COUNTED)} for rank in ranks]
    workers = [rank for rank in ranks if rank["role"] == "worker"]
    begin, end = min(t["begin"] for t in told), max(t["ends"][-1] for t in told)
    window = between(readings, begin, end)
    ours = sum(window[-1][4 + 3 * h] - window[0][4 + 3 * h] for h in range(len(told))) / 1e9
    line: dict[str, Any] = {
        "run": run, "plan": setting.plan, "mbit": setting.mbit, "hosts": setting.hosts, "workers": plan.dp,
        "servers": plan.servers, "asynchronous": plan.asynchronous, "architecture": f"box/{point.network}",
        "batch": point.batch, "fraction": point.fraction, "steps": job.steps,
        "job_seconds": end - begin, "start_seconds": max(t["ready"] for t in told[: plan.dp]) - begin,
        "step_time": max(rank["step_seconds"] for rank in workers),
        "gap_share": late,
        **{name: fmean(rank[name] for rank in workers) for name in workers[0] if name.endswith(COUNTED)},
        "sent_bytes": fmean(rank["sent_bytes"] for rank in workers),
        "received_bytes": fmean(rank["received_bytes"] for rank in workers),
        "finite": all(t["finite"] for t in told), "ranks": ranks,
        "others_cores": (window[-1][1] - window[0][1] - ours) / (window[-1][0] - window[0][0]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": version("torch"),
        "python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count(), "share": SHARE,
    }  # fmt: skip
    return short(line, DIGITS), series


def host_facts(
    host: int, moments: dict[str, Any], readings: Sequence[Sequence[float]], *, worker: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the steps after the first, which is for warming up: their time, and what three resources came down to."""
    ends = moments["ends"]
    steps = [b - a for a, b in pairwise(ends)]
    begin, end = ends[0], ends[-1]
    seen = between(readings, begin - INTERVAL, end + INTERVAL)
    pairs = list(pairwise(seen))
    counted = {name: [round(b[2 + 3 * host + i] - a[2 + 3 * host + i]) for a, b in pairs]
               for i, name in enumerate(("network_rx", "network_tx", "compute"))}  # fmt: skip
    facts: dict[str, Any] = {
        "role": "worker" if worker else "server", "step_seconds": median(steps), "steps": steps,
        "first_step_seconds": ends[0] - moments["ready"], "ready_seconds": moments["ready"] - moments["begin"],
        "received_bytes": sum(counted["network_rx"]) / len(steps), "sent_bytes": sum(counted["network_tx"]) / len(steps),
    }  # fmt: skip
    for i, name in enumerate(("network_rx", "network_tx", "compute")):
        every = pairs if name != "compute" else list(pairwise(seen[::SMOOTH]))
        rates = [(b[2 + 3 * host + i] - a[2 + 3 * host + i]) / (b[0] - a[0]) for a, b in every]
        if name == "compute":  # share of the host's own processor that is in use
            rates = [rate / 1e9 / SHARE for rate in rates]
            rates = [rate if rate > BUSY else 0.0 for rate in rates]
        seconds = tuple(max(0.0, a[0] - begin) for a, _ in every)
        row = SeriesRow(resource=name, counter="", unit="", seconds=seconds, values=tuple(rates))
        reduced = reduce_series(row, end - begin)
        facts |= {
            f"{name}_idle_seconds": reduced.idle_seconds / len(steps),
            f"{name}_active_seconds": reduced.active_seconds / len(steps),
            f"{name}_peak": reduced.peak,
        }
    own = {
        "steps_end_ms": [round(1e3 * (e - begin), 1) for e in ends],
        "ms": [round(1e3 * (b[0] - a[0]), 1) for a, b in pairs],
        "received": counted["network_rx"], "sent": counted["network_tx"],
        "cpu_us": [round(n / 1e3) for n in counted["compute"]],
    }  # fmt: skip
    return facts, own


def gap_share(readings: Sequence[Sequence[float]]) -> float:
    """Of the time between readings, the part in which they came late."""
    apart = [b[0] - a[0] for a, b in pairwise(readings)]
    return sum(seconds for seconds in apart if seconds > LATE) / sum(apart) if apart else 1.0


def between(readings: Sequence[Sequence[float]], begin: float, end: float) -> Sequence[Sequence[float]]:
    return readings[bisect_left(readings, begin, key=lambda r: r[0]) : bisect_right(readings, end, key=lambda r: r[0])]


# Keeping.


def done(folder: Path, *, again: bool) -> set[str]:
    """Runs that are there; those without resources are not, where they are to be run again."""
    return {line["run"] for line in _lines(folder / "runs.jsonl") if line["gap_share"] <= GAPS or not again}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(folder: Path, lines: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> None:
    text = [json.dumps(own, separators=(",", ":")) + "\n" for _, series in lines for own in series]
    with (
        (folder / "series.jsonl.gz").open("ab") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file,
    ):
        file.write("".join(text).encode())
    fresh = [line for line, _ in lines]
    # A run made again takes the place of the one before; of its series, the last counts.
    names = {line["run"] for line in fresh}
    known = [line for line in _lines(folder / "runs.jsonl") if line["run"] not in names]
    text = [json.dumps(line, separators=(",", ":")) + "\n" for line in (*known, *fresh)]
    (folder / "runs.jsonl.new").write_text("".join(text))
    (folder / "runs.jsonl.new").replace(folder / "runs.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="start no setting after these")
    parser.add_argument("--only", default="", help="a setting's name, like dp=2@200")
    parser.add_argument("--most", type=int, help="runs of a setting at a time")
    parser.add_argument("--again", action="store_true", help="run those again whose counters were read late")
    parser.add_argument("--graphs", action="store_true", help="capture graphs instead")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.graphs:
        usual = [(name, batch) for name, (_, batch) in NETWORKS.items()]
        save_graphs(options.folder, network, [(name, times * batch) for name, batch in usual for times in (1, 2)])
        return
    if reason := netns.why_not():
        sys.exit(f"no hosts can be made here: {reason}.")
    begin = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    fcntl.flock(os.open(options.folder, os.O_RDONLY), fcntl.LOCK_EX)  # two campaigns would disturb each other
    for setting in SETTINGS:
        known = done(options.folder, again=options.again)
        wanted = [p for p in points(setting) if f"{setting.name}/{p.network}/{p.batch}/{p.fraction:g}" not in known]
        if not wanted or options.only not in ("", setting.name) or time.monotonic() - begin > 60 * options.minutes:
            continue
        wanted = wanted[: options.most]
        lines = list(run_setting(setting, wanted))
        keep(options.folder, lines)
        print(f"{time.monotonic() - begin:6.0f} s  {setting.name}: {len(lines)} of {len(wanted)} runs", flush=True)


if __name__ == "__main__":
    main()
