"""The least that a step can take on a device at its published rates: no kernel computes or moves faster."""

from __future__ import annotations

from typing import Final

from foretell.cost.generations import kind_of, unit_of
from foretell.cost.roofline import on_tf32, peak_name, work_of
from foretell.graph import Graph, Signature
from foretell.graph.operators import OPAQUE
from foretell.hardware import Device
from foretell.units import Seconds

_WINOGRAD: Final = 36 / 16  # products of a 3×3 convolution over those of F(2×2, 3×3), which gives the same numbers


def least_seconds(graph: Graph, device: Device) -> Seconds:
    """Of all ops, one after another: arithmetic at the peak, or what exceeds the cache at the memory's bandwidth."""
    counted = zip(graph.calls.distinct, graph.calls.times, strict=True)
    return sum(_least(call.signature, graph, device) * times for call, times in counted if call.launches)


def _least(signature: Signature, graph: Graph, device: Device) -> Seconds:
    if signature.name == OPAQUE:  # priced by what its user declares
        return 0.0
    work, tf32 = work_of(signature), on_tf32(signature.name, graph.precision, device)
    arithmetic = work.flops / device.peak(peak_name(signature, tf32=tf32))
    if work.flops and kind_of(signature, unit_of(signature, device, tf32=tf32)) == "winograd":
        arithmetic /= _WINOGRAD
    return max(arithmetic, (work.traffic - device.l2_bytes) / device.bandwidth, 0.0)
