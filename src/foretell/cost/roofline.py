"""The roofline: an op takes as long as its arithmetic or its memory traffic needs at the device's published peaks.

No kernel is faster, most are slower. It is the baseline that learned models must beat, and the price of what they
do not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from foretell.cost.flops import declared, executed, flops
from foretell.graph import ITEM_BYTES, Graph, Layout, Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.precision import UNIT_OF_DTYPE, Precision, Unit
from foretell.units import Bytes, Flops, Seconds


@dataclass(frozen=True, slots=True)
class Work:
    """What an op asks of a device."""

    flops: Flops
    traffic: Bytes
    kernel: bool  # False: nothing is launched (views, empty tensors, numbers kept by the host)
    waits: bool  # the host needs the result before it goes on


@dataclass(frozen=True, slots=True)
class Price:
    work: Work
    seconds: Seconds


def price_ops(graph: Graph, device: Device) -> list[Price]:
    """The price of every op of a graph; equal calls share theirs."""
    return graph.calls.of_ops(price_calls(graph, device))


def price_calls(graph: Graph, device: Device) -> list[Price]:
    """The price of each of a graph's distinct calls."""
    prices = []
    for signature, _, view, on_host in graph.calls.distinct:
        work = work_of(signature, view=view, host=on_host)
        tf32 = on_tf32(signature.name, graph.precision, device)
        prices.append(Price(work, roofline_seconds(work, signature, device, tf32=tf32)))
    return prices


def seconds_at_peak(graph: Graph, device: Device, counted: Callable[[Signature], Flops] = flops) -> Seconds:
    """What the arithmetic of a step would take at the rates of the precisions that it runs in."""
    return graph.remember(("at peak", device, counted), lambda: _seconds_at_peak(graph, device, counted))


def _seconds_at_peak(graph: Graph, device: Device, counted: Callable[[Signature], Flops]) -> Seconds:
    calls = zip(graph.calls.distinct, graph.calls.times, strict=True)
    return sum(
        counted(call.signature)
        * times
        / device.peak(peak_name(call.signature, tf32=on_tf32(call.signature.name, graph.precision, device)))
        for call, times in calls
        if call.launches  # what the device does not run is no use of it
    )


@lru_cache(maxsize=1 << 14)  # asked again by those who describe an op
def work_of(signature: Signature, *, view: bool = False, host: bool = False) -> Work:
    operator = operator_of(signature.name)
    waits = operator.waits and not host
    if view or host or not operator.launches:
        return Work(0.0, 0, kernel=False, waits=waits)
    return Work(executed(signature), _traffic(signature), kernel=True, waits=waits)


def roofline_seconds(work: Work, signature: Signature, device: Device, *, tf32: bool) -> Seconds:
    if not work.kernel:
        return 0.0
    arithmetic = work.flops / device.peak(peak_name(signature, tf32=tf32)) if work.flops else 0.0
    return max(arithmetic, work.traffic / device.bandwidth)


def on_tf32(name: str, precision: Precision, device: Device) -> bool:
    """Whether an operator on fp32 numbers runs on tf32 units."""
    return precision.on_tf32(operator_of(name).family, device)


@lru_cache(maxsize=1 << 14)  # asked many times of every op
def peak_name(signature: Signature, *, tf32: bool) -> Unit:
    """Which published rate the op's matrix arithmetic runs at."""
    name: Unit = next((UNIT_OF_DTYPE[x.dtype] for x in signature.inputs if x.dtype in UNIT_OF_DTYPE), "fp32")
    return "tf32" if name == "fp32" and tf32 else name


def _traffic(s: Signature) -> Bytes:
    """Each input read once, each output written once; a broadcast is stored once, a look-up reads what it returns."""
    written, reads = _bytes(s.outputs), operator_of(s.name).reads
    if reads == "what it returns":
        return 2 * written + _bytes([x for x in s.inputs if x.dtype.startswith(("int", "uint", "bool"))])
    if reads == "no tensor":
        return written
    if reads == "as declared":
        return int(min(declared(s, "traffic"), _most_looked_up(s)))
    if reads == "one per row":
        return written + 2 * _bytes([x for x in s.inputs if x.dtype.startswith("int")])
    return _bytes(s.inputs) + (written or _bytes([s.inputs[i] for i in s.mutates]))


def _most_looked_up(s: Signature) -> float:
    """A kernel that looks up rows of a table declares the whole of it, and moves no more than what its threads ask for."""
    accesses = s.argument("accesses")
    widest = max((ITEM_BYTES[x.dtype] for x in (*s.inputs, *s.outputs)), default=0)
    return accesses * widest if isinstance(accesses, int) and accesses and widest else math.inf


def _bytes(layouts: Sequence[Layout]) -> Bytes:
    return sum(x.distinct_bytes for x in layouts)
