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
from functools import lru_cache
from typing import Final

from foretell.cost.attained import Attained, Kind
from foretell.cost.passes import passes
from foretell.cost.roofline import peak_name, work_of
from foretell.cost.tiles import in_waves, sizes
from foretell.graph import Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.precision import HALVES, Unit
from foretell.units import Seconds

_FULL: Final = 1.0  # part of the cache: nothing of what takes more is found again
_SINCE: Final = 5  # products of other weights since a weight was read
_FASTEST: Final[Seconds] = 1e-7
_MATRIX: Final = 2
_FIRST_MATRIX_UNITS, _HOPPER = (7, 0), (9, 0)

# What long kernels attain of a sustained peak, in four ages. In fp32: before Volta; on units of 64 lanes; on those of 128 (8.6
# and later); on Hopper's and later ones, for which libraries have no fp32 kernels of their own. On matrix units: none; before
# Ampere; before Hopper; since. Convolutions in fp32 were measured on boards before 8.6 and on Hopper: before Volta, on Volta
# and Turing, on A100; from 8.6 on, where units run kernels that were written for half as many lanes, and on other makers'
# boards they attain what they do on Hopper.
_AGES: Final = ((7, 0), (8, 6), (9, 0))  # the first of the next age, in fp32
_AGES_OF_MATRIX_UNITS: Final = ((7, 0), (8, 0), (9, 0))
_WIDE: Final = (8, 6)  # the first units of 128 lanes
_FOR_GRAPHICS: Final = (12, 0)  # Blackwell's, whose units are as Ada's
_AGES_OF_CONVOLUTIONS: Final = ((7, 0), (8, 0), _WIDE)
_NARROW: Final = 1  # the age of units of 64 lanes
_NO_MATRIX_UNITS: Final = 0  # the age before them
_CONVOLUTIONS: Final[tuple[Kind, ...]] = ("convolution fp32", "winograd", "grouped fp32")
_WINOGRAD_CHANNELS: Final = 16


def clock_hz(device: Device, attained: Attained) -> float:
    """The clock of light work, which no power limits."""
    return device.clock_hz * (attained.consumer_clock if device.consumer else 1.0)


def clock(device: Device, precision: str, attained: Attained) -> float:
    """The clock that matrix work of a precision runs at, over the published one."""
    most = clock_hz(device, attained) / device.clock_hz
    known = sorted(attained.picojoules)
    if device.compute_capability is None or device.compute_capability < known[0] or not device.power_watts:
        return most
    energy = attained.picojoules[known[bisect_right(known, device.compute_capability) - 1]]
    on_matrix = precision in attained.energy and precision in device.peaks
    picojoules = energy.matrix * attained.energy[precision] if on_matrix else energy.vector
    needed = most * device.peak(precision) * picojoules * 1e-12
    return most * math.pow(min(1.0, device.power_watts / needed), attained.clock_falls)


def clock_is_known(device: Device, attained: Attained) -> bool:
    """Whether it follows from the board's watts what its clock is under matrix work."""
    return device.compute_capability is not None and device.compute_capability >= min(attained.picojoules)


def bandwidth(device: Device, attained: Attained) -> float:
    """Bytes per second that long kernels move."""
    if device.compute_capability == (6, 0) or device.vendor == "AMD":
        return device.bandwidth * attained.bandwidth_first_stacks
    return device.bandwidth * (attained.bandwidth_checked if device.inline_ecc else attained.bandwidth)


def unit_of(signature: Signature, device: Device, *, tf32: bool) -> Unit:
    """The units of a device that run an op's products."""
    return device.unit(peak_name(signature, tf32=tf32))


@lru_cache(maxsize=1 << 14)  # asked many times of every op
def kind_of(signature: Signature, precision: Unit) -> Kind:
    """What of its arithmetic an op attains on units of a precision goes by this."""
    family = operator_of(signature.name).family
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


def bound(signature: Signature, device: Device, attained: Attained, *, tf32: bool) -> Seconds:
    """What an op takes at the rates its device attains; arithmetic and traffic hide each other in part."""
    return _at_share(signature, device, attained, share_of(signature, device, attained, tf32=tf32), tf32=tf32)


def share_of(signature: Signature, device: Device, attained: Attained, *, tf32: bool) -> float:
    """The part of a sustained peak that ops of this kind attain there.

    Numbers of 16 bits that fp32 units multiply attain no more than they did on Pascal, which has no other units.
    """
    wanted, unit = peak_name(signature, tf32=tf32), unit_of(signature, device, tf32=tf32)
    kind = kind_of(signature, unit)
    share = attained.shares[kind][_age(kind, unit, device)]
    converted = wanted in HALVES and unit == "fp32"
    return min(share, attained.shares[kind_of(signature, wanted)][_NO_MATRIX_UNITS]) if converted else share


def on_half_the_lanes(signature: Signature, device: Device, attained: Attained, *, tf32: bool) -> Seconds:
    """What fp32 convolutions take at most where 64 of a unit's 128 lanes do what all of an earlier unit's did.

    Infinite for other ops and boards: on Hopper they were measured to take longer.
    """
    kind, capability = kind_of(signature, unit_of(signature, device, tf32=tf32)), device.compute_capability
    if kind not in _CONVOLUTIONS or capability is None or capability < _WIDE or _HOPPER <= capability < _FOR_GRAPHICS:
        return math.inf
    return _at_share(signature, device, attained, attained.shares[kind][_NARROW] / 2, tf32=tf32)


def at_full_rate(signature: Signature, device: Device, attained: Attained, *, tf32: bool) -> Seconds:
    """What a product's arithmetic takes at all of its units' rate and the clock of light work; 0 of other ops."""
    if operator_of(signature.name).family != "matmul":
        return 0.0
    light = clock_hz(device, attained) / device.clock_hz
    return work_of(signature).flops / (device.peak(peak_name(signature, tf32=tf32)) * light)


def _at_share(signature: Signature, device: Device, attained: Attained, share: float, *, tf32: bool) -> Seconds:
    unit = unit_of(signature, device, tf32=tf32)
    kind = kind_of(signature, unit)
    arithmetic = 0.0
    if flops := work_of(signature).flops:
        rate = share * device.peak(peak_name(signature, tf32=tf32))  # less than the unit's, where it emulates a type
        arithmetic = flops / (rate * clock(device, unit, attained))
        if kind == "matmul" and _in_waves(device):
            light = rate * clock_hz(device, attained) / device.clock_hz
            tiled = in_waves(*sizes(signature, flops), device.compute_units, light, attained.tiles)
            arithmetic = max(arithmetic, tiled)
    return max(math.hypot(arithmetic, _memory(signature, kind, device, attained)), _FASTEST)


def _in_waves(device: Device) -> bool:
    capability = device.compute_capability
    return capability is not None and _FIRST_MATRIX_UNITS <= capability < _HOPPER


def _memory(signature: Signature, kind: Kind, device: Device, attained: Attained) -> Seconds:
    """Everything passes the cache, at its rate; what it no longer has comes from memory meanwhile."""
    at, traffic, weight = bandwidth(device, attained), work_of(signature).traffic, _weight(signature, kind)
    again, since = (_in_cache(used, device, attained) for used in (traffic, traffic + _SINCE * weight))
    moved = traffic * passes(signature)
    cached = (moved - weight) * again + weight * since
    cache = max(at, attained.l2_bytes_per_clock * device.compute_units * clock_hz(device, attained))
    return max((moved - cached) / at, moved / cache)


def _in_cache(used: float, device: Device, attained: Attained) -> float:
    """The part of what was used that the cache still has."""
    return min(1.0, max(0.0, (_FULL - used / device.l2_bytes) / (_FULL - attained.cache_fits)))


def _weight(signature: Signature, kind: Kind) -> float:
    """Bytes of a product's second factor, which no op just before it has touched."""
    one_of_many = kind == "matmul" and len(signature.inputs[-1].shape) == _MATRIX
    return signature.inputs[-1].distinct_bytes if one_of_many else 0.0


def _age(kind: Kind, unit: Unit, device: Device) -> int:
    """A device without a compute capability is as one of the second age, but for what was measured on Hopper alone."""
    ages = _AGES if unit == "fp32" else _AGES_OF_MATRIX_UNITS
    if kind in _CONVOLUTIONS:
        ages = _AGES_OF_CONVOLUTIONS
        return bisect_right(ages, device.compute_capability or ages[-1])
    return bisect_right(ages, device.compute_capability or ages[0])
