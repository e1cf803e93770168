"""The instrument: one point on the device at hand → one Record.

It needs torch and what a plain PyTorch image has beside it. What is asked of a step is taken apart, so that no part
disturbs another: times come from steps with no profiler near, kernels from traced steps, memory from steps of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from foretell.capture.step import Step, batch_sizes
from foretell.errors import PlanError
from foretell.hardware import device as known_device
from foretell.measure.build import LossWatch, allow_units, build_step, free_memory, ran_out_of_memory
from foretell.measure.kernels import (
    Alignment,
    OpTimes,
    Traces,
    added_seconds,
    align,
    busy_seconds,
    host_seconds,
    op_times,
    record_on_host,
    trace_steps,
)
from foretell.measure.machine import Machine, pick_device
from foretell.measure.record import AllocationRow, GraphRow, OpRow, Point, Record, SeriesRow, StepRow
from foretell.measure.resources import Reduced, bandwidth_use, device_series, reduce_series, sampled_series
from foretell.measure.sampler import Sample, Sampler
from foretell.measure.timing import PARTS, Timing, clock_of, quantile, time_steps, warm_up
from foretell.plan import Plan
from foretell.sources.files import load_workload
from foretell.units import Seconds

SECONDS: Final = 0.3  # of repetitions
_TRACED: Final = 3  # plain steps traced for their kernels
_UNSTEADY: Final = 1.25  # 90th over 10th percentile of a step
_DEVICE_BOUND: Final = 0.9  # of the step with a kernel running


def measure(point: Point, *, device: str = "auto", seconds: Seconds = SECONDS) -> Record:
    """Measure one point here and now. Out of memory and a NaN loss are outcomes; bad input is an error."""
    asked = Asked(point, device)
    try:
        return asked.prepare().take(seconds).record()
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        return asked.out_of_memory(error)
    finally:
        free_memory(asked.machine.device)


class Asked:
    """A point that names a workload, on a device that is there."""

    def __init__(self, point: Point, device: str = "auto") -> None:
        if Plan.parse(point.plan) != Plan():
            raise PlanError(
                f"plan {point.plan} cannot be measured on one device. Start one process a device with torchrun, as "
                "docs/guide/hosts.md shows, or leave out the plan."
            )
        self.machine = _machine(pick_device(device))
        self.watch = LossWatch(load_workload(point.source, point.settings))
        self.operators = point.kind == "operators"
        workload = self.watch.workload
        self.columns: dict[str, Any] = {
            "point": point.key, "kind": point.kind, "source": point.source, "settings": point.settings_text,
            "plan": point.plan, "workload": workload.name, "precision": workload.precision,
            "training": workload.optimizer is not None, "grad_accumulation": workload.grad_accumulation,
        }  # fmt: skip

    def out_of_memory(self, error: BaseException) -> Record:
        text = str(error).strip().split("\n")[0].rpartition("DefaultCPUAllocator: ")[2][:300]
        text = text or "the host's memory is full"
        return Record(step=StepRow(**self.columns, outcome="out-of-memory", error=text, **self.machine.provenance()))

    def prepare(self) -> Prepared:
        """Build and warm the step, and learn all of it that does not hang on the clock."""
        device = self.machine.device
        cuda = device.type == "cuda"
        step = build_step(self.watch.workload, device)
        warm_up(step, clock_of(device))
        memory, allocations = _memory(step) if cuda and not self.operators else ({}, None)
        if self.machine.companions:
            memory.pop("used_outside", None)  # theirs is in it
        _sampler(self.machine)  # starts it, while nothing is timed yet
        aligned = align(step) if cuda else None
        samples, tokens = batch_sizes(self.watch.workload, step.batch)
        columns = self.columns | memory | {"samples": samples, "tokens": tokens}
        free_memory(device)
        return Prepared(self, step, aligned, allocations, columns)


@dataclass(slots=True)
class Prepared:
    """A warm step. Several may be prepared side by side; taking its times needs the machine to itself."""

    asked: Asked
    step: Step
    aligned: Alignment | None  # None on a CPU, where the host's clock tells an op's time
    allocations: AllocationRow | None
    columns: dict[str, Any]

    def take(self, seconds: Seconds = SECONDS) -> Taken:
        """Time the step and trace its kernels. Of operators, only the kernels, with an empty cache before each step."""
        machine, operators = self.asked.machine, self.asked.operators
        allow_units(self.asked.watch.workload)  # another point may have been prepared since
        timing, sampler = None, _sampler(machine)
        if not operators:
            with sampler.awake():
                timing = time_steps(self.step, clock_of(machine.device), seconds)
        marks = tuple(machine.marks())
        provenance = machine.provenance()  # clocks as they are under load
        samples = sampler.between(*timing.window) if timing else []
        alone = self.aligned is None
        traces = record_on_host(self.step) if alone else trace_steps(self.step, _TRACED, cold=operators)
        finite = self.asked.watch.finite
        return Taken(self, timing, marks, samples, traces, {**self.columns, **provenance}, finite)


@dataclass(slots=True)
class Taken:
    """Everything measured; what remains needs no device."""

    of: Prepared
    timing: Timing | None
    marks: tuple[str, ...]
    samples: list[Sample]
    traces: Traces | OpTimes
    columns: dict[str, Any]
    finite: bool

    def record(self) -> Record:
        aligned, traces = self.of.aligned, self.traces
        times = op_times(aligned, traces.read()) if aligned and isinstance(traces, Traces) else traces
        assert isinstance(times, OpTimes)
        marks = [*self.marks, *times.notes]
        columns = {**self.columns, "graph": times.graph.content_hash}
        series: list[SeriesRow] = []
        if not self.finite:
            columns |= {
                "outcome": "nan-loss",
                "error": "the loss is not a finite number; times are recorded all the same",
            }
        if self.timing is None:
            columns |= _kernel_facts(times) | {"device_seconds": times.total(times.device)}
        else:
            low, high = self.timing.quantile(0.1), self.timing.quantile(0.9)
            if high > _UNSTEADY * low:
                marks.append(f"unsteady: p90 is {high / low:.2f} times p10")
            traced, series = _traced_facts(times, self.timing, columns["device"])
            parts = (
                {} if self.of.asked.watch.workload.step else self.timing.parts
            )  # a step of the user's own is one piece
            columns |= _times(self.timing, parts) | traced | _sampled_facts(self.samples, self.timing)
            series += sampled_series(self.samples, self.timing.window[0])
        graph = GraphRow(hash=times.graph.content_hash, name=times.graph.name, file=times.graph.to_bytes(packed=False))
        return Record(step=StepRow(**columns, marks=tuple(marks)), ops=_op_rows(times), graph=graph,
                      series=tuple(series), allocations=self.of.allocations)  # fmt: skip


@functools.cache
def _machine(device: torch.device) -> Machine:
    return Machine(device)


@functools.cache
def _sampler(machine: Machine) -> Sampler:
    """One for the whole stay: starting a process beside a step would disturb it."""
    uuid = f"GPU-{torch.cuda.get_device_properties(machine.device).uuid}" if machine.device.type == "cuda" else None
    return Sampler(uuid)


def _times(timing: Timing, parts: Mapping[str, Seconds]) -> dict[str, Any]:
    columns = {f"{part}_seconds": parts.get(part) for part in PARTS}
    return {
        "repetitions": len(timing.steps), "step_seconds": timing.quantile(0.5), "step_low": timing.quantile(0.1),
        "step_high": timing.quantile(0.9), "issue_seconds": timing.issue, **columns,
    }  # fmt: skip


def _traced_facts(times: OpTimes, timing: Timing, device: str) -> tuple[dict[str, Any], list[SeriesRow]]:
    """Device and host time, and the two resources that kernels tell of."""
    step_seconds = timing.quantile(0.5)
    summed = times.total(times.device)
    if not times.steps:  # a CPU, where the host is the device
        busy = min(summed, step_seconds)
        facts = {"device_seconds": busy, "host_seconds": timing.issue, "bound": "device",
                 **_columns("device", Reduced(step_seconds - busy, busy, 1.0))}  # fmt: skip
        return facts, []
    # Micro-steps beyond the second were not traced: what overlaps is taken to overlap as in those that were.
    traced = sum(added_seconds(times.steps[0].kernels))
    whole = (summed + times.unattributed) / traced if traced else 1.0
    busy = quantile([busy_seconds(s.kernels) for s in times.steps], 0.5) * whole
    host = quantile([host_seconds(s) for s in times.steps], 0.5) * whole
    device_use = device_series(times)
    series = [device_use]
    facts = {
        "device_seconds": busy, "host_seconds": min(host, timing.issue),
        "communication_seconds": quantile([busy_seconds(s.kernels, collectives=True) for s in times.steps], 0.5),
        "bound": "device" if busy >= _DEVICE_BOUND * step_seconds else "host",
        **_kernel_facts(times),
        **_columns("device", Reduced(0.0, busy, max(device_use.values)).in_step(step_seconds)),
    }  # fmt: skip
    if device and times.owners:
        traffic, reduced = bandwidth_use(times, known_device(device).bandwidth)
        series.append(traffic)
        facts |= _columns("memory_bandwidth", reduced.in_step(step_seconds))
    return facts, series


def _kernel_facts(times: OpTimes) -> dict[str, Any]:
    return {
        "kernels": sum(map(len, times.kernels)),
        "kernel_seconds": times.total(map(sum, times.kernel_seconds)) + times.unattributed,
        "unattributed_seconds": times.unattributed,
    }  # fmt: skip


def _sampled_facts(samples: list[Sample], timing: Timing) -> dict[str, Any]:
    step_seconds = timing.quantile(0.5)
    begin, end = timing.window
    facts: dict[str, Any] = {}
    power = [s.power_watts for s in samples if s.power_watts is not None and s.time >= begin]
    if power:
        mean = sum(power) / len(power)
        facts |= {"power_watts": mean, "energy_joules": mean * step_seconds}
    if len(samples) > 1:
        steps = (samples[-1].time - samples[0].time) / step_seconds
        facts |= {
            "received_bytes": round((samples[-1].received_bytes - samples[0].received_bytes) / steps),
            "sent_bytes": round((samples[-1].sent_bytes - samples[0].sent_bytes) / steps),
        }
    for series in sampled_series(samples, begin):
        if series.resource.startswith("network"):
            whole = reduce_series(series, end - begin)
            share = step_seconds / (end - begin)
            facts |= _columns(
                series.resource, Reduced(whole.idle_seconds * share, whole.active_seconds * share, whole.peak)
            )
    return facts


def _columns(resource: str, reduced: Reduced) -> dict[str, float]:
    return {f"{resource}_idle_seconds": reduced.idle_seconds, f"{resource}_active_seconds": reduced.active_seconds,
            f"{resource}_peak": reduced.peak}  # fmt: skip


def _memory(step: Step) -> tuple[dict[str, Any], AllocationRow]:
    """Peaks of one step, and the allocator's own history of it. Addresses are offsets from the lowest."""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    try:
        step.run()
        torch.cuda.synchronize()
        traces = torch.cuda.memory._snapshot()["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    facts = {
        "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved(),
        "resting_allocated": torch.cuda.memory_allocated(), "used_outside": total - free - reserved,
    }  # fmt: skip
    events = [e for trace in traces for e in trace if e["action"] != "snapshot"]
    lowest = min((e["addr"] for e in events), default=0)
    return facts, AllocationRow(
        action=tuple(e["action"] for e in events), address=tuple(e["addr"] - lowest for e in events),
        bytes=tuple(e["size"] for e in events),
    )  # fmt: skip


def _op_rows(times: OpTimes) -> tuple[OpRow, ...]:
    return tuple(
        OpRow(op=i, target=op.target, phase=op.phase, device_seconds=times.device[i],
              dispatch_seconds=times.dispatch[i], issue_seconds=times.issue[i], kernels=times.kernels[i],
              kernel_seconds=times.kernel_seconds[i])
        for i, op in enumerate(times.graph.ops)
    )  # fmt: skip
