"""One rank of a job on emulated hosts: DDP over gloo, or a worker or server of parameter servers over send and receive.

Every job starts anew: a process group of its own, the model, its replication, then its steps. A rank records when each
of these ended, on the clock that all ranks share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch._dynamo  # the first optimizer imports it, which takes seconds
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from foretell import Plan, Workload
from foretell_bench.emulated import namespaces

LEARNING_RATE: Final = 1e-6  # one batch is repeated, and must not drift into NaN
Make = Callable[[str, int], Workload]  # of a network's name and a worker's batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank runs, and how it meets the others."""

    rank: int
    size: int
    meets: str  # a URL: the first rank's address, or a file that all of them see
    interface: str
    namespace: str = ""  # none: the loopback
    cores: tuple[int, ...] = ()  # none: any

    def take(self, timeout: timedelta | None = None) -> None:
        """Makes this process that rank."""
        if self.namespace:
            namespaces.enter(self.namespace)
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        os.environ["GLOO_SOCKET_IFNAME"] = self.interface
        torch.set_num_threads(1)
        dist.init_process_group("gloo", self.meets, timeout, world_size=self.size, rank=self.rank)


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

    @property
    def bits_per_second(self) -> float:
        return self.mbit * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str  # of the network
    batch: int  # of a worker
    steps: int
    servers: int = 0  # the last ranks; 0: all-reduce
    asynchronous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """When parts of a job ended, by time.monotonic()."""

    begin: float
    ready: float  # group, model and its replicas are there
    ends: list[float]  # of every step
    finite: bool


def run(job: Job, make: Make) -> Moments:
    dist.barrier()
    begin = time.monotonic()
    group = dist.new_group(backend="gloo")
    moments = _run(job, begin, group, make)
    dist.barrier()  # nobody hangs up on one who still listens
    dist.destroy_process_group(group)
    return moments


def _run(job: Job, begin: float, group: Any, make: Make) -> Moments:
    rank = dist.get_rank()
    workers = dist.get_world_size() - job.servers
    torch.manual_seed(0)
    workload = make(job.name, job.batch)
    model: torch.nn.Module = workload.model()
    batch = workload.batch()
    servers = ParameterServers(model, workers, job, group) if job.servers else None
    if servers is not None and rank >= workers:
        ready = time.monotonic()
        return Moments(begin=begin, ready=ready, ends=servers.serve(rank - workers), finite=True)
    if servers is not None:
        update = servers.exchange
    else:
        model = DistributedDataParallel(model, process_group=group)
        update = optimizer_update(workload, model)
    ready, ends = time.monotonic(), []
    for _ in range(job.steps):
        loss = workload.loss(model, batch)
        loss.backward()
        update()
        ends.append(time.monotonic())
    if servers is not None:
        servers.finish()
    return Moments(begin=begin, ready=ready, ends=ends, finite=bool(torch.isfinite(loss.detach())))


def optimizer_update(workload: Workload, model: torch.nn.Module) -> Callable[[], None]:
    """The update of a worker that has an optimizer of its own."""
    assert workload.optimizer is not None
    optimizer = workload.optimizer(list(model.parameters()))
    for settings in optimizer.param_groups:
        settings["lr"] = LEARNING_RATE

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return update


class ParameterServers:
    """Parameters are divided evenly among servers, which sum gradients and update. Workers push, then pull.

    Synchronous workers wait for the pull; a server waits for all of them. Asynchronous ones go on with the parameters
    they have and load what came when they push next; a server answers each as it comes.
    """

    def __init__(self, model: torch.nn.Module, workers: int, job: Job, group: Any) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters]).cpu()  # servers have no device
        self.shards = list(self.flat.chunk(job.servers))
        self.workers, self.job, self.group = workers, job, group
        self.pulls: list[Any] = []
        self.coming = [torch.empty_like(shard) for shard in self.shards]

    def exchange(self) -> None:
        """A worker's update."""
        self.finish()
        gradients = torch.cat([p.grad.reshape(-1) for p in self.parameters if p.grad is not None]).cpu()
        for p in self.parameters:
            p.grad = None
        servers = range(self.workers, self.workers + len(self.shards))
        parts = zip(gradients.split([len(s) for s in self.shards]), servers, strict=True)
        pushes = [dist.isend(part.contiguous(), server, group=self.group) for part, server in parts]
        self.pulls = [dist.irecv(s, server, group=self.group) for s, server in zip(self.coming, servers, strict=True)]
        for push in pushes:
            assert push is not None
            push.wait()
        if not self.job.asynchronous:
            self.finish()

    def finish(self) -> None:
        """Waits for parameters that are on their way, and loads them."""
        if not self.pulls:
            return
        for pull in self.pulls:
            pull.wait()
        self.pulls = []
        values = torch.cat(self.coming).to(self.parameters[0].device).split([p.numel() for p in self.parameters])
        with torch.no_grad():
            for p, value in zip(self.parameters, values, strict=True):
                p.copy_(value.view_as(p))

    def serve(self, number: int) -> list[float]:
        """Answers workers until they have run all their steps; returns when each update was done."""
        shard = self.shards[number]
        momentum = torch.zeros_like(shard)
        return self._serve_each(shard, momentum) if self.job.asynchronous else self._serve_all(shard, momentum)

    def _serve_each(self, shard: torch.Tensor, momentum: torch.Tensor) -> list[float]:
        arrived, ends = torch.empty_like(shard), []
        answers: dict[int, Any] = {}
        for _ in range(self.workers * self.job.steps):
            worker = dist.recv(arrived, group=self.group)
            shard.sub_(momentum.mul_(0.9).add_(arrived), alpha=LEARNING_RATE)
            answers[worker] = dist.isend(shard.clone(), worker, group=self.group)  # it had the one before
            ends.append(time.monotonic())
        for answer in answers.values():
            answer.wait()
        return ends

    def _serve_all(self, shard: torch.Tensor, momentum: torch.Tensor) -> list[float]:
        gradients, ends = [torch.empty_like(shard) for _ in range(self.workers)], []
        for _ in range(self.job.steps):
            pushes = [dist.irecv(g, worker, group=self.group) for worker, g in enumerate(gradients)]
            for push in pushes:
                assert push is not None
                push.wait()
            total = torch.stack(gradients).sum(0)
            shard.sub_(momentum.mul_(0.9).add_(total, alpha=1 / self.workers), alpha=LEARNING_RATE)
            pulls = [dist.isend(shard, worker, group=self.group) for worker in range(self.workers)]
            for pull in pulls:
                assert pull is not None
                pull.wait()
            ends.append(time.monotonic())
        return ends
