"""A job in the cluster in a box: one rank a host, which measures some runs in turn. Run as a program, it is one rank."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from foretell.errors import ForetellError
from foretell.measure.record import Point, Record
from tests.measure.netns import Cluster, cluster

ROOT = Path(__file__).parents[2]
SOURCE = f"{Path(__file__).parent / 'cnn.py'}:cnn"
PORT = "29500"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A step to measure, with all links at a rate."""

    bits_per_second: float
    plan: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    processes: list[subprocess.Popen[bytes]]  # by host
    folder: Path

    def log(self, host: int) -> Path:
        return self.folder / f"host{host}.log"

    def output(self, host: int) -> str:
        return self.log(host).read_text()

    def wait(self, seconds: float = 600.0) -> list[int]:
        """Exit codes."""
        end = time.monotonic() + seconds
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]


def measured(hosts: int, runs: Sequence[Run], folder: Path, *, torchrun: bool = False) -> list[list[Record]]:
    """The records of all ranks, run by run."""
    with cluster(hosts, bits_per_second=runs[0].bits_per_second) as made:
        with started(made, runs, folder, torchrun=torchrun) as job:
            codes = job.wait()
        assert not any(codes), "\n".join(job.output(host)[-2000:] for host in range(hosts))
    records = read(folder / "out.jsonl")
    assert [r.step.rank for r in records] == list(range(hosts)) * len(runs)
    return [records[i : i + hosts] for i in range(0, len(records), hosts)]


def read(path: Path) -> list[Record]:
    return [Record.from_line(line) for line in path.read_text().splitlines()]


@contextmanager
def started(
    made: Cluster, runs: Sequence[Run], folder: Path, *, torchrun: bool = False, timeout: float = 300.0
) -> Iterator[Job]:
    """A rank on every host; what still runs at the end is ended."""
    job = Job(processes=[], folder=folder)
    module = ["-m", "tests.measure.box", made.name, str(folder / "out.jsonl"), str(timeout)]
    module += [json.dumps(dataclasses.asdict(run)) for run in runs]
    master = made.address(0)
    try:
        for host in range(made.size):
            environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
            launcher = [sys.executable, "-u"]
            if torchrun:
                launcher += ["-m", "torch.distributed.run", f"--nnodes={made.size}", f"--node-rank={host}"]
                launcher += [f"--master-addr={master}", f"--master-port={PORT}"]
            else:  # what torchrun would set, without the second import of torch that its agent costs
                environment |= {"RANK": str(host), "WORLD_SIZE": str(made.size), "LOCAL_RANK": "0"}
                environment |= {"MASTER_ADDR": master, "MASTER_PORT": PORT}
            command = [*launcher, *module]
            job.processes.append(made.start(host, command, log=job.log(host), environment=environment))
        yield job
    finally:
        for process in job.processes:
            process.kill()
            process.wait()


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
