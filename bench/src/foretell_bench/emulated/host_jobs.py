"""Jobs on emulated hosts with a share of a core each: how long they take, and their use of network and processor meanwhile.

Needs root, iproute2 and cgroups. Jobs that the folder has already are not run again; bench/data/README.md says what its
files contain.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import torch.distributed as dist

from foretell.plans import Plan
from foretell_bench.emulated import namespaces
from foretell_bench.emulated.collect import host_line
from foretell_bench.emulated.launch import PORT, join_all
from foretell_bench.emulated.models import NETWORKS, network
from foretell_bench.emulated.rank import Job, Seat, Setting, run
from foretell_bench.emulated.readings import INTERVAL, MAX_GAP_SHARE, Facts, Reading, as_lines, read_lines

CORE_SHARE: Final = 0.4  # for each host: four of them leave some for the machine itself
PERIOD: Final = 5000  # microseconds in which a host may use its share
MAX_SECONDS: Final = 300.0  # for the jobs of a setting
DATA_BATCHES: Final = 40  # usual batches in the data of a job
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
class Point:
    network: str
    batch: int
    fraction: float  # of the data

    def run_name(self, setting: Setting) -> str:
        return f"{setting.name}/{self.network}/{self.batch}/{self.fraction:g}"

    def job(self, setting: Setting) -> Job:
        """The data is divided among the workers."""
        plan = Plan.parse(setting.plan)
        samples = DATA_BATCHES * NETWORKS[self.network][1] * self.fraction
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


def run_all(
    folder: Path, *, minutes: float, only: str = "", most: int | None = None, again: bool = False,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Runs what is missing, setting by setting; `again` those too whose counters were read late."""
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # two campaigns would disturb each other
    for setting in SETTINGS:
        known = done(folder, again=again)
        wanted = [p for p in points(setting) if p.run_name(setting) not in known][:most]
        if not wanted or only not in ("", setting.name) or time.monotonic() - begin > 60 * minutes:
            continue
        lines = list(run_setting(setting, wanted))
        keep(folder, lines)
        say(f"{time.monotonic() - begin:6.0f} s  {setting.name}: {len(lines)} of {len(wanted)} runs")


def run_setting(setting: Setting, wanted: Sequence[Point]) -> Iterator[tuple[Facts, list[Facts]]]:
    """A line of every point, and lines of series."""
    jobs = [point.job(setting) for point in wanted]
    with (
        tempfile.TemporaryDirectory(prefix="foretell-hosts-") as folder,
        namespaces.cluster(setting.hosts, bits_per_second=setting.bits_per_second) as made,
        core_shares(made.name, setting.hosts),
    ):
        with sampled(made) as readings:
            ranks = [_start(made, host, Path(folder), jobs) for host in range(made.size)]
            join_all(ranks, time.monotonic() + MAX_SECONDS)
        moments = [read_lines(Path(folder) / f"{host}.jsonl") for host in range(made.size)]
    for point, job, *ends in zip(wanted, jobs, *moments, strict=False):  # what was done before one broke off, counts
        about = {"plan": setting.plan, "mbit": setting.mbit, "hosts": setting.hosts, "batch": point.batch,
                 "fraction": point.fraction, "steps": job.steps, "share": CORE_SHARE}  # fmt: skip
        yield host_line(point.run_name(setting), point.network, about, ends, readings)


def _start(made: namespaces.Cluster, host: int, folder: Path, jobs: Sequence[Job]) -> BaseProcess:
    seat = Seat(
        namespace=made.hosts[host], rank=host, size=made.size, meets=f"tcp://{made.address(0)}:{PORT}",
        interface=namespaces.INTERFACE,
    )  # fmt: skip
    process = get_context("fork").Process(target=be_rank, args=(seat, jobs, folder / f"{host}.jsonl"))
    process.start()
    return process


def be_rank(seat: Seat, jobs: Sequence[Job], out: Path) -> None:
    """Run in a forked process, which has torch already: its import is no part of a job."""
    for controller in ("cpu", "cpuacct"):
        (CGROUPS / controller / seat.namespace / "cgroup.procs").write_text(str(os.getpid()))
    seat.take()
    run(jobs[0], network)  # the first job of a process is for what torch does once
    with out.open("w") as file:
        for job in jobs:
            file.write(json.dumps(asdict(run(job, network))) + "\n")
            file.flush()
    dist.destroy_process_group()


@contextmanager
def core_shares(name: str, hosts: int) -> Iterator[None]:
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
                (folder / "cpu.cfs_quota_us").write_text(str(round(PERIOD * CORE_SHARE)))
        yield
    finally:
        for folder in made:
            if folder.exists():
                for process in (folder / "cgroup.procs").read_text().split():  # of a job that was interrupted
                    os.kill(int(process), 9)
                time.sleep(0.1)
                folder.rmdir()


@contextmanager
def sampled(made: namespaces.Cluster) -> Iterator[list[Reading]]:
    """Readings of all hosts, there when the `with` ends."""
    rows: list[Reading] = []
    # `ip netns exec` would hide the cgroups.
    command = ["nsenter", f"--net=/run/netns/{made.switch}", sys.executable, "-m", "foretell_bench.emulated.counters"]
    command += [str(made.size), made.name, str(INTERVAL)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the first reading is there
            yield rows
        finally:
            rows += json.loads(process.communicate()[0] or "[]")


def done(folder: Path, *, again: bool) -> set[str]:
    """Runs that are there; those without resources are not, where they are to be run again."""
    lines = read_lines(folder / "runs.jsonl")
    return {line["run"] for line in lines if line["gap_share"] <= MAX_GAP_SHARE or not again}


def keep(folder: Path, lines: Sequence[tuple[Facts, list[Facts]]]) -> None:
    with (
        (folder / "series.jsonl.gz").open("ab") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file,
    ):
        file.write(as_lines([own for _, series in lines for own in series]).encode())
    fresh = [line for line, _ in lines]
    # A run made again replaces the one before; of its series, the last counts.
    names = {line["run"] for line in fresh}
    known = [line for line in read_lines(folder / "runs.jsonl") if line["run"] not in names]
    (folder / "runs.jsonl.new").write_text(as_lines([*known, *fresh]))
    (folder / "runs.jsonl.new").replace(folder / "runs.jsonl")
