"""Ops between two events, summed up: what a stretch of them does to the clocks of host and device, whatever these show.

Whatever the device does next, it begins when it is done with what came before, and when the host has issued it. After a
stretch its clock shows the later of two: its own work on end, or the host's lead at one of the ops with the work behind that
op. So a stretch is a few sums and a maximum (max-plus algebra), found for all stretches of a step at once, and a step costs
as much as it has events. A collective that the device waits for at once is such work, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.simulate.cuts import Cut, Numbers
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Plain numbers, one per op or collective, predicted or measured."""

    device: Floats
    host: Floats
    waits: Bools  # the host goes on only when the device is done with the op
    collectives: Sequence[Seconds]
    gap: Seconds = 0.0  # between two kernels of a busy device
    slowdown: float = 1.0  # how many times longer compute takes while the network is busy


# How the device goes through a stretch: how much later it ends than its own clock, were all ops issued before; than the
# host's, were the device idle (minus infinity where nothing is done); the same, were the first kernel the one that waited
# last; and how long it computes.
Pace = tuple[Seconds, Seconds, Seconds, Seconds]


class Sums(NamedTuple):
    """Of each stretch."""

    cut: Cut
    host: Sequence[Seconds]  # to issue its ops
    communicating: Sequence[Seconds]  # in collectives that are waited for at once
    alone: Sequence[Pace]
    slowed: Sequence[Pace]  # beside other communication all along
    leads: tuple[Floats, Floats]  # of the host over work on end, at all that the device does: alone, and slowed
    worked: tuple[Floats, Floats]  # work on end before each place, and without gaps: slowed

    def places(self, first: int) -> tuple[int, int]:
        """What the device does in the stretch that begins with an op."""
        number = bisect_left(self.cut.first, first)
        return self.cut.first_place.item(number), self.cut.last_place.item(number)

    def beside(self, first: int, seconds: Seconds) -> tuple[int, Seconds, Seconds]:
        """In the first so many seconds of a stretch, slowed: the place that the device is at by then, if it waits for
        nobody, how long it computed before that place, and at it."""
        (worked, computed), (begin, end) = self.worked, self.places(first)
        until = worked.item(begin) + seconds
        place = bisect_right(worked, until, begin, end + 1) - 1
        before = computed.item(place) - computed.item(begin)
        if place >= end:
            return end, before, 0.0
        length, left = computed.item(place + 1) - computed.item(place), worked.item(place + 1) - until
        return place, before, max(length - left, 0.0)

    def last_wait(self, first: int, slowed: bool, debt: Seconds) -> int:
        """The last place in a stretch at which its device waited for the host, where it did so at all."""
        begin, end = self.places(first)
        lead = self.leads[slowed][begin:end].copy()
        lead[0] += debt
        return end - 1 - int(np.argmax(lead[::-1]))


def sums_of(cut: Cut, d: Durations) -> Sums:
    """Of a range of ops that is cut so."""
    begin, end = cut.range
    issued = _sums(d.host[begin:end])
    own = np.array([d.collectives[number] for number in cut.collectives], dtype=float)
    own -= cut.gaps * d.gap  # which passes meanwhile
    alone, lead, worked = _paces(cut, d, issued, own, 1.0)
    slowed, slow = alone, lead
    if d.slowdown > 1:
        slowed, slow, worked = _paces(cut, d, issued, own, d.slowdown)
    host = _each(issued, cut.first_op, cut.last_op)
    communicating = _each(_sums(own + cut.gaps * d.gap), cut.first_collective, cut.last_collective)
    return Sums(cut, host, communicating, alone, slowed, (lead, slow), worked)


def _paces(
    cut: Cut, d: Durations, issued: Floats, own: Floats, slowdown: float
) -> tuple[list[Pace], Floats, tuple[Floats, Floats]]:
    """Each thing that the device does adds `lengths` to the clock of a device that waits for nobody, and `late` to the
    host's where it waits for that."""
    late, gaps = np.zeros(len(cut.op)), np.zeros(len(cut.op))
    late[cut.kernel_places] = d.device[cut.kernels] * slowdown
    gaps[cut.kernel_places] = d.gap
    computed = _sums(late)
    computing = _each(computed, cut.first_place, cut.last_place)
    late[cut.collective_places] = own
    gaps[cut.collective_places] = np.maximum(-own, 0.0)
    worked = _sums(late + gaps)
    lead = np.append(issued[cut.op + 1] - worked[1:] + late, -np.inf)  # of the host over work on end
    since = worked[cut.last_place] - issued[cut.first_op]
    some = cut.first_place < cut.last_place
    behind = np.where(some, np.maximum.reduceat(lead, cut.first_place), -np.inf) + since
    behind_first = np.where(some, lead[cut.first_place], -np.inf) + since
    lengths = _each(worked, cut.first_place, cut.last_place)
    return list(zip(lengths, behind.tolist(), behind_first.tolist(), computing, strict=True)), lead, (worked, computed)


def _each(sums: Floats, begins: Numbers, ends: Numbers) -> list[float]:
    """Of running sums, what each stretch adds."""
    found: list[float] = (sums[ends] - sums[begins]).tolist()
    return found


def _sums(values: Floats) -> Floats:
    """Of the first n values, for every n."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums
