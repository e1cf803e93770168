"""Memory over the step: what is allocated after each op and for which purpose, thinned to what a chart can show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.units import Bytes

# From the ground up: what stays put lies lowest, so that a layer's shape is its own.
LAYERS = {
    "parameter": ("parameters", "parameters"),
    "optimizer": ("optimizer-state", "optimizer state"),
    "input": ("inputs", "inputs"),
    "gradient": ("gradients", "gradients"),
    "activation": ("activations", "activations"),
    "temporary": ("temporaries", "temporaries"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A run of ops in one phase; `times` counts the micro-steps that repeat it."""

    phase: str
    times: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What is allocated for one purpose at each chosen op."""

    key: str
    label: str
    nbytes: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySeries:
    """Bytes at chosen ops, by purpose. Layers sum to `allocated`."""

    ops: int
    positions: tuple[int, ...]
    allocated: tuple[Bytes, ...]
    layers: tuple[Layer, ...]
    peak: int  # op position
    peak_allocated: Bytes
    stretches: tuple[Stretch, ...]


def memory_series(forecast: Forecast, points: int) -> MemorySeries:
    """The memory trace at about `points` ops, among them the highest of each interval, so no peak is lost."""
    trace, graph = forecast.memory_trace, forecast.graph
    positions = _highest(trace.allocated, points)
    layers: list[Layer] = []
    rest = [trace.allocated[p] for p in positions]
    for role, (key, label) in LAYERS.items():
        series = _allocated_for(graph, role)
        # The trace knows how much there is at the peak: less where the plan shards, more where it keeps copies.
        whole = series[trace.peak_op] if 0 <= trace.peak_op < len(series) else 0
        there = trace.at_peak.get(role, 0)
        scale, copies = (there / whole if whole else 1.0, 0) if there < whole else (1.0, there - whole)
        used = tuple(min(left, round(series[p] * scale) + copies) for left, p in zip(rest, positions, strict=True))
        rest = [left - taken for left, taken in zip(rest, used, strict=True)]
        if any(used):
            layers.append(Layer(key=key, label=label, nbytes=used))
    if any(rest):
        layers.append(Layer(key="workspace", label="workspace and rounding", nbytes=tuple(rest)))
    return MemorySeries(
        ops=len(graph.ops),
        positions=positions,
        allocated=tuple(trace.allocated[p] for p in positions),
        layers=tuple(layers),
        peak=trace.peak_op,
        peak_allocated=trace.peak_allocated,
        stretches=tuple(_stretches(graph)),
    )


def _highest(allocated: tuple[Bytes, ...], points: int) -> tuple[int, ...]:
    count = len(allocated)
    edges = [round(i * count / points) for i in range(points + 1)] if count > points else list(range(count + 1))
    return tuple(max(range(start, end), key=allocated.__getitem__) for start, end in pairwise(edges))


def _allocated_for(graph: Graph, role: str) -> list[Bytes]:
    """Bytes of the role while each op runs."""
    changes = [0] * (len(graph.ops) + 1)
    for storage in graph.storages:
        if storage.role == role:
            changes[max(storage.born, 0)] += storage.nbytes
            if 0 <= storage.freed < len(graph.ops) and storage.born >= 0:
                changes[storage.freed + 1] -= storage.nbytes
    return list(accumulate(changes[:-1]))


def _stretches(graph: Graph) -> Iterator[Stretch]:
    start = 0
    for (phase, times), ops in groupby(graph.ops, key=lambda op: (op.phase, op.times)):
        end = start + len(list(ops))
        yield Stretch(phase=phase, times=times, start=start, end=end)
        start = end
