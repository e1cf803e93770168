"""Kernel traces of plain steps: what ran on the device, when it was launched, and what that adds up to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from foretell.capture.step import Step
from foretell.capture.trace import MICRO_STEPS_RECORDED
from foretell.measure.timing import quantile
from foretell.units import MIB, Seconds

RANGE: Final = "foretell#"  # begins the name of a numbered profiler range
_WAIT: Final = "cudaDeviceSynchronize"  # ours: a step of its own waits for a stream or an event
_QUEUE_FULL: Final = 4.0  # a launch this many times longer than the median waited for room in the queue
_COLLECTIVE: Final = "nccl"
_FLUSH_BYTES: Final = 256 * MIB  # more than any cache
_LEAVES: Final = "TEARDOWN_CUPTI"  # Kineto reads it at the end of each trace


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

    def waits(self) -> list[float]:
        """Of each launch, the nanoseconds it waited for room in a full queue."""
        launches = [float(k.launch_end - k.launch_begin) for k in self.kernels]
        usual = quantile(launches, 0.5) if launches else 0.0
        return [x - usual if x > _QUEUE_FULL * usual else 0.0 for x in launches]

    @property
    def host_seconds(self) -> Seconds:
        """Time to issue the step, without the launches that waited for room in a full queue."""
        issued = max((k.launch_end for k in self.kernels), default=self.begin) - self.begin
        return max(0.0, issued - sum(self.waits())) / 1e9

    def busy_seconds(self, *, collectives: bool = False) -> Seconds:
        """Length of the union of kernels; of compute kernels, or of collectives alone."""
        return sum(added_seconds([k for k in self.kernels if (_COLLECTIVE in k.name.lower()) == collectives]))


@dataclass(frozen=True, slots=True)
class Traces:
    """Plain steps that were traced, not read yet: reading takes a while, and no device."""

    profiler: profile
    repetitions: int
    cold: bool

    def read(self) -> tuple[TracedStep, ...]:
        kernels, _, waits = read_trace(self.profiler)
        return _split(kernels, waits, self.repetitions, self.cold)


def trace_steps(step: Step, repetitions: int, *, cold: bool = False) -> Traces:
    """Run plain steps, each started with an empty queue, with nothing but the kernel trace on.

    `cold` overwrites the cache before each: a tiny step would find all of its data there, as no real step does.
    """
    accumulation = step.workload.grad_accumulation
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=step.device) if cold else None
    with kernel_trace(ProfilerActivity.CUDA, leaves=not cold) as profiler:
        for _ in range(repetitions):
            if flush is not None:
                flush.fill_(0)
            torch.cuda.synchronize()
            step.run(micro_steps=min(accumulation, MICRO_STEPS_RECORDED))
        torch.cuda.synchronize()
    return Traces(profiler, repetitions, cold)


def gloo_seconds(step: Step, repetitions: int) -> Seconds:
    """Union of gloo's own ranges, per step."""
    with profiler_of(ProfilerActivity.CPU) as profiler:
        for _ in range(repetitions):
            step.run()
    ranges = ((e.start_ns(), e.duration_ns()) for e in events(profiler) if e.name().startswith("gloo:"))
    return (
        sum(added_seconds([Kernel("gloo", begin, begin + length, begin, begin) for begin, length in ranges]))
        / repetitions
    )


def added_seconds(kernels: Sequence[Kernel]) -> list[Seconds]:
    """What each kernel adds to the time the device is busy: nothing where others that began before it still run."""
    added = [0] * len(kernels)
    reached = 0
    for i in sorted(range(len(kernels)), key=lambda i: (kernels[i].begin, kernels[i].end)):
        added[i] = max(0, kernels[i].end - max(kernels[i].begin, reached))
        reached = max(reached, kernels[i].end)
    return [a / 1e9 for a in added]


@contextmanager
def kernel_trace(*activities: ProfilerActivity, leaves: bool) -> Iterator[profile]:
    """Trace kernels; `leaves`: with nothing of the tracer left behind, for whoever times a step in this process later.

    Its callbacks would stay, and each launch take a third longer. But a trace that begins while the last one is still
    leaving sees nothing, so where nobody times anything they do stay.
    """
    os.environ[_LEAVES] = "1" if leaves else "0"
    with profiler_of(*activities) as profiler:
        yield profiler


def profiler_of(*activities: ProfilerActivity) -> profile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it forgets events between cycles, and there is one
        return profile(activities=list(activities), acc_events=False)  # or it builds its tree of events at the end


def events(profiler: profile) -> Iterable[Any]:
    """The raw results: the profiler's own tree of events takes seconds to build."""
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events: Iterable[Any] = results.events()
    return events


def read_trace(profiler: profile) -> tuple[list[Kernel], list[tuple[int, int, int]], list[int]]:
    """Kernels in launch order, numbered ranges as (begin, end, number), and the ends of waits for the device."""
    launches: dict[int, tuple[int, int]] = {}
    ran: list[tuple[int, str, int, int]] = []
    ranges: list[tuple[int, int, int]] = []
    waits: list[int] = []
    on_host = torch._C._autograd.DeviceType.CPU
    for event in events(profiler):
        name, begin = event.name(), event.start_ns()
        end = begin + event.duration_ns()
        if event.device_type() == on_host:
            if name.startswith(RANGE):
                ranges.append((begin, end, int(name[len(RANGE) :])))
            elif name.startswith("cu"):  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync, …
                launches[event.correlation_id()] = (begin, end)
                if name == _WAIT:
                    waits.append(end)
        elif not event.is_user_annotation() and not name.startswith(RANGE):
            ran.append((event.correlation_id(), name, begin, end))
    kernels = [
        Kernel(name, begin, end, *launches.get(correlation, (begin, begin)))
        for correlation, name, begin, end in sorted(ran)
        if not name.startswith(("Context Sync", "Event Sync", "Stream Sync", "Stream Wait"))
    ]
    return kernels, sorted(ranges), waits


def _split(kernels: Sequence[Kernel], waits: Iterable[int], repetitions: int, cold: bool) -> tuple[TracedStep, ...]:
    """The last so many steps of a trace: each begins when the wait before it ends."""
    last = max((k.launch_begin for k in kernels), default=0)
    begins = sorted(w for w in waits if w <= last)
    traced = []
    for begin, end in zip(begins, [*begins[1:], None], strict=False):
        own = [k for k in kernels if k.launch_begin >= begin and (end is None or k.launch_begin < end)]
        if cold and end is not None:
            own = own[:-1]  # without the fill that empties the cache for the next
        if own:  # there are none between two waits, where the user's own code waits at its end
            traced.append(TracedStep(kernels=tuple(own), begin=begin))
    return tuple(traced[-repetitions:])
