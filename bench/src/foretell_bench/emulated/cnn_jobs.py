"""Jobs of many convolutional networks on one to eight workers, a core each: how long they take.

Workers are processes with DistributedDataParallel over gloo. Jobs of fewer workers run side by side, so that all cores
are used; a group of workers is kept for many jobs, each with a process group of its own. Where namespaces can be made
(root, iproute2) workers have links of a limited rate, else they meet on the loopback, whose rate is measured.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

from foretell_bench.emulated import namespaces
from foretell_bench.emulated.cnn_models import NETWORKS, network
from foretell_bench.emulated.launch import join_all
from foretell_bench.emulated.rank import Job, Seat, run
from foretell_bench.emulated.readings import DIGITS, Facts, as_lines, read_lines, software
from foretell_bench.rounding import short

DATA_BATCHES: Final = 64  # usual batches in the data of a job
FRACTIONS: Final = (1.0, 0.5, 0.25)  # of the data
CHUNKS: Final = 3  # of the networks: each is run on all numbers of workers before the next begins
WORKERS: Final = (8, 4, 2, 1)
MBIT: Final = 1000  # of a link, where links can be made
MAX_JOB_SECONDS: Final = 40.0  # for a job that has begun
PROBE: Final = 2**22  # numbers that are sent to measure a link
Say = Callable[[str], None]


def jobs_of(workers: int, names: Sequence[str]) -> list[tuple[float, Job]]:
    """The fraction of the data, and the job."""
    steps = {fraction: ceil(DATA_BATCHES * fraction / workers - 1e-9) for fraction in FRACTIONS}
    return [(f, Job(name=name, batch=NETWORKS[name][1], steps=steps[f])) for name in names for f in FRACTIONS]


def name_of(workers: int, link: str, job: Job, fraction: float) -> str:
    return f"dp={workers}@{link}/{job.name}/{job.batch}/{fraction:g}"


# A worker.


def be_worker(seat: Seat, jobs: Sequence[tuple[float, Job]], folder: Path, end: float) -> None:
    """Its group takes the next job that nobody has, until there is none or the time is over."""
    seat.take(timedelta(seconds=MAX_JOB_SECONDS))
    group = f"{seat.size}-{seat.cores[0] if seat.size == 1 else seat.meets.rpartition('-')[2]}"
    mbit = link_rate(seat) if seat.size > 1 else 0.0
    run(Job(name="lenet-5", batch=2, steps=2), network)  # the first job of a process is for what torch does once
    with (folder / f"{group}-{seat.rank}.jsonl").open("w") as file:
        while True:
            chosen = torch.tensor([take(folder, len(jobs), end) if seat.rank == 0 else 0])
            dist.broadcast(chosen, 0)
            if chosen < 0:
                break
            moments = asdict(run(jobs[int(chosen)][1], network))
            file.write(json.dumps({"job": int(chosen), "rank": seat.rank, "mbit": mbit, **moments}) + "\n")
            file.flush()
    dist.destroy_process_group()


def take(folder: Path, count: int, end: float) -> int:
    """The number of the next job, or -1."""
    with (folder / "next").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = int(file.read() or 0)
        if number >= count or time.monotonic() > end:
            return -1
        file.seek(0)
        file.write(str(number + 1))
    return number


def link_rate(seat: Seat) -> float:
    """Megabits a second from one worker to the next, the best of a few."""
    best, values = 0.0, torch.zeros(PROBE)
    for _ in range(4):
        dist.barrier()
        begin = time.monotonic()
        if seat.rank == 0:
            dist.send(values, 1)
            dist.recv(values[:1], 1)
            best = max(best, 32 * PROBE / (time.monotonic() - begin) / 1e6)
        elif seat.rank == 1:
            dist.recv(values, 0)
            dist.send(values[:1], 0)
    return best


# All workers.


@contextmanager
def links(size: int, *, wanted: bool, say: Say) -> Iterator[namespaces.Cluster | None]:
    """Namespaces with limited links, where this machine has them."""
    if reason := namespaces.why_not() if wanted else "--loopback":
        say(f"workers meet on the loopback: {reason}")
        yield None
        return
    with namespaces.cluster(size, bits_per_second=MBIT * 1e6) as made:
        yield made


def run_phase(
    workers: int, jobs: Sequence[tuple[float, Job]], cores: Sequence[int], made: namespaces.Cluster | None, end: float
) -> list[Facts]:
    """All jobs on so many workers, as many groups side by side as there are cores for."""
    about = {"side_by_side": len(cores) // workers, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    with tempfile.TemporaryDirectory(prefix="foretell-hosts-") as name:
        folder = Path(name)
        (folder / "next").write_text("0")
        processes = []
        for number in range(len(cores) // workers * workers):
            group, rank = divmod(number, workers)
            seat = Seat(
                rank=rank, size=workers, cores=(cores[number],), meets=f"file://{folder}/meet-{group}",
                interface=namespaces.INTERFACE if made else "lo", namespace=made.hosts[number] if made else "",
            )  # fmt: skip
            processes.append(get_context("fork").Process(target=be_worker, args=(seat, jobs, folder, end)))
        for process in processes:
            process.start()
        join_all(processes, end + MAX_JOB_SECONDS)
        ranks: dict[int, list[Facts]] = {}
        for file in sorted(folder.glob("*.jsonl")):
            for line in read_lines(file):
                ranks.setdefault(line["job"], []).append(line)
    link = "veth" if made else "loopback"
    return [
        line_of(workers, link, *jobs[number], own) | about
        for number, own in sorted(ranks.items())
        if len(own) == workers
    ]


def line_of(workers: int, link: str, fraction: float, job: Job, ranks: Sequence[Mapping[str, Any]]) -> Facts:
    ranks = sorted(ranks, key=lambda r: int(r["rank"]))
    begin, end = min(r["begin"] for r in ranks), max(r["ends"][-1] for r in ranks)
    facts = [
        {"role": "worker", "step_seconds": median(steps), "steps": steps, "first_step_seconds": r["ends"][0] - r["ready"],
         "ready_seconds": r["ready"] - r["begin"]}
        for r in ranks
        for steps in [[b - a for a, b in pairwise(r["ends"])]]
    ]  # fmt: skip
    return {
        "run": name_of(workers, link, job, fraction), "plan": f"dp={workers}", "link": link,
        "mbit": MBIT if link == "veth" else round(ranks[0]["mbit"]), "hosts": workers, "workers": workers, "servers": 0,
        "asynchronous": False, "architecture": f"box/{job.name}", "batch": job.batch, "fraction": fraction,
        "steps": job.steps, "job_seconds": end - begin, "start_seconds": max(r["ready"] for r in ranks) - begin,
        "step_time": max(each["step_seconds"] for each in facts), "finite": all(r["finite"] for r in ranks),
        "ranks": facts, **software(), "cores": os.cpu_count(), "share": 1.0,
    }  # fmt: skip


def run_all(
    folder: Path, cores: Sequence[int], names: Sequence[str], *, namespaced: bool, end: float, say: Say
) -> None:
    """What the folder does not have yet; no job begins after `end`, by time.monotonic()."""
    path = folder / "runs.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    known = {line["run"] for line in read_lines(path)}
    with links(len(cores), wanted=namespaced, say=say) as made:
        link = "veth" if made else "loopback"
        for chunk in range(CHUNKS):
            for workers in [w for w in WORKERS if w <= len(cores)]:
                jobs = jobs_of(workers, names[chunk::CHUNKS])
                jobs = [(f, job) for f, job in jobs if name_of(workers, link, job, f) not in known]
                if not jobs or time.monotonic() > end:
                    continue
                lines = run_phase(workers, jobs, cores, made, end)
                if made and not lines and time.monotonic() < end:
                    say("no job ended over these links")
                    return run_all(folder, cores, names, namespaced=False, end=end, say=say)
                with path.open("a") as file:
                    file.write(as_lines([short(line, DIGITS) for line in lines]))
                say(
                    f"chunk {chunk}, {workers} workers: {len(lines)} of {len(jobs)} jobs, {end - time.monotonic():.0f} s left"
                )
    return None
