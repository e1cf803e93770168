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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from foretell.capture.step import Step, batch_sizes
from foretell.capture.trace import MICRO_STEPS_RECORDED
from foretell.errors import InputError
from foretell.measure.build import LossWatch, build_step, free_memory
from foretell.measure.kernels import busy_seconds, host_seconds, trace_steps
from foretell.measure.ranks.network import CounterSampler, Traffic, has_rdma, read_counters
from foretell.measure.ranks.world import RankLost, World, join
from foretell.measure.ranks.wrap import RankStep, plan_for, spread
from foretell.measure.record import Point, Record, SeriesRow, StepRow
from foretell.measure.resources import reduce_series
from foretell.measure.timing import PARTS, Clock, clock_of, quantile, warm_up
from foretell.plan import Plan
from foretell.sources.files import load_workload
from foretell.units import Seconds

__all__ = ["SECONDS", "RankLost", "World", "join", "measure_ranks"]

SECONDS: Final = 1.0  # of repetitions
_FEWEST: Final = 5
_MOST: Final = 100
_TRACED: Final = 3
_IDLE: Final = 0.25  # seconds of listening to what the hosts send anyway
_UNSTEADY: Final = 1.25  # 90th over 10th percentile of a step


def measure_ranks(
    point: Point, world: World, *, seconds: Seconds = SECONDS, out: Path | None = None
) -> tuple[Record, ...]:
    """Measure one point in every rank at once. Rank 0 gets the records of all, in order; the others get their own.

    With `out`, a file of lines, rank 0 appends them there. Until it has, each rank keeps its own in a file beside it.
    """
    place = world.place
    plan = plan_for(point.plan, place.size)
    asked: dict[str, Any] = {
        "point": point.key, "kind": point.kind, "source": point.source, "settings": point.settings_text,
        "plan": str(plan), "world_size": place.size, "rank": place.rank, "backend": world.backend,
    }  # fmt: skip
    part = out and out.with_suffix(f".rank{place.rank}{out.suffix}")
    mine: Record | None = None
    try:
        mine = _measured(point, plan, asked, world, seconds)
        if part:
            _append(part, [mine])
        gathered = tuple(Record.from_line(line) for line in world.gather(mine.to_line()))
        if out and place.rank == 0:
            _append(out, gathered)
        world.barrier()
    except RankLost as lost:
        if part is None:
            raise
        if mine is None:
            _append(part, [_failed(asked, lost.__cause__ or lost, str(lost), world)])
        raise RankLost(f"{lost} What this rank has to say is kept in {part}.") from lost
    if part:
        part.unlink()
    return gathered if place.rank == 0 else (mine,)


def _measured(point: Point, plan: Plan, asked: dict[str, Any], world: World, seconds: Seconds) -> Record:
    def build() -> tuple[LossWatch, Step]:
        workload = load_workload(point.source, point.settings)
        workload = dataclasses.replace(workload, grad_accumulation=plan.grad_accumulation or workload.grad_accumulation)
        asked.update(
            workload=workload.name, precision=workload.precision, training=workload.optimizer is not None,
            grad_accumulation=workload.grad_accumulation,
        )  # fmt: skip
        watch = LossWatch(workload)
        return watch, build_step(watch.workload, world.device)

    try:
        watch, plain = world.together(build)
    except (InputError, RankLost):
        raise
    except Exception as error:
        return _failed(asked, error, str(error), world)
    try:
        return _measure_step(asked, watch, spread(plain, plan, world.device), world, seconds)
    except RankLost:
        raise
    except Exception as error:
        raise world.lost(error) from error
    finally:
        free_memory(world.device)


def _failed(asked: dict[str, Any], error: BaseException, text: str, world: World) -> Record:
    memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    outcome = "out-of-memory" if memory else "error"
    return Record(step=StepRow(**asked, outcome=outcome, error=text, **world.machine.provenance()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    steps: list[Seconds]
    parts: dict[str, Seconds]  # medians
    window: tuple[float, float]  # time.monotonic()


def _measure_step(asked: dict[str, Any], watch: LossWatch, step: RankStep, world: World, seconds: Seconds) -> Record:
    clock = clock_of(world.device)
    warm_up(step, clock)
    slowest = max(world.gather(_once(step, clock)))  # the same number in every rank
    repetitions = int(min(max(seconds / slowest, _FEWEST), _MOST))
    with CounterSampler(world.interface) as sampler:
        world.barrier()
        begin = read_counters(world.interface)
        time.sleep(_IDLE)
        idle = Traffic.between(begin, read_counters(world.interface))
        world.barrier()
        begin = read_counters(world.interface)
        world.barrier()  # nobody sends before everybody has read
        repeated = _repeat(step, clock, repetitions)
        marks = list(world.machine.marks())
        world.barrier()  # what was sent has arrived, and so was counted on both sides
        traffic = Traffic.between(begin, read_counters(world.interface)).without(idle)
    provenance = world.machine.provenance()
    series = sampler.series(*repeated.window)
    network, untold = _network_facts(traffic, series, repeated, world)
    low, middle, high = (quantile(repeated.steps, q) for q in (0.1, 0.5, 0.9))
    traced = _traced_facts(step, middle, world.device)
    if high > _UNSTEADY * low:
        marks.append(f"unsteady: p90 is {high / low:.2f} times p10")
    samples, tokens = batch_sizes(watch.workload, step.batch)
    outcome: dict[str, Any] = (
        {} if watch.finite else {"outcome": "nan-loss", "error": "the loss is not a finite number"}
    )
    parts: dict[str, Any] = {f"{part}_seconds": repeated.parts.get(part) for part in PARTS}
    row = StepRow(
        **asked, **outcome, marks=(*marks, *untold), samples=samples, tokens=tokens, repetitions=repetitions,
        step_seconds=middle, step_low=low, step_high=high,
        **parts, **_memory(world.device), **network,
        **traced, **provenance,
    )  # fmt: skip
    return Record(step=row, series=series)


def _once(step: RankStep, clock: Clock) -> Seconds:
    begin = time.perf_counter()
    step.run()
    clock.wait()
    return time.perf_counter() - begin


def _repeat(step: RankStep, clock: Clock, repetitions: int) -> _Repeated:
    """Back to back. A step's time is from its first mark to that of the next."""
    marks: list[list[tuple[str, Any]]] = []
    clock.wait()
    begin = time.monotonic()
    for _ in range(repetitions):
        marks.append([])
        step.run(lambda part, micro: marks[-1].append((part, clock.mark())))
    end = clock.mark()
    clock.wait()
    window = (begin, time.monotonic())
    steps: list[Seconds] = []
    parts: dict[str, list[Seconds]] = {}
    for mine, after in zip(marks, [*(m[0][1] for m in marks[1:]), end], strict=True):
        steps.append(clock.seconds(mine[0][1], after))
        taken: dict[str, Seconds] = {}
        for (part, start), (_, stop) in zip(mine, [*mine[1:], ("", after)], strict=True):
            taken[part] = taken.get(part, 0.0) + clock.seconds(start, stop)
        for part, value in taken.items():
            parts.setdefault(part, []).append(value)
    return _Repeated(steps=steps, parts={part: quantile(v, 0.5) for part, v in parts.items()}, window=window)


def _network_facts(
    traffic: Traffic, series: Sequence[SeriesRow], repeated: _Repeated, world: World
) -> tuple[dict[str, Any], list[str]]:
    """Columns of the network, and why those that a host's counters cannot tell of one rank are left out."""
    if world.backend == "nccl" and has_rdma():
        return {}, ["bytes unknown: NCCL may use RDMA, which network interfaces do not count"]
    if world.neighbours > 1:
        return {}, [f"bytes unknown: {world.neighbours} ranks share the counters of {world.interface}"]
    count = len(repeated.steps)
    facts: dict[str, Any] = {
        "sent_bytes": round(traffic.sent / count), "received_bytes": round(traffic.received / count)
    }  # fmt: skip
    length = repeated.window[1] - repeated.window[0]
    for row in series:
        reduced = reduce_series(row, length)
        facts |= {
            f"{row.resource}_idle_seconds": reduced.idle_seconds / count,
            f"{row.resource}_active_seconds": reduced.active_seconds / count,
            f"{row.resource}_peak": reduced.peak,
        }
    return facts, []


def _traced_facts(step: RankStep, seconds: Seconds, device: torch.device) -> dict[str, Any]:
    """How long collectives run, their waiting for other ranks included, and on a GPU the kernels beside them."""
    if device.type == "cpu":
        return {"communication_seconds": _gloo_seconds(step)}
    traced = trace_steps(step, _TRACED).read()
    if not traced or step.workload.grad_accumulation > MICRO_STEPS_RECORDED:  # not the whole step
        return {}
    busy = quantile([busy_seconds(t.kernels) for t in traced], 0.5)
    return {
        "communication_seconds": quantile([busy_seconds(t.kernels, collectives=True) for t in traced], 0.5),
        "device_seconds": busy, "host_seconds": quantile([host_seconds(t) for t in traced], 0.5),
        "device_idle_seconds": max(0.0, seconds - busy), "device_active_seconds": busy,
    }  # fmt: skip


def _gloo_seconds(step: RankStep) -> Seconds:
    """Union of gloo's own ranges, a step."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=False) as profiler:
        for _ in range(_TRACED):
            step.run()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = profiler.profiler.kineto_results.events()
    total = reached = 0
    for begin, length in sorted((e.start_ns(), e.duration_ns()) for e in events if e.name().startswith("gloo:")):
        total += max(0, begin + length - max(begin, reached))
        reached = max(reached, begin + length)
    return total / 1e9 / _TRACED


def _memory(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved(),
        "resting_allocated": torch.cuda.memory_allocated(),
        "used_outside": total - free - torch.cuda.memory_reserved(),
    }  # fmt: skip


def _append(path: Path, records: Sequence[Record]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.to_line() + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())
