"""Real training jobs of many convolutional networks on one to eight workers, a core each: how long they take.

    python bench/scripts/box_cnns.py --cores 4,5,6,7,8,9,10,11 [--seconds 540] [--folder bench/data/box-cnns]
    python bench/scripts/box_cnns.py --graphs

Workers are processes with DistributedDataParallel over gloo. Jobs of fewer workers run side by side, so that all cores
are used; a group of workers is kept for many jobs, each with a process group of its own. Where namespaces can be made
(root, iproute2) workers have links of a limited rate, else they meet on the loopback, whose rate is measured. What is
there is not run again; after --seconds no job begins. --graphs captures the networks' graphs.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "src", "bench/src", "bench/scripts")]

import torch
import torch.distributed as dist
from box_cnn_models import NETWORKS, network
from box_rank import Job, run
from foretell_bench.rounding import short

from tests.measure import netns

FOLDER: Final = ROOT / "bench" / "data" / "box-cnns"
DATA: Final = 64  # usual batches in the data of a job
FRACTIONS: Final = (0.25, 0.5, 1.0)
CHUNKS: Final = 3  # of the networks: each is run on all numbers of workers before the next begins
WORKERS: Final = (8, 4, 2, 1)
MBIT: Final = 1000  # of a link, where links can be made
PATIENCE: Final = 40.0  # seconds for a job that has begun
PROBE: Final = 2**22  # numbers that are sent to measure a link
DIGITS: Final = 6  # more than any of this is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a worker runs: its core, its group of workers, and its link."""

    rank: int
    size: int
    core: int
    meets: str  # where the group's processes find each other
    interface: str
    namespace: str = ""


def steps_of(workers: int, fraction: float) -> int:
    return ceil(DATA * fraction / workers - 1e-9)


def name_of(workers: int, link: str, job: Job, fraction: float) -> str:
    return f"dp={workers}@{link}/{job.name}/{job.batch}/{fraction:g}"


# A worker.


def be_worker(seat: Seat, jobs: Sequence[tuple[float, Job]], folder: Path, end: float) -> None:
    """Its group takes the next job that nobody has, until there is none or the time is over."""
    if seat.namespace:
        netns.enter(seat.namespace)
    os.sched_setaffinity(0, {seat.core})
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    torch.set_num_threads(1)
    waits = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=seat.meets, rank=seat.rank, world_size=seat.size, timeout=waits)
    group = f"{seat.size}-{seat.core if seat.size == 1 else seat.meets.rpartition('-')[2]}"
    mbit = link_rate(seat) if seat.size > 1 else 0.0
    run(Job(name="lenet-5", batch=2, steps=2), network)  # the first job of a process is for what torch does once
    with (folder / f"{group}-{seat.rank}.jsonl").open("w") as file:
        while True:
            chosen = torch.tensor([take(folder, len(jobs), end) if seat.rank == 0 else 0])
            dist.broadcast(chosen, 0)
            if chosen < 0:
                break
            told = asdict(run(jobs[int(chosen)][1], network))
            file.write(json.dumps({"job": int(chosen), "rank": seat.rank, "mbit": mbit, **told}) + "\n")
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
def links(size: int, *, wanted: bool) -> Iterator[netns.Cluster | None]:
    """Namespaces with limited links, where this machine has them."""
    if reason := netns.why_not() if wanted else "as asked":
        print(f"workers meet on the loopback: {reason}", flush=True)
        yield None
        return
    with netns.cluster(size, bits_per_second=MBIT * 1e6) as made:
        yield made


def run_phase(workers: int, jobs: Sequence[tuple[float, Job]], cores: Sequence[int], made: netns.Cluster | None,
              end: float) -> list[dict[str, Any]]:  # fmt: skip
    """All jobs on so many workers, as many groups side by side as there are cores for."""
    begun, side_by_side = datetime.now(UTC).isoformat(timespec="seconds"), len(cores) // workers
    with tempfile.TemporaryDirectory(prefix="foretell-box-") as name:
        folder = Path(name)
        (folder / "next").write_text("0")
        processes = []
        for number in range(side_by_side * workers):
            group, rank = divmod(number, workers)
            seat = Seat(
                rank=rank, size=workers, core=cores[number], meets=f"file://{folder}/meet-{group}",
                interface=netns.INTERFACE if made else "lo", namespace=made.hosts[number] if made else "",
            )  # fmt: skip
            processes.append(get_context("fork").Process(target=be_worker, args=(seat, jobs, folder, end)))
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.1, end + PATIENCE - time.monotonic()))
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        told: dict[int, list[dict[str, Any]]] = {}
        for file in sorted(folder.glob("*.jsonl")):
            for text in file.read_text().splitlines():
                line = json.loads(text)
                told.setdefault(line["job"], []).append(line)
    link = "veth" if made else "loopback"
    return [
        line_of(workers, link, *jobs[number], ranks) | {"side_by_side": side_by_side, "date": begun}
        for number, ranks in sorted(told.items())
        if len(ranks) == workers
    ]


def line_of(workers: int, link: str, fraction: float, job: Job, told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    told = sorted(told, key=lambda t: t["rank"])
    begin, end = min(t["begin"] for t in told), max(t["ends"][-1] for t in told)
    ranks = [
        {"role": "worker", "step_seconds": median(steps), "steps": steps, "first_step_seconds": t["ends"][0] - t["ready"],
         "ready_seconds": t["ready"] - t["begin"]}
        for t in told
        for steps in [[b - a for a, b in pairwise(t["ends"])]]
    ]  # fmt: skip
    return {
        "run": name_of(workers, link, job, fraction), "plan": f"dp={workers}", "link": link,
        "mbit": MBIT if link == "veth" else round(told[0]["mbit"]), "hosts": workers, "workers": workers, "servers": 0,
        "asynchronous": False, "architecture": f"box/{job.name}", "batch": job.batch, "fraction": fraction,
        "steps": job.steps, "job_seconds": end - begin, "start_seconds": max(t["ready"] for t in told) - begin,
        "step_time": max(rank["step_seconds"] for rank in ranks), "finite": all(t["finite"] for t in told), "ranks": ranks,
        "torch": version("torch"), "python": platform.python_version(), "machine": platform.machine(),
        "cores": os.cpu_count(), "share": 1.0,
    }  # fmt: skip


def keep(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(short(line, DIGITS), separators=(",", ":")) + "\n" for line in lines))


def run_all(folder: Path, cores: Sequence[int], names: Sequence[str], *, namespaces: bool, end: float) -> None:
    path = folder / "runs.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    known = {json.loads(line)["run"] for line in path.read_text().splitlines()} if path.exists() else set()
    with links(len(cores), wanted=namespaces) as made:
        link = "veth" if made else "loopback"
        for chunk in range(CHUNKS):
            for workers in [w for w in WORKERS if w <= len(cores)]:
                jobs = [
                    (fraction, Job(name=name, batch=NETWORKS[name][1], steps=steps_of(workers, fraction)))
                    for name in names[chunk::CHUNKS]
                    for fraction in sorted(FRACTIONS, reverse=True)
                ]
                jobs = [(f, job) for f, job in jobs if name_of(workers, link, job, f) not in known]
                if not jobs or time.monotonic() > end:
                    continue
                lines = run_phase(workers, jobs, cores, made, end)
                if made and not lines and time.monotonic() < end:
                    print("no job ended over these links", flush=True)
                    run_all(folder, cores, names, namespaces=False, end=end)
                    return
                keep(path, lines)
                left = end - time.monotonic()
                print(
                    f"chunk {chunk}, {workers} workers: {len(lines)} of {len(jobs)} jobs, {left:.0f} s left", flush=True
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="0,1", help="one for each worker, as 4,5,6,7")
    parser.add_argument("--seconds", type=float, default=540.0, help="no job begins after these")
    parser.add_argument("--most", type=int, help="networks")
    parser.add_argument("--loopback", action="store_true", help="make no namespaces")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--graphs", action="store_true", help="capture graphs instead")
    options = parser.parse_args()
    if options.graphs:
        from box_graphs import save_graphs

        save_graphs(options.folder, network, [(name, batch) for name, (_, batch) in NETWORKS.items()])
        return
    end = time.monotonic() + options.seconds
    torch.set_num_threads(1)
    cores = [int(core) for core in options.cores.split(",")]
    run_all(options.folder, cores, list(NETWORKS)[: options.most], namespaces=not options.loopback, end=end)


if __name__ == "__main__":
    main()
