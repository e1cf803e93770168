"""How long each op of a step takes: a trace of the step's kernels, aligned to the graph recorded in the same process.

The step is traced twice. Once under the recorder, with a numbered profiler range around every dispatched op, so that
each kernel is known to belong to op i; Python then issues ops slowly and the device idles between them. And a few times
plainly, with nothing but the kernel trace on, where kernels run as close together as they do in training. Both launch
the same kernels in the same order, so the durations of the plain traces are given to the ops by position.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity

from foretell.capture.recorder import Recorder
from foretell.capture.step import Step
from foretell.capture.trace import record
from foretell.graph import Graph
from foretell.measure.timing import quantile
from foretell.measure.traces import RANGE, Kernel, TracedStep, added_seconds, kernel_trace, read_trace
from foretell.units import Seconds

_TRIES: Final = 2  # a trace that began while another was leaving has nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """Times of every op of a graph, by position."""

    graph: Graph
    device: tuple[Seconds, ...]  # what its kernels add to the time the device is busy
    dispatch: tuple[Seconds, ...]  # to a tenth of a microsecond, which is all a Python clock resolves
    issue: tuple[Seconds | None, ...]
    kernels: tuple[tuple[str, ...], ...]
    kernel_seconds: tuple[tuple[Seconds, ...], ...]
    unattributed: Seconds  # of kernels no op launched
    steps: tuple[TracedStep, ...] = ()  # plain traces; none on a CPU
    owners: tuple[int | None, ...] = ()  # the op of each kernel of such a step, in launch order; unknown if empty
    notes: tuple[str, ...] = ()

    def total(self, times: Iterable[Seconds | None]) -> Seconds:
        """Over the step, each op as often as it runs."""
        return sum((t or 0.0) * op.times for t, op in zip(times, self.graph.ops, strict=True))


class _Ranges:
    """Runs each op inside a numbered range, and times the call on the host."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.nanoseconds: list[int] = []

    def rewrite(self, func: Any, args: Any, kwargs: Any) -> None:
        return None

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.recorder is None or not self.recorder.recording or func.namespace == "profiler":
            return func(*args, **kwargs)
        with torch._C._profiler._RecordFunctionFast(f"{RANGE}{len(self.nanoseconds)}"):
            begin = time.perf_counter_ns()
            out = func(*args, **kwargs)
            self.nanoseconds.append(time.perf_counter_ns() - begin)
        return out


def _recorded(step: Step) -> tuple[Graph, list[int]]:
    """The graph of a warm step, and the nanoseconds of each call."""
    ranges = _Ranges()
    recorder = Recorder(ranges)
    ranges.recorder = recorder
    with recorder:
        graph = record(step, recorder, warm=True)
    return graph, ranges.nanoseconds[len(ranges.nanoseconds) - len(graph.ops) :]


def record_on_host(step: Step, repetitions: int = 3) -> OpTimes:
    """On a CPU an op is done when its call returns: the call is the op's time. The quietest repetition counts."""
    runs: list[list[int]] = []
    for _ in range(repetitions):
        graph, nanoseconds = _recorded(step)
        runs.append(nanoseconds)
    same = [run for run in runs if len(run) == len(graph.ops)]
    seconds = tuple(min(values) / 1e9 for values in zip(*same, strict=True))
    nothing: tuple[tuple[Any, ...], ...] = ((),) * len(graph.ops)
    return OpTimes(
        graph=graph,
        device=seconds,
        dispatch=seconds,
        issue=(None,) * len(seconds),
        kernels=nothing,
        kernel_seconds=nothing,
        unattributed=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """A recorded step: its graph, its kernels in launch order, and the op that launched each."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    owners: tuple[int | None, ...]
    nanoseconds: tuple[int, ...]  # host, inside each op


def align(step: Step, *, timed: bool = True) -> Alignment:
    """Record a warm step on a CUDA device with its kernels traced; `timed`: it shall be timed afterwards."""
    for _ in range(_TRIES):
        with kernel_trace(ProfilerActivity.CPU, ProfilerActivity.CUDA, leaves=timed) as profiler:
            graph, nanoseconds = _recorded(step)
            torch.cuda.synchronize()
        kernels, ranges, _ = read_trace(profiler)
        if kernels:
            break
    owners = owners_of(kernels, ranges)
    return Alignment(graph=graph, kernels=tuple(kernels), owners=owners, nanoseconds=tuple(nanoseconds))


def owners_of(kernels: Sequence[Kernel], ranges: Sequence[tuple[int, int, int]]) -> tuple[int | None, ...]:
    """The op of each kernel: the range its launch falls in. One thread issues at a time, so ranges do not overlap."""
    begins = [begin for begin, _, _ in ranges]
    places = ((kernel, bisect_right(begins, kernel.launch_begin) - 1) for kernel in kernels)
    return tuple(op if op >= 0 and kernel.launch_begin <= ranges[op][1] else None for kernel, op in places)


def op_times(aligned: Alignment, steps: tuple[TracedStep, ...]) -> OpTimes:
    """Give the kernels of plain steps to the ops that launch them."""
    if difference := _difference(aligned.kernels, steps):
        note = f"recorded alone: ops' times are from the recorded step, because {difference}"
        return _by_op(aligned, (aligned.kernels,), (), steps, (note,))
    return _by_op(aligned, [s.kernels for s in steps], steps, steps, ())


def _difference(kernels: Sequence[Kernel], steps: Sequence[TracedStep]) -> str:
    """How plain steps differ from the recorded one in the kernels they launch; empty when they do not."""
    for traced in steps:
        if len(traced.kernels) != len(kernels):
            pairs = zip(kernels, traced.kernels, strict=False)
            first = next((f", first {b.name[:80]!r} for {a.name[:80]!r}" for a, b in pairs if a.name != b.name), "")
            return f"a plain step launches {len(traced.kernels)} kernels and the recorded one {len(kernels)}{first}"
        if sum(a.name != b.name for a, b in zip(kernels, traced.kernels, strict=True)) > 0.01 * len(kernels):
            return "plain steps launch other kernels"
    return "" if steps else "no plain step was traced"


def _by_op(
    aligned: Alignment,
    runs: Sequence[Sequence[Kernel]],
    common: tuple[TracedStep, ...],
    steps: tuple[TracedStep, ...],
    notes: tuple[str, ...],
) -> OpTimes:
    """Medians over `runs`, each the same kernels in launch order."""
    count = len(aligned.graph.ops)
    names: list[list[str]] = [[] for _ in range(count)]
    seconds: list[list[Seconds]] = [[] for _ in range(count)]
    device = [0.0] * count
    unattributed = 0.0
    durations = _medians([[k.seconds for k in run] for run in runs])
    added = _medians([added_seconds(run) for run in runs])
    for kernel, owner, duration, adds in zip(aligned.kernels, aligned.owners, durations, added, strict=True):
        if owner is None:
            unattributed += adds
        else:
            names[owner].append(kernel.name)
            seconds[owner].append(duration)
            device[owner] += adds
    return OpTimes(
        graph=aligned.graph,
        device=tuple(device),
        dispatch=tuple(round(n, -2) / 1e9 for n in aligned.nanoseconds),
        issue=_issue(count, aligned.owners, common),
        kernels=tuple(map(tuple, names)),
        kernel_seconds=tuple(map(tuple, seconds)),
        unattributed=unattributed,
        steps=steps,
        owners=aligned.owners if common else (),
        notes=notes,
    )


def _medians(runs: Sequence[Sequence[Seconds]]) -> list[Seconds]:
    return [quantile(list(column), 0.5) for column in zip(*runs, strict=True)]


def _issue(count: int, owners: Sequence[int | None], steps: Sequence[TracedStep]) -> tuple[Seconds | None, ...]:
    """Host time between the last launch before an op and its own last launch, waiting for the queue left out."""
    issued: list[list[Seconds]] = [[] for _ in range(count)]
    for traced in steps:
        before = traced.begin
        own: dict[int, float] = {}
        for kernel, owner, waited in zip(traced.kernels, owners, traced.waits(), strict=True):
            if owner is not None:
                own[owner] = own.get(owner, 0.0) + (kernel.launch_end - before - waited) / 1e9
            before = kernel.launch_end
        for owner, value in own.items():
            issued[owner].append(value)
    return tuple(quantile(values, 0.5) if values else None for values in issued)
