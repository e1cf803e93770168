"""Memory over the step: what is held after each op and for which purpose, thinned to what a chart can show."""

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
    """What is held for one purpose at each chosen op."""

    key: str
    label: str
    nbytes: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes held at chosen ops, by purpose. Layers sum to `allocated`."""

    ops: int
    positions: tuple[int, ...]
    allocated: tuple[Bytes, ...]
    layers: tuple[Layer, ...]
    peak: int  # op position
    peak_allocated: Bytes
    stretches: tuple[Stretch, ...]


def held(forecast: Forecast, points: int) -> Held:
    """The memory trace at about `points` ops, among them the highest of each interval, so no peak is lost."""
    trace, graph = forecast.memory_trace, forecast.graph
    positions = _highest(trace.allocated, points)
    layers: list[Layer] = []
    rest = [trace.allocated[p] for p in positions]
    for role, (key, label) in LAYERS.items():
        series = _held_for(graph, role)
        # The plan may shard a role: the trace knows how much of it is there at the peak.
        whole = series[trace.peak_op] if 0 <= trace.peak_op < len(series) else 0
        scale = trace.at_peak.get(role, 0) / whole if whole else 1.0
        used = tuple(min(left, round(series[p] * scale)) for left, p in zip(rest, positions, strict=True))
        rest = [left - taken for left, taken in zip(rest, used, strict=True)]
        if any(used):
            layers.append(Layer(key=key, label=label, nbytes=used))
    if any(rest):
        layers.append(Layer(key="workspace", label="workspace and rounding", nbytes=tuple(rest)))
    return Held(
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


def _held_for(graph: Graph, role: str) -> list[Bytes]:
    """Bytes of the role that are held while each op runs."""
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
