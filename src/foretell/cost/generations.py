"""What devices attain of their published rates, by generation: clocks under the board's power, arithmetic, bandwidth.

A board's power limits what its chip's clock allows. An operation costs a generation a number of picojoules: on vector units
what boards have that hold their boost clock (watts ÷ rate of TITAN RTX, V100, RTX 3090, RTX 4090), on matrix units what was
measured of those that do not (L40S, H100). Where operations at the peak need more watts than the board has, the clock falls
with their ratio to the power 0.8: so V100 slowed down when its limit was lowered. Boards for games run above the clock that is
published for them. Memory that keeps check bits among the data (`inline_ecc`) loses as
much of its rate as it must read twice.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from foretell.cost.roofline import peak_name, work_of
from foretell.cost.tiles import in_waves, sizes
from foretell.graph import Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.units import Seconds

Kind = Literal[
    "matmul fp32", "matmul", "attention", "convolution fp32", "winograd", "grouped fp32", "convolution", "gradients",
    "grouped", "other",
]  # fmt: skip


class Picojoules(NamedTuple):
    """Of an operation, the board's all."""

    vector: float  # fp32
    matrix: float  # 16 bits


# By compute capability; one that is not here is as the last before it.
_ENERGY: Final[Mapping[tuple[int, int], Picojoules]] = {
    (6, 0): Picojoules(26.0, 26.0), (6, 1): Picojoules(22.0, 22.0), (7, 0): Picojoules(17.0, 2.0),
    (7, 5): Picojoules(17.5, 2.3), (8, 0): Picojoules(15.0, 1.25), (8, 6): Picojoules(9.0, 2.0),
    (8, 9): Picojoules(5.3, 1.65), (9, 0): Picojoules(7.0, 0.87), (10, 0): Picojoules(7.0, 0.6),
    (12, 0): Picojoules(5.0, 1.4),
}  # fmt: skip
_OF_16_BITS: Final = {
    "tf32": 2.0,
    "bf16": 1.0,
    "fp16": 1.0,
    "fp8": 0.5,
    "int8": 0.5,
}  # energy of an operation, in times
_FALLS: Final = 0.8  # the clock, with the power that is there over the power it needs
_ABOVE: Final = 1.1  # the clock of boards for games
_BANDWIDTH: Final = 0.94
_CHECKED_BANDWIDTH: Final = 0.77
_FIRST_STACKS: Final = 0.75  # as STREAM measures them: P100's, the first of their kind, and AMD's
# Bytes that a unit reads and writes: an RTX 4090 copies 32 MB in its cache of 72 at 2318 GB/s in the micro-benchmarks of
# github.com/smallscientist1/cuda_microbenchmark.
_L2_PER_CLOCK: Final = 6.5
# Parts of the cache: all of what takes less is found again, nothing of what takes more. Products on A100 and H100 get slower per
# byte where their activations reach 0.8 of it.
_FITS, _FULL = 0.8, 1.0
_SINCE: Final = 5  # products of other weights since a weight was read
_FASTEST: Final[Seconds] = 1e-7
_MATRIX: Final = 2
_FIRST_MATRIX_UNITS, _HOPPER = (7, 0), (9, 0)

# Of a sustained peak, what long kernels attain, in four ages. In fp32: before Volta; on units of 64 lanes; on those of 128 (8.6
# and later); on Hopper's and later ones, for which libraries have no fp32 kernels of their own. On matrix units: none; before
# Ampere; before Hopper; since. The first ones attain three quarters in products: V100 95 of 125 TFLOP/s in the micro-benchmarks of
# github.com/qhduan/transformers-benchmarks. A Winograd convolution does less arithmetic than is counted.
_ATTAINED: Final[Mapping[Kind, tuple[float, float, float, float]]] = {
    "matmul fp32": (0.82, 0.95, 0.85, 0.75), "matmul": (0.95, 0.75, 0.95, 0.95), "attention": (0.8, 0.8, 0.8, 0.8),
    "convolution fp32": (1.0, 1.1, 0.6, 0.33), "winograd": (1.15, 1.3, 0.8, 0.33), "grouped fp32": (0.8, 0.8, 0.5, 0.29),
    "convolution": (0.8, 0.85, 0.85, 0.85), "gradients": (0.8, 0.5, 0.75, 0.85), "grouped": (0.35, 0.35, 0.35, 0.35),
    "other": (1.0, 1.0, 1.0, 1.0),
}  # fmt: skip
_AGES: Final = ((7, 0), (8, 6), (9, 0))  # the first of the next age, in fp32
_AGES_OF_MATRIX_UNITS: Final = ((7, 0), (8, 0), (9, 0))
_WINOGRAD_CHANNELS: Final = 16


def clock_hz(device: Device) -> float:
    """The clock of light work, which no power limits."""
    return device.clock_hz * (_ABOVE if device.consumer else 1.0)


def clock(device: Device, precision: str) -> float:
    """The clock that matrix work of a precision holds, over the published one."""
    most = clock_hz(device) / device.clock_hz
    if device.compute_capability is None or device.compute_capability < min(_ENERGY) or not device.power_watts:
        return most
    energy = _ENERGY[sorted(_ENERGY)[bisect_right(sorted(_ENERGY), device.compute_capability) - 1]]
    on_matrix = precision in _OF_16_BITS and precision in device.peaks
    picojoules = energy.matrix * _OF_16_BITS[precision] if on_matrix else energy.vector
    needed = most * device.peak(precision) * picojoules * 1e-12
    return most * math.pow(min(1.0, device.power_watts / needed), _FALLS)


def bandwidth(device: Device) -> float:
    """Bytes per second that long kernels move."""
    if device.compute_capability == (6, 0) or device.vendor == "AMD":
        return device.bandwidth * _FIRST_STACKS
    return device.bandwidth * (_CHECKED_BANDWIDTH if device.inline_ecc else _BANDWIDTH)


def kind_of(signature: Signature, *, tf32: bool) -> Kind:
    """What of its arithmetic an op attains goes by this."""
    family, precision = operator_of(signature.name).family, peak_name(signature, tf32=tf32)
    if family == "matmul":
        return "matmul fp32" if precision == "fp32" else "matmul"
    if family in ("attention", "attention_backward"):
        return "attention"
    if family not in ("convolution", "convolution_backward"):
        return "other"
    weight = signature.inputs[2 if family == "convolution_backward" else 1]
    if signature.argument("groups", 1) != 1:
        return "grouped fp32" if precision == "fp32" else "grouped"
    if precision != "fp32":
        return "gradients" if family == "convolution_backward" else "convolution"
    strides = signature.argument("stride")
    small = weight.shape[2:] == (3, 3) and min(weight.shape[:2]) >= _WINOGRAD_CHANNELS
    return "winograd" if small and strides in ((1, 1), 1, (1,)) else "convolution fp32"


def bound(signature: Signature, device: Device, *, tf32: bool) -> Seconds:
    """What an op takes at the rates its device attains; arithmetic and traffic hide each other in part."""
    kind = kind_of(signature, tf32=tf32)
    arithmetic = _arithmetic(signature, kind, device, tf32=tf32)
    return max(math.hypot(arithmetic, _memory(signature, kind, device)), _FASTEST)


def _arithmetic(signature: Signature, kind: Kind, device: Device, *, tf32: bool) -> Seconds:
    work, precision = work_of(signature), peak_name(signature, tf32=tf32)
    if not work.flops:
        return 0.0
    rate = device.peak(precision) * _attained(kind, precision, device)
    seconds = work.flops / (rate * clock(device, precision))
    if kind != "matmul" or not _in_waves(device):
        return seconds
    light = rate * clock_hz(device) / device.clock_hz
    return max(seconds, in_waves(*sizes(signature, work.flops), device.compute_units, light))


def _in_waves(device: Device) -> bool:
    capability = device.compute_capability
    return capability is not None and _FIRST_MATRIX_UNITS <= capability < _HOPPER


def _memory(signature: Signature, kind: Kind, device: Device) -> Seconds:
    """Everything passes the cache, at its rate; what it no longer has comes from memory meanwhile."""
    at, traffic, weight = bandwidth(device), work_of(signature).traffic, _weight(signature, kind)
    found = (traffic - weight) * _found(traffic, device) + weight * _found(traffic + _SINCE * weight, device)
    cache = max(at, _L2_PER_CLOCK * device.compute_units * clock_hz(device))
    return max((traffic - found) / at, traffic / cache)


def _found(used: float, device: Device) -> float:
    """The part of what was used that the cache still has."""
    return min(1.0, max(0.0, (_FULL - used / device.l2_bytes) / (_FULL - _FITS)))


def _weight(signature: Signature, kind: Kind) -> float:
    """Bytes of a product's second factor, which no op just before it has touched."""
    one_of_many = kind == "matmul" and len(signature.inputs[-1].shape) == _MATRIX
    return signature.inputs[-1].distinct_bytes if one_of_many else 0.0


def _attained(kind: Kind, precision: str, device: Device) -> float:
    """A device without a compute capability is as one of the second age."""
    ages = _AGES if precision == "fp32" else _AGES_OF_MATRIX_UNITS
    return _ATTAINED[kind][bisect_right(ages, device.compute_capability or ages[0])]
