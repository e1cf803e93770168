"""How long a step takes, with no profiler near: repetitions back to back after warm-up, and their parts."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from foretell.capture.step import Step
from foretell.units import Seconds

_WARM_UP: Final = 2
_FEWEST: Final = 5
_MOST: Final = 100
_ISSUED_ALONE: Final = 5  # steps issued into an empty queue, to time the host
PARTS: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    steps: tuple[Seconds, ...]  # each repetition
    parts: dict[str, Seconds]  # medians; a part the step does not have is absent
    issue: Seconds  # host, until a step is issued into an empty queue
    window: tuple[float, float]  # time.monotonic() of the repetitions

    def quantile(self, q: float) -> Seconds:
        return quantile(self.steps, q)


class Clock(Protocol):
    """Marks moments in the order in which the device reaches them."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> Seconds: ...

    def wait(self) -> None: ...


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> Seconds:
        return end - begin

    def wait(self) -> None:
        pass


class CudaClock:
    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> Seconds:
        return float(begin.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize()


def clock_of(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else HostClock()


def warm_up(step: Step, clock: Clock) -> None:
    """Run the step until all it makes on first use is there."""
    for _ in range(_WARM_UP):
        step.run()
        clock.wait()


def time_steps(step: Step, clock: Clock, seconds: Seconds) -> Timing:
    """Repeat a warm step for about so many seconds."""
    gc.collect()
    begin = time.perf_counter()
    step.run()
    clock.wait()
    each = time.perf_counter() - begin
    repetitions = int(min(max(seconds / each, _FEWEST), _MOST))
    marks: list[tuple[str, Any]] = []

    def watch(part: str, micro: int) -> None:
        marks.append((part, clock.mark()))

    starts = []
    clock.wait()
    window_begin = time.monotonic()
    for _ in range(repetitions):
        starts.append(len(marks))
        step.run(watch)
    marks.append(("", clock.mark()))
    clock.wait()
    window = (window_begin, time.monotonic())
    ends = [*starts[1:], len(marks) - 1]
    durations = tuple(clock.seconds(marks[a][1], marks[b][1]) for a, b in zip(starts, ends, strict=True))
    parts: dict[str, list[Seconds]] = {}
    for a, b in zip(starts, ends, strict=True):
        taken: dict[str, Seconds] = {}
        for i in range(a, b):
            taken[marks[i][0]] = taken.get(marks[i][0], 0.0) + clock.seconds(marks[i][1], marks[i + 1][1])
        for part, value in taken.items():
            parts.setdefault(part, []).append(value)
    return Timing(
        steps=durations,
        parts={part: quantile(values, 0.5) for part, values in parts.items()},
        issue=_issue_seconds(step, clock, seconds / 4),
        window=window,
    )


def _issue_seconds(step: Step, clock: Clock, seconds: Seconds) -> Seconds:
    taken: list[Seconds] = []
    begin = time.perf_counter()
    while len(taken) < _ISSUED_ALONE and (not taken or time.perf_counter() - begin < seconds):
        clock.wait()
        start = time.perf_counter()
        step.run()
        taken.append(time.perf_counter() - start)
    clock.wait()
    return quantile(taken, 0.5)


def quantile(values: tuple[float, ...] | list[float], q: float) -> float:
    """Of a few values, by linear interpolation."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
