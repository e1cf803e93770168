"""How long a step takes, with no profiler near: repetitions back to back after warm-up, and their parts."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch

from foretell.capture.step import Step
from foretell.units import Seconds

_WARM_UP: Final = 2
_FEWEST: Final = 5
_MAX_REPETITIONS: Final = 100
_ISSUED_ALONE: Final = 5  # steps issued into an empty queue, to time the host
_UNSTEADY: Final = 1.25  # 90th over 10th percentile of a step
_PARTS: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    steps: tuple[Seconds, ...]  # each repetition
    parts: dict[str, Seconds]  # medians; a part the step does not have is absent
    window: tuple[float, float]  # time.monotonic() of the repetitions
    issue: Seconds | None = None  # host, until a step is issued into an empty queue

    @property
    def seconds(self) -> Seconds:
        return quantile(self.steps, 0.5)

    @property
    def columns(self) -> dict[str, Any]:
        """Of a `StepRow`."""
        low, high = quantile(self.steps, 0.1), quantile(self.steps, 0.9)
        parts = {f"{part}_seconds": self.parts.get(part) for part in _PARTS}
        steps = {"step_seconds": self.seconds, "step_low": low, "step_high": high, "issue_seconds": self.issue}
        return {"repetitions": len(self.steps), **steps, **parts}

    @property
    def marks(self) -> tuple[str, ...]:
        """Why to mistrust it."""
        ratio = quantile(self.steps, 0.9) / quantile(self.steps, 0.1)
        return (f"unsteady: p90 is {ratio:.2f} times p10",) if ratio > _UNSTEADY else ()


class Clock(Protocol):
    """Marks moments in the order in which the device reaches them."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> Seconds: ...

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached it, without waiting for it."""
        ...

    def wait(self) -> None: ...


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> Seconds:
        return end - begin

    def passed(self, mark: float) -> bool:
        return True

    def wait(self) -> None:
        pass


class CudaClock:
    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> Seconds:
        return float(begin.elapsed_time(end)) / 1e3

    def passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())

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
    """Repeat a warm step for about so many seconds, and issue it alone."""
    timing = repeat(step, clock, repetitions(time_once(step, clock), seconds))
    return replace(timing, issue=_issue_seconds(step, clock, seconds / 4))


def time_once(step: Step, clock: Clock) -> Seconds:
    gc.collect()
    begin = time.perf_counter()
    step.run()
    clock.wait()
    return time.perf_counter() - begin


def repetitions(each: Seconds, seconds: Seconds) -> int:
    """Of a step that takes `each`, to fill `seconds`."""
    return int(min(max(seconds / each, _FEWEST), _MAX_REPETITIONS))


def repeat(step: Step, clock: Clock, count: int) -> Timing:
    """Back to back. A step's time is from its first mark to that of the next."""
    marks: list[list[tuple[str, Any]]] = []
    clock.wait()
    begin = time.monotonic()
    for _ in range(count):
        marks.append([])
        step.run(lambda part, micro: marks[-1].append((part, clock.mark())))
    last = clock.mark()
    clock.wait()
    window = (begin, time.monotonic())
    steps: list[Seconds] = []
    parts: dict[str, list[Seconds]] = {}
    for own, end in zip(marks, [*(after[0][1] for after in marks[1:]), last], strict=True):
        steps.append(clock.seconds(own[0][1], end))
        spent: dict[str, Seconds] = {}
        for (part, start), (_, stop) in zip(own, [*own[1:], ("", end)], strict=True):
            spent[part] = spent.get(part, 0.0) + clock.seconds(start, stop)
        for part, value in spent.items():
            parts.setdefault(part, []).append(value)
    return Timing(steps=tuple(steps), parts={part: quantile(v, 0.5) for part, v in parts.items()}, window=window)


def _issue_seconds(step: Step, clock: Clock, seconds: Seconds) -> Seconds:
    issued: list[Seconds] = []
    begin = time.perf_counter()
    while len(issued) < _ISSUED_ALONE and (not issued or time.perf_counter() - begin < seconds):
        clock.wait()
        start = time.perf_counter()
        step.run()
        issued.append(time.perf_counter() - start)
    clock.wait()
    return quantile(issued, 0.5)


def quantile(values: tuple[float, ...] | list[float], q: float) -> float:
    """Of a few values, by linear interpolation."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
