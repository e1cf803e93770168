"""One rank of a job in the box: DDP over gloo, or a worker or server of parameter servers over send and receive.

Every job starts anew: a process group of its own, the model, its spreading, then its steps. What is told of it is when
each of these ended, on the clock that all ranks share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # the first optimizer asks for it, which takes seconds
import torch.distributed as dist
from box_models import network
from torch.nn.parallel import DistributedDataParallel

from tests.measure import netns

RATE: Final = 1e-6  # of learning: one batch is repeated, and must not drift into NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    namespace: str  # of the network, and the name of the cgroups
    rank: int
    size: int
    master: str  # address
    interface: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str  # of the network
    batch: int  # of a worker
    steps: int
    servers: int = 0  # the last ranks; 0: all-reduce
    asynchronous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Moments of time.monotonic()."""

    begin: float
    ready: float  # group, model and its spreading are there
    ends: list[float]  # of every step
    finite: bool


Make = Callable[[str, int], Any]  # of a network's name and a worker's batch: its Workload


def run(job: Job, make: Make = network) -> Told:
    dist.barrier()
    begin = time.monotonic()
    group = dist.new_group(backend="gloo")
    told = _run(job, begin, group, make)
    dist.barrier()  # nobody hangs up on one who still listens
    dist.destroy_process_group(group)
    return told


def _run(job: Job, begin: float, group: Any, make: Make) -> Told:
    rank = dist.get_rank()
    workers = dist.get_world_size() - job.servers
    torch.manual_seed(0)
    workload = make(job.name, job.batch)
    model, batch = workload.model(), workload.batch()
    if job.servers:
        serve = Servers(model, workers, job, group)
        if rank >= workers:
            ready = time.monotonic()
            ends = serve.as_server(rank - workers)
            return Told(begin=begin, ready=ready, ends=ends, finite=True)
        update: Callable[[], None] = serve.exchange
    else:
        model = DistributedDataParallel(model, process_group=group)
        assert workload.optimizer is not None
        optimizer = workload.optimizer(list(model.parameters()))
        for settings in optimizer.param_groups:
            settings["lr"] = RATE

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

    ready, ends = time.monotonic(), []
    for _ in range(job.steps):
        loss = workload.loss(model, batch)
        loss.backward()
        update()
        ends.append(time.monotonic())
    if job.servers:
        serve.leave()
    return Told(begin=begin, ready=ready, ends=ends, finite=bool(torch.isfinite(loss.detach())))


class Servers:
    """Parameters are spread evenly over servers, which sum gradients and update. Workers push, then pull.

    Synchronous workers wait for the pull; a server waits for all of them. Asynchronous ones go on with the parameters
    they have and take in what came when they push next; a server answers each as it comes.
    """

    def __init__(self, model: torch.nn.Module, workers: int, job: Job, group: Any) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters]).cpu()  # servers have no device
        self.shards = list(self.flat.chunk(job.servers))
        self.workers, self.job, self.group = workers, job, group
        self.pulls: list[Any] = []
        self.coming = [torch.empty_like(shard) for shard in self.shards]

    def exchange(self) -> None:
        self._take_in()
        gradients = torch.cat([p.grad.reshape(-1) for p in self.parameters if p.grad is not None]).cpu()
        for p in self.parameters:
            p.grad = None
        places = range(self.workers, self.workers + len(self.shards))
        parts = zip(gradients.split([len(s) for s in self.shards]), places, strict=True)
        pushes = [dist.isend(part.contiguous(), place, group=self.group) for part, place in parts]
        self.pulls = [dist.irecv(s, place, group=self.group) for s, place in zip(self.coming, places, strict=True)]
        for push in pushes:
            push.wait()
        if not self.job.asynchronous:
            self._take_in()

    def leave(self) -> None:
        self._take_in()

    def _take_in(self) -> None:
        if not self.pulls:
            return
        for pull in self.pulls:
            pull.wait()
        self.pulls = []
        values = torch.cat(self.coming).to(self.parameters[0].device).split([p.numel() for p in self.parameters])
        with torch.no_grad():
            for p, value in zip(self.parameters, values, strict=True):
                p.copy_(value.view_as(p))

    def as_server(self, number: int) -> list[float]:
        mine = self.shards[number]
        momentum = torch.zeros_like(mine)
        ends = []
        if self.job.asynchronous:
            arrived = torch.empty_like(mine)
            answers: dict[int, Any] = {}
            for _ in range(self.workers * self.job.steps):
                worker = dist.recv(arrived, group=self.group)
                mine.sub_(momentum.mul_(0.9).add_(arrived), alpha=RATE)
                answers[worker] = dist.isend(mine.clone(), worker, group=self.group)  # it had the one before
                ends.append(time.monotonic())
            for answer in answers.values():
                answer.wait()
            return ends
        gradients = [torch.empty_like(mine) for _ in range(self.workers)]
        for _ in range(self.job.steps):
            for push in [dist.irecv(g, worker, group=self.group) for worker, g in enumerate(gradients)]:
                push.wait()
            mine.sub_(momentum.mul_(0.9).add_(sum(gradients), alpha=1 / self.workers), alpha=RATE)
            for pull in [dist.isend(mine, worker, group=self.group) for worker in range(self.workers)]:
                pull.wait()
            ends.append(time.monotonic())
        return ends


def be_rank(place: Place, jobs: Sequence[Job], out: Path) -> None:
    """Run in a forked process, which has torch already: its import is no part of a job."""
    netns.enter(place.namespace)
    for controller in ("cpu", "cpuacct"):
        (Path("/sys/fs/cgroup") / controller / place.namespace / "cgroup.procs").write_text(str(os.getpid()))
    os.environ |= {"MASTER_ADDR": place.master, "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": place.interface}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=place.rank, world_size=place.size)
    run(jobs[0])  # the first job of a process is for what torch does once
    with out.open("w") as file:
        for job in jobs:
            file.write(json.dumps(asdict(run(job))) + "\n")
            file.flush()
    dist.destroy_process_group()
