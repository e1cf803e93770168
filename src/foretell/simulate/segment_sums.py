"""Ops between two events, summed up: what a segment of them does to the clocks of host and device, whatever these show.

Whatever the device does next, it begins when it is done with what came before, and when the host has issued it. After a
segment its clock shows the later of two: its own work on end, or the host's lead at one of the ops with the work behind that
op. So a segment is a few sums and a maximum (max-plus algebra), found for all segments of a step at once, and a step costs
as much as it has events. A collective that the device waits for at once is such work, too.

A host that has issued a segment before the device begins with it is not late in it: leads are found when one was not.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.simulate.segments import Numbers, Places, Segments
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Lead = tuple[Seconds, Seconds]  # at any place of a segment, and at its first
_NONE: Final[Lead] = (-np.inf, -np.inf)
_MANY: Final = 8  # one in so many segments: leads of more are found for all at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Plain numbers, one per op or collective, predicted or measured."""

    device: Floats
    host: Floats
    waits: Bools  # the host goes on only when the device is done with the op
    collectives: Sequence[Seconds]
    gap: Seconds = 0.0  # between two kernels of a busy device
    slowdown: float = 1.0  # how many times longer compute takes while the network is busy

    @property
    def digest(self) -> bytes:
        """Of all that they say: equal ones have the same."""
        found = hashlib.blake2b(repr((self.gap, self.slowdown)).encode(), digest_size=16)
        for values in (self.device, self.host, self.waits, np.asarray(self.collectives, dtype=np.float64)):
            found.update(values.tobytes())
        return found.digest()


@dataclass(frozen=True, kw_only=True)
class Work:
    """At each place of a range, what device and host do."""

    places: Places
    slowdown: float
    issued: Floats  # what the host takes for the first n ops of the range
    took: Floats  # by each kernel, alone
    own: Floats  # by each collective that is waited for at once, beyond the gap that passes meanwhile
    exchanged: Floats  # in the first n of them, all their time
    worked: Floats  # on end before each place, gaps and these collectives included
    computed: Floats  # and by kernels alone

    @cached_property
    def worked_slowed(self) -> Floats:
        """Beside other communication all along."""
        slowed: Floats = self.worked + (self.slowdown - 1) * self.computed
        return slowed

    @cached_property
    def exchanges(self) -> list[tuple[Seconds, Seconds, Seconds]]:
        """Of the collectives that are waited for at once: when each ends, slowed, how long it takes, and all after it."""
        takes, sums = np.diff(self.exchanged), self.exchanged
        ends = self.worked_slowed[self.places.collective_places] + takes
        return list(zip(ends.tolist(), takes.tolist(), (sums[-1] - sums[1:]).tolist(), strict=True))

    def leads(self, begin: int, end: int, slowed: bool) -> Floats:
        """Of the host over work on end, at some places."""
        leads = self.took[begin:end] * (self.slowdown if slowed else 1.0)
        first, last = self.places.collective_places.searchsorted((begin, end))
        leads[self.places.collective_places[first:last] - begin] = self.own[first:last]
        leads += self.issued[self.places.issued_by[begin:end]]
        leads -= (self.worked_slowed if slowed else self.worked)[begin + 1 : end + 1]
        return leads

    def slowed_until(self, places: tuple[int, int], seconds: Seconds) -> tuple[int, Seconds, Seconds]:
        """In the first so many seconds of some places, slowed: the place that the device is at by then, if it waits for
        nobody, how long it computed before that place, and at it."""
        begin, end = places
        worked, computed, slowdown = self.worked_slowed, self.computed, self.slowdown
        until = worked.item(begin) + seconds
        place = bisect_right(worked, until, begin, end + 1) - 1
        before = (computed.item(place) - computed.item(begin)) * slowdown
        if place >= end:
            return end, before, 0.0
        length, left = self.took.item(place) * slowdown, worked.item(place + 1) - until
        return place, before, max(length - left, 0.0)

    def last_wait(self, places: tuple[int, int], slowed: bool, debt: Seconds) -> int:
        """The last of these places at which the device waited for the host, where it did so at all."""
        begin, end = places
        leads = self.leads(begin, end, slowed)
        leads[0] += debt
        return end - 1 - int(np.argmax(leads[::-1]))


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Of each segment."""

    segments: Segments
    work: Work
    host: Sequence[Seconds]  # to issue its ops
    communicating: Sequence[Seconds]  # in collectives that are waited for at once
    computing: Sequence[Seconds]
    lengths: Sequence[Seconds]  # on a device that never waits for the host
    slowed: Sequence[Seconds]  # the same beside other communication all along

    # As far as they were asked for: alone, and slowed.
    _leads: tuple[dict[int, Lead], dict[int, Lead]] = field(default_factory=lambda: ({}, {}), init=False)

    @cached_property
    def parts(self) -> Sums:
        """Of shorter segments."""
        return sums_over(self.segments.parts, self.work)

    def lead(self, number: int, slowed: bool, debt: Seconds) -> Seconds:
        """How much later than the host the device ends with a segment, were it idle before and its first kernel longer by a
        debt (minus infinity where nothing is done)."""
        known = self._leads[slowed]
        if number not in known:
            few = len(known) < len(self.segments.rows) // _MANY
            known.update(self._of_one(number, slowed) if few else self._of_all(slowed))
        most, first = known[number]
        return max(most, first + debt)

    def _of_one(self, number: int, slowed: bool) -> dict[int, Lead]:
        begin, end = self.segments.place_rows[number]
        if begin == end:
            return {number: _NONE}
        leads, work = self.work.leads(begin, end, slowed), self.work
        worked = work.worked_slowed if slowed else work.worked
        since = worked.item(end) - work.issued.item(self.segments.first_op.item(number))
        return {number: (leads.max().item() + since, leads.item(0) + since)}

    def _of_all(self, slowed: bool) -> dict[int, Lead]:
        segments, work = self.segments, self.work
        worked = work.worked_slowed if slowed else work.worked
        leads = np.append(work.leads(0, len(worked) - 1, slowed), -np.inf)
        since = worked[segments.last_place] - work.issued[segments.first_op]
        some = segments.first_place < segments.last_place
        most = np.where(some, np.maximum.reduceat(leads, segments.first_place), -np.inf) + since
        first = np.where(some, leads[segments.first_place], -np.inf) + since
        return dict(enumerate(zip(most.tolist(), first.tolist(), strict=True)))

    def way_out(
        self, number: int, clocks: tuple[Seconds, Seconds], busy: Sequence[tuple[Seconds, Seconds]], busy_until: Seconds
    ) -> tuple[Seconds, Seconds] | None:
        """Of a segment in which communication beside it ends, from where host and device are: by how much that delays the
        device, and how long collectives take that are waited for at once. None: it is not as simple as that."""
        (host, device), length, work = clocks, self.lengths[number], self.work
        if host + self.host[number] > device and host + self.lead(number, False, 0.0) > device + length:
            return None
        places, inside, left = self.segments.place_rows[number], self.communicating[number], busy[0][1] - device
        _, before, within = work.slowed_until(places, left)
        delay = (before + within) * (1 - 1 / work.slowdown)
        if len(busy) > 1 and device + length + delay > busy[1][0]:
            return None
        if not inside:
            return delay, 0.0
        return None if busy_until > busy[0][1] else (delay, self._communicating_beyond(number, left))

    def _communicating_beyond(self, number: int, seconds: Seconds) -> Seconds:
        """In a segment that is slowed for so many seconds, how long collectives that are waited for at once take after them."""
        work, (first, last) = self.work, self.segments.collective_rows[number]
        until = work.worked_slowed.item(self.segments.place_rows[number][0]) + seconds
        of_segment = work.exchanges[first:last]
        for ends, takes, after in of_segment:
            if ends > until:
                return min(ends - until, takes) + after - of_segment[-1][2]
        return 0.0


def sums_of(segments: Segments, d: Durations) -> Sums:
    """Of a range of ops that is cut so."""
    places = segments.places
    begin, end = places.range
    own = np.array([d.collectives[number] for number in places.collectives], dtype=float)
    own -= places.gaps * d.gap  # which passes meanwhile
    took, steps, computed = _kernels(places, d)
    if len(own):
        steps = steps.copy()
        steps[places.collective_places] = np.maximum(own, 0.0)
    work = Work(
        places=places,
        slowdown=d.slowdown,
        issued=_sums(d.host[begin:end]),
        took=took,
        own=own,
        exchanged=_sums(own + places.gaps * d.gap),
        worked=_sums(steps),
        computed=computed,
    )
    return sums_over(segments, work)


def sums_over(segments: Segments, work: Work) -> Sums:
    first, last = segments.first_place, segments.last_place
    computing, lengths = (sums[last] - sums[first] for sums in (work.computed, work.worked))
    return Sums(
        segments=segments,
        work=work,
        host=_each(work.issued, segments.first_op, segments.last_op),
        communicating=_each(work.exchanged, segments.first_collective, segments.last_collective),
        computing=computing.tolist(),
        lengths=lengths.tolist(),
        slowed=(lengths + (work.slowdown - 1) * computing).tolist(),
    )


def _kernels(places: Places, d: Durations) -> tuple[Floats, Floats, Floats]:
    """What kernels take at their places, the same with their gaps, and what is computed before each place."""
    known = places.found.get("kernels")
    if known is None or known[0] is not d.device or known[1] != d.gap:
        took = d.device[places.op + places.range[0]]
        steps = took + d.gap
        took[places.others] = steps[places.others] = 0.0
        known = places.found["kernels"] = d.device, d.gap, (took, steps, _sums(took))
    found: tuple[Floats, Floats, Floats] = known[2]
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
