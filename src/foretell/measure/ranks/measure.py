"""A step on several hosts: under torchrun every rank measures its own step, and the bytes it puts on the wire.

    with join() as world:                        # in every rank
        records = measure_ranks(point, world)    # rank 0 gets those of all ranks, the others their own

Ranks agree before they start: where one cannot build the step, none runs it. Once steps run, a rank that fails, ends or
hangs breaks the others off, and they say which one it was.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from foretell.capture.step import Step, batch_sizes
from foretell.capture.trace import MICRO_STEPS_RECORDED
from foretell.errors import InputError
from foretell.measure.build import LossWatch, build_step, free_memory, ran_out_of_memory, workload_columns
from foretell.measure.memory import memory_columns
from foretell.measure.ranks.network import Traffic, has_rdma, read_counters
from foretell.measure.ranks.world import RankGone, World, join
from foretell.measure.ranks.wrap import RankStep, plan_for, wrapped
from foretell.measure.record import Point, Record, SeriesRow, StepRow
from foretell.measure.resources import network_series, reduce_series
from foretell.measure.sampler import Sampler
from foretell.measure.timing import Timing, clock_of, quantile, repeat, repetitions, time_once, warm_up
from foretell.measure.traces import gloo_seconds, trace_steps
from foretell.plans import Plan
from foretell.sources.resolve import load_workload
from foretell.units import Seconds

__all__ = ["SECONDS", "RankGone", "World", "join", "measure_ranks"]

SECONDS: Final = 1.0  # of repetitions
_TRACED: Final = 3
_IDLE: Final = 0.25  # seconds of listening to what the hosts send anyway
_INTERVAL: Final = 0.005  # between samples


def measure_ranks(
    point: Point, world: World, *, seconds: Seconds = SECONDS, out: Path | None = None
) -> tuple[Record, ...]:
    """Measure one point in every rank at once.

    Args:
        point: What to measure, with its plan.
        world: What `join_ranks` gives.
        seconds: Of measuring, after warming up.
        out: A file of lines, to which rank 0 appends; until then each rank keeps its own record next to it.

    Returns:
        In rank 0 the records of all, in order; in the others their own.

    Raises:
        InputError: The plan does not fit the ranks.

    Examples:
        >>> with foretell.join_ranks() as world:  # doctest: +SKIP
        ...     foretell.measure_ranks(foretell.Point(source="timm/resnet18", plan="dp=2"), world)
    """
    place = world.place
    plan = plan_for(point.plan, place.size)
    point_columns: dict[str, Any] = point.columns | {"plan": str(plan)}
    point_columns |= {"world_size": place.size, "rank": place.rank, "backend": world.backend}
    part = out and out.with_suffix(f".rank{place.rank}{out.suffix}")
    own: Record | None = None
    try:
        own = _measured(point, plan, point_columns, world, seconds)
        if part:
            _append(part, [own])
        gathered = tuple(Record.from_line(line) for line in world.gather(own.to_line()))
        if out and place.rank == 0:
            _append(out, gathered)
        world.barrier()
    except RankGone as gone:
        if part is None:
            raise
        if own is None:
            _append(part, [_failed(point_columns, gone.__cause__ or gone, str(gone), world)])
        raise RankGone(f"{gone} What this rank has measured or met is kept in {part}.") from gone
    if part:
        part.unlink()
    return gathered if place.rank == 0 else (own,)


def _measured(point: Point, plan: Plan, point_columns: dict[str, Any], world: World, seconds: Seconds) -> Record:
    def build() -> tuple[LossWatch, Step]:
        workload = load_workload(point.source, point.settings)
        workload = dataclasses.replace(workload, grad_accumulation=plan.grad_accumulation or workload.grad_accumulation)
        point_columns.update(workload_columns(workload))
        watch = LossWatch(workload)
        return watch, build_step(watch.workload, world.device)

    try:
        watch, plain = world.together(build)
    except (InputError, RankGone):
        raise
    except Exception as error:
        return _failed(point_columns, error, str(error), world)
    try:
        return _measure_step(point_columns, watch, wrapped(plain, plan, world.device), world, seconds)
    except RankGone:
        raise
    except Exception as error:
        raise world.gone(error) from error
    finally:
        free_memory(world.device)


def _failed(point_columns: dict[str, Any], error: BaseException, text: str, world: World) -> Record:
    outcome = "out-of-memory" if ran_out_of_memory(error) else "error"
    return Record(step=StepRow(**point_columns, outcome=outcome, error=text, **world.machine.provenance()))


def _measure_step(
    point_columns: dict[str, Any], watch: LossWatch, step: RankStep, world: World, seconds: Seconds
) -> Record:
    clock, interface = clock_of(world.device), world.interface
    warm_up(step, clock)
    slowest = max(world.gather(time_once(step, clock)))  # the same number in every rank
    sampler = Sampler(interface=interface, interval=_INTERVAL)
    try:
        world.barrier()
        begin = read_counters(interface)
        time.sleep(_IDLE)
        idle = Traffic.between(begin, read_counters(interface))
        with sampler.awake():
            world.barrier()
            begin = read_counters(interface)
            world.barrier()  # nobody sends before everybody has read
            timing = repeat(step, clock, repetitions(slowest, seconds))
            marks = tuple(world.machine.marks())
            world.barrier()  # what was sent has arrived, and so was counted on both sides
            traffic = Traffic.between(begin, read_counters(interface)).without(idle)
        series = network_series(sampler.between(*timing.window), timing.window[0], interface)
    finally:
        sampler.close()
    columns = point_columns | world.machine.provenance() | timing.columns
    network, unknown = _network(traffic, series, timing, world)
    columns |= network | _traced(step, timing, world)
    if world.device.type == "cuda":
        columns |= memory_columns()
    if not watch.finite:
        columns |= {"outcome": "nan-loss", "error": "the loss is not a finite number"}
    samples, tokens = batch_sizes(watch.workload, step.batch)
    columns |= {"samples": samples, "tokens": tokens, "marks": (*marks, *timing.marks, *unknown)}
    return Record(step=StepRow(**columns), series=tuple(series))


def _network(
    traffic: Traffic, series: Sequence[SeriesRow], timing: Timing, world: World
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Columns of the network, and why those that a host's counters cannot give for one rank are left out."""
    if world.backend == "nccl" and has_rdma():
        return {}, ("bytes unknown: NCCL may use RDMA, which network interfaces do not count",)
    if world.neighbours > 1:
        return {}, (f"bytes unknown: {world.neighbours} ranks share the counters of {world.interface}",)
    count = len(timing.steps)
    columns: dict[str, Any] = {
        "sent_bytes": round(traffic.sent / count),
        "received_bytes": round(traffic.received / count),
    }
    for row in series:
        columns |= reduce_series(row, timing.window[1] - timing.window[0]).columns(row.resource, 1 / count)
    return columns, ()


def _traced(step: RankStep, timing: Timing, world: World) -> dict[str, Any]:
    """How long collectives run, their waiting for other ranks included, and on a GPU the kernels beside them."""
    if world.device.type == "cpu":
        return {"communication_seconds": gloo_seconds(step, _TRACED)}
    traced = trace_steps(step, _TRACED).read()
    if not traced or step.workload.grad_accumulation > MICRO_STEPS_RECORDED:  # not the whole step
        return {}
    busy = quantile([t.busy_seconds() for t in traced], 0.5)
    return {
        "communication_seconds": quantile([t.busy_seconds(collectives=True) for t in traced], 0.5),
        "device_seconds": busy,
        "host_seconds": quantile([t.host_seconds for t in traced], 0.5),
        "device_idle_seconds": max(0.0, timing.seconds - busy),
        "device_active_seconds": busy,
    }


def _append(path: Path, records: Sequence[Record]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.to_line() + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())
