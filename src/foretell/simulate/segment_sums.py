"""Ops between two events, summed up: what a segment of them does to the clocks of host and device, whatever these show.

Whatever the device does next, it begins when it is done with what came before, and when the host has issued it. After a
segment its clock shows the later of two: its own work on end, or the host's lead at one of the ops with the work behind that
op. So a segment is a few sums and a maximum (max-plus algebra), found for all segments of a step at once, and a step costs
as much as it has events. A collective that the device waits for at once is such work, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.simulate.segments import Numbers, Segments
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


# How the device goes through a segment: how much later it ends than its own clock, were all ops issued before; than the
# host's, were the device idle (minus infinity where nothing is done); the same, were the first kernel the one that waited
# last; and how long it computes.
Pace = tuple[Seconds, Seconds, Seconds, Seconds]


class Sums(NamedTuple):
    """Of each segment."""

    segments: Segments
    issued: Floats  # what the host takes for the first n ops of the range
    took: Floats  # by each kernel at its place, alone
    exchanged: Floats  # in the first n collectives that are waited for at once
    host: Sequence[Seconds]  # to issue its ops
    communicating: Sequence[Seconds]  # in collectives that are waited for at once
    alone: Sequence[Pace]
    slowed: Sequence[Pace]  # beside other communication all along
    leads: tuple[Floats, Floats]  # of the host over work on end, at all that the device does: alone, and slowed
    worked: tuple[Floats, Floats]  # work on end before each place, and without gaps: slowed

    def places(self, first: int) -> tuple[int, int]:
        """What the device does in the segment that begins with an op."""
        number = bisect_left(self.segments.first, first)
        return self.segments.first_place.item(number), self.segments.last_place.item(number)

    def slowed_until(self, first: int, seconds: Seconds) -> tuple[int, Seconds, Seconds]:
        """In the first so many seconds of a segment, slowed: the place that the device is at by then, if it waits for
        nobody, how long it computed before that place, and at it."""
        (worked, computed), (begin, end) = self.worked, self.places(first)
        until = worked.item(begin) + seconds
        place = bisect_right(worked, until, begin, end + 1) - 1
        before = computed.item(place) - computed.item(begin)
        if place >= end:
            return end, before, 0.0
        length, left = computed.item(place + 1) - computed.item(place), worked.item(place + 1) - until
        return place, before, max(length - left, 0.0)

    def communicating_beyond(self, first: int, seconds: Seconds) -> Seconds | None:
        """In a segment that is slowed for so many seconds, how long collectives that are waited for at once take after them;
        None: one is under way just then."""
        worked, number = self.worked[0], bisect_left(self.segments.first, first)
        until = worked.item(self.segments.first_place.item(number)) + seconds
        found = 0.0
        for at in range(self.segments.first_collective.item(number), self.segments.last_collective.item(number)):
            place = self.segments.collective_places.item(at)
            takes = self.exchanged.item(at + 1) - self.exchanged.item(at)
            if worked.item(place) >= until:
                found += takes
            elif worked.item(place) + takes > until:
                return None
        return found

    def last_wait(self, first: int, slowed: bool, debt: Seconds) -> int:
        """The last place in a segment at which its device waited for the host, where it did so at all."""
        begin, end = self.places(first)
        lead = self.leads[slowed][begin:end].copy()
        lead[0] += debt
        return end - 1 - int(np.argmax(lead[::-1]))


def sums_of(segments: Segments, d: Durations) -> Sums:
    """Of a range of ops that is cut so."""
    begin, end = segments.range
    issued = _sums(d.host[begin:end])
    own = np.array([d.collectives[number] for number in segments.collectives], dtype=float)
    own -= segments.gaps * d.gap  # which passes meanwhile
    alone, lead, worked = _paces(segments, d, issued, own, 1.0)
    slowed, slow = alone, lead
    if d.slowdown > 1 and any(d.collectives):
        slowed, slow, worked = _paces(segments, d, issued, own, d.slowdown)
    host = _each(issued, segments.first_op, segments.last_op)
    exchanged = _sums(own + segments.gaps * d.gap)
    communicating = _each(exchanged, segments.first_collective, segments.last_collective)
    took = _kernels(segments, d, 1.0)[0]
    return Sums(segments, issued, took, exchanged, host, communicating, alone, slowed, (lead, slow), worked)


def _paces(
    segments: Segments, d: Durations, issued: Floats, own: Floats, slowdown: float
) -> tuple[list[Pace], Floats, tuple[Floats, Floats]]:
    """Each thing that the device does adds `lengths` to the clock of a device that waits for nobody, and `late` to the
    host's where it waits for that."""
    took, apart, computed, computing = _kernels(segments, d, slowdown)
    late, gaps = took.copy(), apart.copy()
    late[segments.collective_places] = own
    gaps[segments.collective_places] = np.maximum(-own, 0.0)
    worked = _sums(late + gaps)
    lead = np.full(len(worked), -np.inf)  # of the host over work on end
    lead[:-1] = issued[segments.op + 1] - worked[1:] + late
    since = worked[segments.last_place] - issued[segments.first_op]
    some = segments.first_place < segments.last_place
    behind = np.where(some, np.maximum.reduceat(lead, segments.first_place), -np.inf) + since
    behind_first = np.where(some, lead[segments.first_place], -np.inf) + since
    lengths = _each(worked, segments.first_place, segments.last_place)
    return list(zip(lengths, behind.tolist(), behind_first.tolist(), computing, strict=True)), lead, (worked, computed)


def _kernels(segments: Segments, d: Durations, slowdown: float) -> tuple[Floats, Floats, Floats, list[float]]:
    """What kernels take at their places, their gaps, what is computed before each place, and in each segment."""
    known = segments.kernels_took.get(slowdown > 1)
    if known is None or known[0] is not d.device or known[1:3] != (d.gap, slowdown):
        took, gaps = np.zeros(len(segments.op)), np.zeros(len(segments.op))
        took[segments.kernel_places] = d.device[segments.kernels] * slowdown
        gaps[segments.kernel_places] = d.gap
        computed = _sums(took)
        computing = _each(computed, segments.first_place, segments.last_place)
        known = segments.kernels_took[slowdown > 1] = (d.device, d.gap, slowdown, took, gaps, computed, computing)
    found: tuple[Floats, Floats, Floats, list[float]] = known[3:]
    return found


def _each(sums: Floats, begins: Numbers, ends: Numbers) -> list[float]:
    """Of running sums, what each segment adds."""
    found: list[float] = (sums[ends] - sums[begins]).tolist()
    return found


def _sums(values: Floats) -> Floats:
    """Of the first n values, for every n."""
    sums = np.empty(len(values) + 1)
    sums[0] = 0.0
    values.cumsum(out=sums[1:])
    return sums
