"""What would be learned of a point if it were measured, and the seconds that would take; neither needs the device.

An `OpSet` is the distinct ops of a point's graph that launch kernels, as the few numbers a linear model of log(time)
needs. `cost/features.py` describes an op to trees, in dozens of columns that go together; a linear model of those
extrapolates wildly, and its design would chase their accidents. So here there are a handful, with a physical meaning.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from foretell.cost.features.numbers import number
from foretell.cost.host import usual_costs
from foretell.cost.roofline import peak_name, work_of
from foretell.design.pool import POOL
from foretell.graph import Graph, Layout, Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device, host
from foretell.measure.record import Point
from foretell.precision import HALF_DTYPES
from foretell.units import Bytes, Flops, Seconds, show_seconds

FLOOR: Final[Seconds] = 2e-6  # a kernel that has next to nothing to do
_BENDS: Final = (2.0, 4.0, 6.0, 8.0)  # e-folds of the floor: 15 µs to 6 ms
_LONG: Final = 1024
_EFFICIENCY: Final = 0.5  # of the roofline, that kernels reach as a rule

# What the instrument does beside repeating the step: warm-up, memory, recording, the host alone, traces.
FURTHER_RUNS: Final = 12
REPEATING: Final[Seconds] = 0.3
_MIN_RUNS, _MAX_RUNS = 5, 100
_OPERATOR_RUNS: Final = 7
# Building and recording, a point's share of a campaign on an H200 that prepared many side by side.
BUILDING: Final[Mapping[str, Seconds]] = {"step": 0.8, "operators": 0.08}


@dataclass(frozen=True, slots=True)
class Row:
    """A distinct op of a step, with no device in it."""

    key: str  # of the signature
    family: str  # operators that are one kernel in two spellings are one family
    times: int
    flops: Flops
    traffic: Bytes
    rate: str  # the published rate its arithmetic runs at
    shape: Mapping[str, float]

    def seconds(self, device: Device) -> Seconds:
        """As the roofline has it, above a floor."""
        return FLOOR + max(self.traffic / device.bandwidth, self.flops / device.peak(self.rate) if self.flops else 0.0)


@dataclass(frozen=True, slots=True)
class OpSet:
    """What measuring a point would show: its distinct ops that launch kernels."""

    rows: tuple[Row, ...]
    issued: float  # ops that the host issues in a step; one that launches a kernel is one, a view less

    def step_seconds(self, device: Device) -> Seconds:
        """A first guess at the step: the device or the host, whichever is slower."""
        kernels = sum(r.times * r.seconds(device) for r in self.rows) / _EFFICIENCY
        return max(kernels, self.issued * host(device.host).op_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    point: Point
    ops: OpSet
    seconds: Seconds  # to measure it

    @property
    def group(self) -> str:
        """The operator, of a point of the pool; else the library or the file the workload is from."""
        place, _, name = self.point.source.rpartition(":")
        if self.point.source.startswith(POOL):
            return name
        return place or self.point.source.partition("/")[0]


def candidate(point: Point, ops: OpSet, device: Device) -> Candidate:
    return Candidate(point=point, ops=ops, seconds=measuring_seconds(ops, device, point.kind))


def measuring_seconds(ops: OpSet, device: Device, kind: str = "step") -> Seconds:
    """Before it was measured: building, and every run of the step that the instrument makes."""
    step = ops.step_seconds(device)
    runs = _OPERATOR_RUNS if kind == "operators" else FURTHER_RUNS + min(max(REPEATING / step, _MIN_RUNS), _MAX_RUNS)
    return BUILDING[kind] + runs * step


# φ: what a linear model of log(time) sees of an op.


def features(row: Row, device: Device) -> dict[str, float]:
    """Of log(time / roofline), so a large op has a constant alone: it runs at its family's share of the peak.

    What keeps an op from that is being small, in memory traffic, in arithmetic or in a side, and each of these is felt
    only below some size. Sizes are times over the floor, so that all ops too small to matter look alike.
    """
    memory = math.log1p(row.traffic / device.bandwidth / FLOOR)
    half, shape = row.shape["half"], row.shape
    values = {"one": 1.0, "half": half} | _short("memory", memory)
    values["half × memory"] = half * values[_short_name("memory", _BENDS[-1])]
    if row.flops:
        arithmetic = math.log1p(row.flops / device.peak(row.rate) / FLOOR)
        values |= {"intensity": max(0.0, arithmetic - memory), "tf32": float(row.rate == "tf32")}
        values |= _short("arithmetic", arithmetic)
    if "tiles" in shape:  # blocks that a wave of the device's units leaves idle
        values["idle units"] = math.log1p(device.compute_units / shape["tiles"])
    return values | {name: value for name, value in shape.items() if name not in ("half", "tiles")}


def _short(name: str, size: float) -> dict[str, float]:
    """How far a size falls short of each bend: piecewise linear, and zero for what is large."""
    return {_short_name(name, bend): max(0.0, bend - size) for bend in _BENDS}


def _short_name(name: str, bend: float) -> str:
    return f"{name} short of {show_seconds(FLOOR * math.exp(bend))}"


def op_set_of(graph: Graph) -> OpSet:
    tf32 = graph.precision.wanted() == "tf32"
    times: dict[Signature, int] = {}
    for call, runs in zip(graph.calls.distinct, graph.calls.times, strict=True):
        if call.launches:
            times[call.signature] = times.get(call.signature, 0) + runs
    rows = tuple(_row(signature, runs, tf32) for signature, runs in times.items())
    return OpSet(rows, usual_costs().step_weight(graph))


def _row(s: Signature, times: int, tf32: bool) -> Row:
    work = work_of(s)
    return Row(_key(s, tf32), family_of(s), times, work.flops, work.traffic, peak_name(s, tf32=tf32), _shape(s))


def row_keys(graph: Graph) -> list[str]:
    """Of every op, the key of its row; there is none for an op that launches no kernel."""
    tf32 = graph.precision.wanted() == "tf32"
    return graph.calls.each(lambda call: _key(call.signature, tf32))


def family_of(signature: Signature) -> str:
    """`add` of `aten.add_`; convolutions by kind, which are kernels of their own."""
    name, family = signature.name.removeprefix("aten.").removesuffix("_"), operator_of(signature.name).family
    if family not in ("convolution", "convolution_backward"):
        return name
    weight = signature.inputs[2 if family == "convolution_backward" else 1]
    if signature.argument("transposed"):
        return f"{name}, transposed"
    if number(signature, "groups", 1) == 1:
        return name
    return f"{name}, depthwise" if weight.shape[1] == 1 else f"{name}, grouped"


def _key(signature: Signature, tf32: bool) -> str:
    return hashlib.sha256(f"{signature}{tf32}".encode()).hexdigest()[:16]


def _shape(s: Signature) -> dict[str, float]:
    layouts = (*s.inputs, *s.outputs)
    largest = max(layouts, key=lambda x: x.numel, default=None)
    half = float(largest is not None and largest.dtype in HALF_DTYPES)
    first = (s.outputs or s.inputs)[0] if layouts else None
    inner = _side(first.shape[-1] if first is not None and first.shape else 1)
    shape = {"half": half, "strided": float(any(map(_is_strided, layouts))), "inner": inner}
    operator = operator_of(s.name)
    if operator.family == "matmul":
        a, b = s.inputs[1 if operator.kind == "added" else 0 :][:2]
        return shape | (_product(a, b) if len(a.shape) > 1 and len(b.shape) > 1 else {})
    if operator.family == "convolution":
        return shape | _convolution(s, s.inputs[0], s.inputs[1], s.outputs[0], half)
    if operator.family == "convolution_backward":
        return shape | _convolution(s, s.inputs[1], s.inputs[2], s.inputs[0], half)
    if operator.is_attention and (q := s.tensor("query")) and (k := s.tensor("key")):
        return shape | {"head": _side(q.shape[-1]), "queries": _side(q.shape[-2]), "keys": _side(k.shape[-2])}
    most = [max((x.numel for x in side), default=1) for side in (s.inputs, s.outputs)]
    last = float(largest is not None and largest.is_channels_last)
    shape |= {"reduced": _log(most[0]) - _log(most[1]), "tensors": _log(len(s.inputs)), "channels last": last}
    trains = float(bool(s.argument("training", s.argument("train"))))
    return shape | {"channels last × half": last * half, "trains": trains}


def _product(a: Layout, b: Layout) -> dict[str, float]:
    m, k, n, batch = a.shape[-2], a.shape[-1], b.shape[-1], math.prod(a.shape[:-2])
    tiles = max(1.0, batch * math.ceil(m / 128) * math.ceil(n / 128))
    sides = {"narrow": _side(min(m, n)), "wide": _side(max(m, n)), "depth": _side(k), "batch": _side(batch)}
    return {**sides, "tiles": tiles}


def _convolution(s: Signature, x: Layout, weight: Layout, out: Layout, half: float) -> dict[str, float]:
    last, groups = float(x.is_channels_last), int(number(s, "groups", 1))
    return {
        "into": _side(weight.shape[1]),
        "onto": _side(weight.shape[0] // groups),
        "groups": _side(groups),
        "window": _log(math.prod(weight.shape[2:])),
        "channels last": last,
        "channels last × half": last * half,
        "positions": _side(math.prod(out.shape[2:])),
        "images": _side(x.shape[0]),
    }


def _is_strided(x: Layout) -> bool:
    strides = [stride for size, stride in zip(x.shape, x.strides, strict=True) if size > 1]
    return bool(strides) and strides[-1] != 1


def _side(size: int) -> float:
    """A side of a tensor: what is longer than any kernel's tile is long."""
    return _log(min(size, _LONG))


def _log(number: float) -> float:
    return math.log(max(1.0, number))
