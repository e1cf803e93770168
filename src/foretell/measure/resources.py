"""What a step does to device, memory bandwidth and network over time, and the three numbers each comes down to.

Every series says which counter it is from. NVML averages over longer than most steps, so the device's activity is
taken from kernel traces instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from foretell.cost.roofline import work_of
from foretell.graph import Graph
from foretell.measure.kernels import OpTimes
from foretell.measure.record import SeriesRow
from foretell.measure.sampler import COUNTERS, Sample
from foretell.measure.traces import TracedStep
from foretell.units import BytesPerSecond, Seconds

_BINS: Final = 200
_MOST_POINTS: Final = 4096  # of a series
_ACTIVE: Final = 0.01  # of the series' peak; below, a resource is idle

FROM_KERNELS: Final = "kernel trace: share of each interval with a kernel running"
FROM_TRAFFIC: Final = (
    "kernel trace and graph: bytes each op must move at least, over its kernels' time and the published bandwidth"
)
FROM_NVML_POWER: Final = "NVML power usage"
FROM_NVML_MEMORY: Final = "NVML memory utilisation: share of its window with memory being read or written"


@dataclass(frozen=True, slots=True)
class Reduced:
    """A series as Driple counts it."""

    idle_seconds: Seconds
    active_seconds: Seconds
    peak: float

    def in_step(self, step_seconds: Seconds) -> Reduced:
        """The same activity in a step of this length: a traced step idles longer than a plain one."""
        return Reduced(max(0.0, step_seconds - self.active_seconds), self.active_seconds, self.peak)

    def columns(self, resource: str, share: float = 1.0) -> dict[str, float]:
        """Of a `StepRow`; `share` is that of one step in what was reduced."""
        seconds = {"idle_seconds": self.idle_seconds * share, "active_seconds": self.active_seconds * share}
        return {f"{resource}_{name}": value for name, value in (seconds | {"peak": self.peak}).items()}


def reduce_series(series: SeriesRow, length: Seconds) -> Reduced:
    """Idle seconds, active seconds and peak of a series whose values each hold until the next moment."""
    if not series.values:
        return Reduced(length, 0.0, 0.0)
    peak = max(series.values)
    ends = [*series.seconds[1:], length]
    active = sum(
        end - begin
        for begin, end, value in zip(series.seconds, ends, series.values, strict=True)
        if value > _ACTIVE * peak
    )
    return Reduced(max(0.0, length - active), active, peak)


def _middle(times: OpTimes) -> TracedStep:
    return times.steps[len(times.steps) // 2]


def _length(traced: TracedStep) -> Seconds:
    """From the host's start on the step to the end of its last kernel."""
    return (max((k.end for k in traced.kernels), default=traced.begin) - traced.begin) / 1e9


def device_series(times: OpTimes) -> SeriesRow:
    traced = _middle(times)
    return _binned(traced, [1.0] * len(traced.kernels), resource="device", counter=FROM_KERNELS)


def bandwidth_use(times: OpTimes, bandwidth: BytesPerSecond) -> tuple[SeriesRow, Reduced]:
    """Memory traffic over a traced step, and over the whole step."""
    traffic = _traffic(times.graph)
    rates = [min(1.0, traffic[op] / seconds / bandwidth) if seconds else 0.0 for op, seconds in enumerate(times.device)]
    weights = [rates[owner] if owner is not None and 0 <= owner < len(rates) else 0.0 for owner in times.owners]
    series = _binned(_middle(times), weights, resource="memory_bandwidth", counter=FROM_TRAFFIC)
    active = times.total(s if rate > _ACTIVE else 0.0 for s, rate in zip(times.device, rates, strict=True))
    return series, Reduced(0.0, active, max(series.values))


def sampled_series(samples: Sequence[Sample], begin: float) -> list[SeriesRow]:
    """What the sampler saw in a window of steps: power, NVML's memory utilisation, the network."""
    inside = [s for s in samples if s.time >= begin]
    power = [(s.time - begin, s.power_watts) for s in inside if s.power_watts is not None]
    memory = [(s.time - begin, s.memory_utilization) for s in inside if s.memory_utilization is not None]
    return [
        *_series("power", FROM_NVML_POWER, "W", power),
        *_series("memory_bandwidth", FROM_NVML_MEMORY, "fraction", memory),
        *network_series(samples, begin),
    ]


def network_series(samples: Sequence[Sample], begin: float, interface: str = "") -> list[SeriesRow]:
    """Bytes per second received and sent; between some of very many readings, for counters only grow."""
    some = samples[:: len(samples) // _MOST_POINTS + 1]
    pairs = [(a, b) for a, b in pairwise(some) if b.time > a.time]
    made = []
    for resource, done, column in (("rx", "received", "received_bytes"), ("tx", "sent", "sent_bytes")):
        counter = f"{COUNTERS}: bytes {done} by {interface or 'all interfaces but loopback'}"
        rates = ((getattr(b, column) - getattr(a, column)) / (b.time - a.time) for a, b in pairs)
        points = [(max(a.time - begin, 0.0), rate) for (a, _), rate in zip(pairs, rates, strict=True)]
        made += _series(f"network_{resource}", counter, "bytes/s", points)
    return made


def _series(resource: str, counter: str, unit: str, points: Sequence[tuple[float, float]]) -> list[SeriesRow]:
    if not points:
        return []
    seconds, values = zip(*points, strict=True)
    return [SeriesRow(resource=resource, counter=counter, unit=unit, seconds=seconds, values=values)]


def _binned(traced: TracedStep, weights: Sequence[float], *, resource: str, counter: str) -> SeriesRow:
    """Each kernel's weight in the intervals it runs in."""
    length = max(1e-9, _length(traced))
    width = length / _BINS
    values = [0.0] * _BINS
    reached = traced.begin
    for kernel, weight in zip(traced.kernels, weights, strict=False):
        begin, end = max(kernel.begin, reached), kernel.end  # what runs side by side counts once
        if end > begin:
            _add(values, (begin - traced.begin) / 1e9, (end - traced.begin) / 1e9, width, weight)
            reached = end
    points = [(i * width, min(1.0, value / width)) for i, value in enumerate(values)]
    return _series(resource, counter, "fraction", points)[0]


def _add(values: list[float], begin: Seconds, end: Seconds, width: Seconds, weight: float) -> None:
    first, last = int(begin / width), min(int(end / width), len(values) - 1)
    for i in range(first, last + 1):
        values[i] += weight * max(0.0, min(end, (i + 1) * width) - max(begin, i * width))


def _traffic(graph: Graph) -> list[float]:
    known: dict[int, float] = {}
    for op in graph.ops:
        if id(op.signature) not in known:
            known[id(op.signature)] = float(work_of(op.signature).traffic)
    return [known[id(op.signature)] for op in graph.ops]
