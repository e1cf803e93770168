"""One rank of jobs whose two workers share a device: DDP over gloo, or workers of a parameter server, which has none.

A rank stays alive from job to job. A job is one network at some batches; of each batch it records when each step ended
and, on a GPU, when its kernels were running.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from foretell_bench.emulated.links import pace
from foretell_bench.emulated.models import network
from foretell_bench.emulated.rank import Job, ParameterServers, Seat, optimizer_update

WORKERS: Final = 2
WARM: Final = 2  # steps of a batch before those that count; the last shows how long a step takes
MIN_STEPS, MAX_STEPS = 3, 8  # that count
SECONDS: Final = 0.12  # of them, about
_STAGING: Final = ("Memcpy HtoD", "Memcpy DtoH")  # for the network, by copy engines
Intervals = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    network: str
    batches: tuple[int, ...]  # of a worker
    servers: int
    bytes_per_second: float  # of a link


def be_rank(seat: Seat, device: str, orders: Connection) -> None:
    """Ends when there are no more orders."""
    try:
        seat.take()
        workers = dist.new_group(list(range(WORKERS)), backend="gloo")
        everyone = dist.new_group(backend="gloo")
        for group in (dist.group.WORLD, everyone, *([workers] if seat.rank < WORKERS else [])):
            dist.barrier(group)  # connected from now on
        if device != "cpu" and seat.rank < WORKERS:
            torch.ones(1, device=device).sum().item()
        orders.send({"ready": os.getpid()})
        while (task := orders.recv()) is not None:
            if not seat.namespace:  # a server's link carries two workers at once
                pace(task.bytes_per_second / (WORKERS if task.servers else 1))
            group = everyone if task.servers else workers
            orders.send(_work(task, device, group) if seat.rank < WORKERS else _serve(task, group))
    except BaseException:
        orders.send({"error": traceback.format_exc()[-2000:]})
        raise
    os._exit(0)  # others may have hung up: nothing is owed to them


def _model(task: Task) -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = network(task.network, task.batches[0]).model()
    return model


def _servers(task: Task, model: torch.nn.Module, group: Any) -> ParameterServers:
    job = Job(name=task.network, batch=0, steps=WARM, servers=task.servers)
    return ParameterServers(model, WORKERS, job, group)


def _serve(task: Task, group: Any) -> dict[str, Any]:
    servers = _servers(task, _model(task), group)
    warm = servers.job
    for _ in task.batches:
        servers.job = warm
        servers.serve(0)
        servers.job = replace(warm, steps=_agreed(0.0, group))
        servers.serve(0)
    return {"rows": []}


def _work(task: Task, device: str, group: Any) -> dict[str, Any]:
    model, error = _model(task).to(device), ""
    if task.servers:
        update = _servers(task, model, group).exchange
    else:
        model = DistributedDataParallel(model, process_group=group)
        update = optimizer_update(network(task.network, 1), model)
    rows, events = [], _Trace(device)
    with events:
        for batch in task.batches:
            rows.append(_batch(task, batch, model, update, device, group))
    try:
        error = events.share(rows)
    except Exception:
        error = traceback.format_exc()[-500:]
    return {"rows": rows, "error_of_trace": error}


def _batch(
    task: Task, batch: int, model: torch.nn.Module, update: Callable[[], None], device: str, group: Any
) -> dict[str, Any]:
    workload = network(task.network, batch)
    data = {name: value.to(device) for name, value in workload.batch().items()}

    losses: list[torch.Tensor] = []

    def step() -> int:
        loss = workload.loss(model, data)
        loss.backward()
        update()
        losses[:] = [loss.detach()]
        if device != "cpu":
            torch.cuda.synchronize()
        return time.time_ns()

    warm = [step() for _ in range(WARM)]
    count = _agreed((warm[-1] - warm[-2]) / 1e9, group)
    begin = time.time_ns()
    ends = [step() for _ in range(count)]
    return {"batch": batch, "begin": begin, "ends": ends, "finite": bool(torch.isfinite(losses[0]))}


def _agreed(seconds: float, group: Any) -> int:
    """How many steps, for all ranks of the group: as many as the slowest has time for."""
    longest = torch.tensor([seconds])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    return max(MIN_STEPS, min(MAX_STEPS, round(SECONDS / max(1e-3, float(longest)))))


class _Trace:
    """Kernels of all steps of a task. Where nothing is on a GPU there is nothing to trace."""

    def __init__(self, device: str) -> None:
        self.profiler: Any = nullcontext()
        self.on, self.why_not = device != "cpu", "no device"
        if self.on:
            from foretell.measure.traces import profiler_of

            self.profiler = profiler_of(torch.profiler.ProfilerActivity.CUDA)

    def __enter__(self) -> None:
        try:
            self.profiler.__enter__()
        except Exception as error:  # the network's targets are worth having alone
            self.profiler, self.on, self.why_not = nullcontext(), False, repr(error)

    def __exit__(self, *error: Any) -> None:
        self.profiler.__exit__(*error)

    def share(self, rows: Sequence[dict[str, Any]]) -> str:
        """Gives every row the kernels of its steps, in nanoseconds from its beginning; returns what is wrong."""
        if not self.on:
            return self.why_not
        from foretell.measure.traces import read_trace

        kernels, _, waits = read_trace(self.profiler)
        if not kernels or not waits:
            return f"{len(kernels)} kernels, {len(waits)} waits"
        # Both clocks count from the epoch; a step ends when its wait for the device does.
        last = rows[-1]["ends"][-1]
        apart = last - min(waits, key=lambda wait: abs(wait - last))
        ran = sorted((k.begin + apart, k.end + apart, k.name.startswith(_STAGING)) for k in kernels)
        for row in rows:
            begin, end = row["begin"], row["ends"][-1]
            own = [(a - begin, b - begin, staged) for a, b, staged in ran if begin <= a < end]
            row["apart"] = apart
            row["kernels"] = sum(not staged for *_, staged in own)
            row["busy"] = merged([(a, b) for a, b, staged in own if not staged])
            row["staged_ns"] = sum(b - a for a, b, staged in own if staged)
        return ""


def merged(intervals: Sequence[tuple[int, int]]) -> Intervals:
    """Their union as [begin, length], in order."""
    found: Intervals = []
    for begin, end in sorted(intervals):
        if found and begin <= sum(found[-1]):
            found[-1][1] = max(found[-1][1], end - found[-1][0])
        else:
            found.append([begin, end - begin])
    return found
