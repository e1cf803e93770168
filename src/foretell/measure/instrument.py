"""The instrument: one point on the device at hand → one Record.

It needs torch and what a plain PyTorch image has beside it. What is asked of a step is measured apart, so that no part
disturbs another: times come from steps with no profiler near, kernels from traced steps, memory from steps of its own.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from foretell.capture.step import Step, batch_sizes
from foretell.errors import PlanError
from foretell.hardware import device as known_device
from foretell.measure.build import (
    LossWatch,
    allow_units,
    build_step,
    free_memory,
    ran_out_of_memory,
    step_like,
    workload_columns,
)
from foretell.measure.kernels import Alignment, OpTimes, align, op_times, record_on_host
from foretell.measure.machine import Machine, pick_device
from foretell.measure.memory import peak_memory, record_memory
from foretell.measure.record import AllocationRow, GraphRow, OpRow, Point, Record, SeriesRow, StepRow
from foretell.measure.resources import Reduced, bandwidth_use, device_series, reduce_series, sampled_series
from foretell.measure.sampler import Sample, Sampler
from foretell.measure.timing import Timing, clock_of, quantile, time_steps, warm_up
from foretell.measure.traces import Traces, added_seconds, trace_steps
from foretell.plans import Plan
from foretell.sources.resolve import load_workload
from foretell.units import Seconds

SECONDS: Final = 0.3  # of repetitions
_TRACED: Final = 3  # plain steps traced for their kernels
_DEVICE_BOUND: Final = 0.9  # of the step with a kernel running


def measure(point: Point, *, device: str = "auto", seconds: Seconds = SECONDS) -> Record:
    """Measure one point here and now. Out of memory and a NaN loss are outcomes.

    Args:
        point: What to measure.
        device: Torch's name of the device, or `auto`: the first accelerator, else the CPU.
        seconds: Of measuring, after warming up.

    Returns:
        The record: step times, ops, memory, what it was measured on and with.

    Raises:
        InputError: The point names no workload, or asks for several ranks.

    Examples:
        >>> foretell.measure_step(foretell.Point(source="timm/resnet18")).step.outcome  # doctest: +SKIP
        'ok'
    """
    measurement = Measurement(point, device)
    try:
        return measurement.prepare().take(seconds).record()
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        return measurement.out_of_memory(error)
    finally:
        free_memory(measurement.machine.device)


class Measurement:
    """A point that names a workload, on a device that is there."""

    def __init__(self, point: Point, device: str = "auto") -> None:
        if Plan.parse(point.plan) != Plan():
            raise PlanError(
                f"plan {point.plan} cannot be measured on one device. Start one process per device with torchrun, as "
                "docs/guide/hosts.md shows, or leave out the plan."
            )
        self.point = point
        self.machine = _machine(pick_device(device))
        self.watch = LossWatch(load_workload(point.source, point.settings))
        self.operators = point.kind == "operators"
        self.columns: dict[str, Any] = {**point.columns, **workload_columns(self.watch.workload)}

    def out_of_memory(self, error: BaseException) -> Record:
        text = str(error).strip().split("\n")[0].rpartition("DefaultCPUAllocator: ")[2][:300]
        text = text or "the host's memory is full"
        return Record(step=StepRow(**self.columns, outcome="out-of-memory", error=text, **self.machine.provenance()))

    def prepare(self, like: Prepared | None = None, *, light: bool = False) -> Prepared:
        """Build and warm the step, and learn all of it that does not depend on the clock.

        `like` is the same step at another batch, whose model is used again. A light one has no ops and no kernels, only
        the time and peaks of the step.
        """
        device = self.machine.device
        cuda = device.type == "cuda"
        step = self._step(like)
        warm_up(step, clock_of(device))
        memory: dict[str, Any] = {}
        aligned = allocations = None
        if cuda and light:
            memory = peak_memory(step)
        elif cuda and not self.operators:
            memory, allocations = record_memory(step)
        if self.machine.companions:
            memory.pop("used_outside", None)  # theirs is in it
        if not light:
            _sampler(self.machine)  # starts it, while nothing is timed yet
            aligned = align(step, timed=not self.operators) if cuda else None
        samples, tokens = batch_sizes(self.watch.workload, step.batch)
        columns = self.columns | memory | {"samples": samples, "tokens": tokens}
        free_memory(device)
        return Prepared(self, step, aligned, allocations, columns, light)

    def _step(self, like: Prepared | None) -> Step:
        workload, device = self.watch.workload, self.machine.device
        if like is None:
            return build_step(workload, device)
        if like.measurement.point.but_batch != self.point.but_batch:
            raise ValueError(f"{like.measurement.point} and {self.point} differ in more than their batch")
        return step_like(like.step, workload, device)


@dataclass(slots=True)
class Prepared:
    """A warm step. Several may be prepared side by side; taking its times needs the machine to itself."""

    measurement: Measurement
    step: Step
    aligned: Alignment | None  # None of a light one, and on a CPU, where the host's clock gives an op's time
    allocations: AllocationRow | None
    columns: dict[str, Any]
    light: bool = False

    def take(self, seconds: Seconds = SECONDS) -> MeasuredStep:
        """Time the step and trace its kernels. Of operators, only the kernels, with an empty cache before each step."""
        machine, operators, workload = (
            self.measurement.machine,
            self.measurement.operators,
            self.measurement.watch.workload,
        )
        allow_units(workload)  # another point may have been prepared since
        timing, sampler = None, None if self.light else _sampler(machine)
        if not operators:
            with sampler.awake() if sampler else contextlib.nullcontext():
                timing = time_steps(self.step, clock_of(machine.device), seconds)
            if workload.step is not None:
                timing = replace(timing, parts={})  # a step of the user's own is one piece
        marks = tuple(machine.marks())
        provenance = machine.provenance()  # clocks as they are under load
        samples = sampler.between(*timing.window) if sampler and timing else []
        traces = None if self.light else self._traced()
        finite = self.measurement.watch.finite
        return MeasuredStep(self, timing, marks, samples, traces, {**self.columns, **provenance}, finite)

    def _traced(self) -> Traces | OpTimes:
        if self.aligned is None:
            return record_on_host(self.step)
        return trace_steps(self.step, _TRACED, cold=self.measurement.operators)


@dataclass(slots=True)
class MeasuredStep:
    """Everything measured; what remains needs no device."""

    of: Prepared
    timing: Timing | None
    marks: tuple[str, ...]
    samples: list[Sample]
    traces: Traces | OpTimes | None  # None of a light one
    columns: dict[str, Any]
    finite: bool

    def record(self) -> Record:
        aligned, traces, timing = self.of.aligned, self.traces, self.timing
        if timing is not None and traces is None:
            columns = self.columns | timing.columns | {"marks": (*self.marks, *timing.marks)} | self._outcome()
            return Record(step=StepRow(**columns))
        times = op_times(aligned, traces.read()) if aligned and isinstance(traces, Traces) else traces
        assert isinstance(times, OpTimes)
        marks = (*self.marks, *times.notes, *(timing.marks if timing else ()))
        graph = GraphRow(hash=times.graph.content_hash, name=times.graph.name, file=times.graph.to_bytes(packed=False))
        columns = {**self.columns, "graph": graph.hash, "marks": marks} | self._outcome()
        series: list[SeriesRow] = []
        if timing is None:
            columns |= _kernel_columns(times) | {"device_seconds": times.total(times.device)}
        else:
            traced, series = _traced(times, timing, columns["device"])
            columns |= timing.columns | traced | _sampled(self.samples, timing)
            series += sampled_series(self.samples, timing.window[0])
        step, allocations = StepRow(**columns), self.of.allocations
        return Record(step=step, ops=_op_rows(times), graph=graph, series=tuple(series), allocations=allocations)

    def _outcome(self) -> dict[str, str]:
        error = "the loss is not a finite number; times are recorded all the same"
        return {} if self.finite else {"outcome": "nan-loss", "error": error}


@functools.cache
def _machine(device: torch.device) -> Machine:
    return Machine(device)


@functools.cache
def _sampler(machine: Machine) -> Sampler:
    """One for the whole stay: starting a process beside a step would disturb it."""
    return Sampler(machine.uuid)


def _traced(times: OpTimes, timing: Timing, device: str) -> tuple[dict[str, Any], list[SeriesRow]]:
    """Columns of device and host time, and the two resources that kernels show."""
    summed, issue = times.total(times.device), timing.issue or 0.0
    if not times.steps:  # a CPU, where the host is the device
        busy = min(summed, timing.seconds)
        columns = {"device_seconds": busy, "host_seconds": issue, "bound": "device"}
        return columns | Reduced(timing.seconds - busy, busy, 1.0).columns("device"), []
    # Micro-steps beyond the second were not traced: what overlaps is taken to overlap as in those that were.
    traced = sum(added_seconds(times.steps[0].kernels))
    whole = (summed + times.unattributed) / traced if traced else 1.0
    busy = quantile([s.busy_seconds() for s in times.steps], 0.5) * whole
    host = quantile([s.host_seconds for s in times.steps], 0.5) * whole
    series = [device_series(times)]
    columns = {
        "device_seconds": busy,
        "host_seconds": min(host, issue),
        "communication_seconds": quantile([s.busy_seconds(collectives=True) for s in times.steps], 0.5),
        "bound": "device" if busy >= _DEVICE_BOUND * timing.seconds else "host",
        **_kernel_columns(times),
        **Reduced(0.0, busy, max(series[0].values)).in_step(timing.seconds).columns("device"),
    }
    if device and times.owners:
        traffic, reduced = bandwidth_use(times, known_device(device).bandwidth)
        series.append(traffic)
        columns |= reduced.in_step(timing.seconds).columns("memory_bandwidth")
    return columns, series


def _kernel_columns(times: OpTimes) -> dict[str, Any]:
    seconds = times.total(map(sum, times.kernel_seconds)) + times.unattributed
    count = sum(map(len, times.kernels))
    return {"kernels": count, "kernel_seconds": seconds, "unattributed_seconds": times.unattributed}


def _sampled(samples: list[Sample], timing: Timing) -> dict[str, Any]:
    """Columns of power and network."""
    begin, end = timing.window
    columns: dict[str, Any] = {}
    if power := [s.power_watts for s in samples if s.power_watts is not None and s.time >= begin]:
        mean = sum(power) / len(power)
        columns |= {"power_watts": mean, "energy_joules": mean * timing.seconds}
    if len(samples) > 1:
        first, last = samples[0], samples[-1]
        steps = (last.time - first.time) / timing.seconds
        for name in ("received_bytes", "sent_bytes"):
            columns[name] = round((getattr(last, name) - getattr(first, name)) / steps)
    for series in sampled_series(samples, begin):
        if series.resource.startswith("network"):
            columns |= reduce_series(series, end - begin).columns(series.resource, timing.seconds / (end - begin))
    return columns


def _op_rows(times: OpTimes) -> tuple[OpRow, ...]:
    return tuple(
        OpRow(
            op=i,
            target=op.target,
            phase=op.phase,
            device_seconds=times.device[i],
            dispatch_seconds=times.dispatch[i],
            issue_seconds=times.issue[i],
            kernels=times.kernels[i],
            kernel_seconds=times.kernel_seconds[i],
        )
        for i, op in enumerate(times.graph.ops)
    )
