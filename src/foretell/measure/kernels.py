"""What each op of a step took: a trace of the step's kernels, aligned to the graph recorded in the same process.

The step is traced twice. Once under the recorder, with a numbered profiler range around every dispatched op, so that
each kernel is known to belong to op i; Python then issues ops slowly and the device idles between them. And a few times
plainly, with nothing but the kernel trace on, where kernels run as close together as they do in training. Both launch
the same kernels in the same order, so the durations of the plain traces are given to the ops by position.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from foretell.capture.recorder import Recorder
from foretell.capture.step import Step
from foretell.capture.trace import MICRO_STEPS_RECORDED, record
from foretell.graph import Graph
from foretell.measure.timing import quantile
from foretell.units import MIB, Seconds

_RANGE: Final = "foretell#"
_WAIT: Final = "cudaDeviceSynchronize"  # ours: a step of its own waits for a stream or an event
_QUEUE_FULL: Final = 4.0  # a launch this many times longer than the median waited for room in the queue
_COLLECTIVE: Final = "nccl"
_FLUSH_BYTES: Final = 256 * MIB  # more than any cache


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, copy or fill on the device, and the moment the host launched it. Nanoseconds of the trace's clock."""

    name: str
    begin: int
    end: int
    launch_begin: int
    launch_end: int

    @property
    def seconds(self) -> Seconds:
        return (self.end - self.begin) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One plain step as its kernels, in launch order."""

    kernels: tuple[Kernel, ...]
    begin: int  # when the host started on it


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """Times of every op of a graph, by position."""

    graph: Graph
    device: tuple[Seconds, ...]  # what its kernels add to the time the device is busy
    dispatch: tuple[Seconds, ...]  # to a tenth of a microsecond, which is all a Python clock tells
    issue: tuple[Seconds | None, ...]
    kernels: tuple[tuple[str, ...], ...]
    kernel_seconds: tuple[tuple[Seconds, ...], ...]
    unattributed: Seconds  # of kernels no op launched
    steps: tuple[TracedStep, ...] = ()  # plain traces; none on a CPU
    owners: tuple[int | None, ...] = ()  # the op of each kernel of such a step, in launch order; unknown if empty
    notes: tuple[str, ...] = field(default=())

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
        with torch._C._profiler._RecordFunctionFast(f"{_RANGE}{len(self.nanoseconds)}"):
            begin = time.perf_counter_ns()
            out = func(*args, **kwargs)
            self.nanoseconds.append(time.perf_counter_ns() - begin)
        return out


def record_on_host(step: Step, repetitions: int = 3) -> OpTimes:
    """On a CPU an op is done when its call returns: the call is the op's time. The quietest repetition counts."""
    taken: list[list[int]] = []
    for _ in range(repetitions):
        graph, nanoseconds = _recorded(step)
        taken.append(nanoseconds)
    same = [t for t in taken if len(t) == len(graph.ops)]
    seconds = tuple(min(values) / 1e9 for values in zip(*same, strict=True))
    nothing: tuple[tuple[Any, ...], ...] = ((),) * len(graph.ops)
    return OpTimes(graph=graph, device=seconds, dispatch=seconds, issue=(None,) * len(seconds), kernels=nothing,
                   kernel_seconds=nothing, unattributed=0.0)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """A recorded step: its graph, its kernels in launch order, and the op that launched each."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    owners: tuple[int | None, ...]
    nanoseconds: tuple[int, ...]  # host, inside each op


def align(step: Step) -> Alignment:
    """Record a warm step on a CUDA device with its kernels traced."""
    with _profiler(ProfilerActivity.CPU, ProfilerActivity.CUDA) as profiler:
        graph, nanoseconds = _recorded(step)
        torch.cuda.synchronize()
    kernels, ranges, _ = _read(profiler)
    ranges.sort()
    owners = _owners(kernels, ranges)
    return Alignment(graph=graph, kernels=tuple(kernels), owners=tuple(owners), nanoseconds=tuple(nanoseconds))


@dataclass(frozen=True, slots=True)
class Traces:
    """Plain steps that were traced, not read yet: reading takes a while, and no device."""

    profiler: profile
    repetitions: int
    cold: bool

    def read(self) -> tuple[TracedStep, ...]:
        kernels, _, waits = _read(self.profiler)
        return _split(kernels, waits, self.repetitions, self.cold)


def trace_steps(step: Step, repetitions: int, *, cold: bool = False) -> Traces:
    """Run plain steps, each started with an empty queue, with nothing but the kernel trace on.

    `cold` overwrites the cache before each: a tiny step would find all of its data there, as no real step does.
    """
    accumulation = step.workload.grad_accumulation
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=step.device) if cold else None
    with _profiler(ProfilerActivity.CUDA) as profiler:
        for _ in range(repetitions):
            if flush is not None:
                flush.fill_(0)
            torch.cuda.synchronize()
            step.run(micro_steps=min(accumulation, MICRO_STEPS_RECORDED))
        torch.cuda.synchronize()
    return Traces(profiler, repetitions, cold)


def op_times(aligned: Alignment, steps: tuple[TracedStep, ...]) -> OpTimes:
    """Give the kernels of plain steps to the ops that launch them."""
    if difference := _difference(aligned.kernels, steps):
        note = f"recorded alone: ops' times are from the recorded step, because {difference}"
        return _by_op(aligned, (aligned.kernels,), (), steps, (note,))
    return _by_op(aligned, [s.kernels for s in steps], steps, steps, ())


def added_seconds(kernels: Sequence[Kernel]) -> list[Seconds]:
    """What each kernel adds to the time the device is busy: nothing where others that began before it still run."""
    added = [0] * len(kernels)
    reached = 0
    for i in sorted(range(len(kernels)), key=lambda i: (kernels[i].begin, kernels[i].end)):
        added[i] = max(0, kernels[i].end - max(kernels[i].begin, reached))
        reached = max(reached, kernels[i].end)
    return [a / 1e9 for a in added]


def busy_seconds(kernels: Iterable[Kernel], *, collectives: bool = False) -> Seconds:
    """Length of the union of kernels; of compute kernels, or of collectives alone."""
    chosen = sorted((k.begin, k.end) for k in kernels if (_COLLECTIVE in k.name.lower()) == collectives)
    total = reached = 0
    for begin, end in chosen:
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total / 1e9


def host_seconds(traced: TracedStep) -> Seconds:
    """Time to issue the step, without the launches that waited for room in a full queue."""
    if not traced.kernels:
        return 0.0
    launches = [k.launch_end - k.launch_begin for k in traced.kernels]
    usual = quantile([float(x) for x in launches], 0.5)
    waited = sum(x - usual for x in launches if x > _QUEUE_FULL * usual)
    return max(0.0, max(k.launch_end for k in traced.kernels) - traced.begin - waited) / 1e9


def _recorded(step: Step) -> tuple[Graph, list[int]]:
    ranges = _Ranges()
    recorder = Recorder(ranges)
    ranges.recorder = recorder
    with recorder:
        graph = record(step, recorder, warm=True)
    return graph, ranges.nanoseconds[len(ranges.nanoseconds) - len(graph.ops) :]


def _profiler(*activities: ProfilerActivity) -> profile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it forgets events between cycles, and there is one
        return profile(activities=list(activities), acc_events=False)  # or it builds its tree of events at the end


def _read(profiler: profile) -> tuple[list[Kernel], list[tuple[int, int, int]], list[int]]:
    """Kernels in launch order, numbered ranges as (begin, end, number), and the ends of waits for the device.

    Read from the raw results: the profiler's own tree of events takes seconds to build.
    """
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    launches: dict[int, tuple[int, int]] = {}
    ran: list[tuple[int, str, int, int]] = []
    ranges: list[tuple[int, int, int]] = []
    waits: list[int] = []
    on_host = torch._C._autograd.DeviceType.CPU
    for event in results.events():
        name = event.name()
        if event.device_type() == on_host:
            if name.startswith(_RANGE):
                begin = event.start_ns()
                ranges.append((begin, begin + event.duration_ns(), int(name[len(_RANGE) :])))
            elif name.startswith("cu"):  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync, …
                begin = event.start_ns()
                end = begin + event.duration_ns()
                launches[event.correlation_id()] = (begin, end)
                if name == _WAIT:
                    waits.append(end)
        elif not event.is_user_annotation() and not name.startswith(_RANGE):
            begin = event.start_ns()
            ran.append((event.correlation_id(), name, begin, begin + event.duration_ns()))
    kernels = [
        Kernel(name, begin, end, *launches.get(correlation, (begin, begin)))
        for correlation, name, begin, end in sorted(ran)
        if not name.startswith(("Context Sync", "Event Sync", "Stream Sync", "Stream Wait"))
    ]
    return kernels, ranges, waits


def _split(kernels: Sequence[Kernel], waits: Iterable[int], repetitions: int, cold: bool) -> tuple[TracedStep, ...]:
    """The last so many steps of a trace: each begins when the wait before it ends."""
    last = max((k.launch_begin for k in kernels), default=0)
    begins = sorted(w for w in waits if w <= last)
    traced = []
    for begin, end in zip(begins, [*begins[1:], None], strict=False):
        mine = [k for k in kernels if k.launch_begin >= begin and (end is None or k.launch_begin < end)]
        if cold and end is not None:
            mine = mine[:-1]  # without the fill that empties the cache for the next
        if mine:  # there are none between two waits, where the user's own code waits at its end
            traced.append(TracedStep(kernels=tuple(mine), begin=begin))
    return tuple(traced[-repetitions:])


def _owners(kernels: Sequence[Kernel], ranges: Sequence[tuple[int, int, int]]) -> list[int | None]:
    """The op of each kernel: the range its launch falls in. One thread issues at a time, so ranges do not overlap."""
    begins = [begin for begin, _, _ in ranges]
    owners: list[int | None] = []
    for kernel in kernels:
        op = bisect_right(begins, kernel.launch_begin) - 1
        owners.append(op if op >= 0 and kernel.launch_begin <= ranges[op][1] else None)
    return owners


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
    aligned: Alignment, runs: Sequence[Sequence[Kernel]], common: tuple[TracedStep, ...], steps: tuple[TracedStep, ...],
    notes: tuple[str, ...],
) -> OpTimes:  # fmt: skip
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
        graph=aligned.graph, device=tuple(device),
        dispatch=tuple(round(n, -2) / 1e9 for n in aligned.nanoseconds), issue=_issue(count, aligned.owners, common),
        kernels=tuple(map(tuple, names)), kernel_seconds=tuple(map(tuple, seconds)), unattributed=unattributed,
        steps=steps, owners=aligned.owners if common else (), notes=notes,
    )  # fmt: skip


def _medians(runs: Sequence[Sequence[Seconds]]) -> list[Seconds]:
    return [quantile(list(column), 0.5) for column in zip(*runs, strict=True)]


def _issue(count: int, owners: Sequence[int | None], steps: Sequence[TracedStep]) -> tuple[Seconds | None, ...]:
    """Host time between the last launch before an op and its own last launch, waiting for the queue left out."""
    taken: list[list[Seconds]] = [[] for _ in range(count)]
    for traced in steps:
        usual = quantile([float(k.launch_end - k.launch_begin) for k in traced.kernels] or [0.0], 0.5)
        before = traced.begin
        mine: dict[int, float] = {}
        for kernel, owner in zip(traced.kernels, owners, strict=True):
            launch = kernel.launch_end - kernel.launch_begin
            waited = launch - usual if launch > _QUEUE_FULL * usual else 0.0
            if owner is not None:
                mine[owner] = mine.get(owner, 0.0) + (kernel.launch_end - before - waited) / 1e9
            before = kernel.launch_end
        for owner, value in mine.items():
            taken[owner].append(value)
    return tuple(quantile(values, 0.5) if values else None for values in taken)
