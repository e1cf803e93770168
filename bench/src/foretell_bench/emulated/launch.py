"""Processes on emulated hosts: the ranks of a job as programs, or forked from a process that has torch already."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from foretell.errors import ForetellError
from foretell_bench.emulated.namespaces import Cluster

PORT: Final = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A program on every host, and what each printed."""

    processes: list[subprocess.Popen[bytes]]  # by host
    folder: Path

    def log(self, host: int) -> Path:
        return self.folder / f"host{host}.log"

    def output(self, host: int) -> str:
        return self.log(host).read_text()

    def wait(self, seconds: float = 600.0) -> None:
        """Raises with the end of their output if any failed."""
        end = time.monotonic() + seconds
        codes = [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        if any(codes):
            raise ForetellError("\n".join(self.output(host)[-2000:] for host in range(len(codes))))


@contextmanager
def started(made: Cluster, arguments: Sequence[str], folder: Path, *, torchrun: bool = False) -> Iterator[Programs]:
    """`python ARGUMENTS` as a rank on every host; what still runs at the end is killed."""
    programs = Programs(processes=[], folder=folder)
    master = made.address(0)
    try:
        for host in range(made.size):
            environment = {"OMP_NUM_THREADS": "1"}
            launcher = [sys.executable, "-u"]
            if torchrun:
                launcher += ["-m", "torch.distributed.run", f"--nnodes={made.size}", f"--node-rank={host}"]
                launcher += [f"--master-addr={master}", f"--master-port={PORT}"]
            else:  # what torchrun would set, without the second import of torch that its agent costs
                environment |= {"RANK": str(host), "WORLD_SIZE": str(made.size), "LOCAL_RANK": "0"}
                environment |= {"MASTER_ADDR": master, "MASTER_PORT": str(PORT)}
            command = [*launcher, *arguments]
            programs.processes.append(made.start(host, command, log=programs.log(host), environment=environment))
        yield programs
    finally:
        for process in programs.processes:
            process.kill()
            process.wait()


def join_all(processes: Sequence[BaseProcess], end: float) -> None:
    """Waits for them until then, by time.monotonic(); what still runs is killed."""
    try:
        for process in processes:
            process.join(max(0.1, end - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
