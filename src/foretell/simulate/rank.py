"""One rank's streams: the host issues ops one after another, the device runs them in order, lanes of the network run
beside. Clocks leap over segments of ops; what is recorded remembers what it waited for, which makes the critical path."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Set
from typing import Literal, NamedTuple

from foretell.program import Role
from foretell.simulate.segment_sums import Durations, Sums, sums_of
from foretell.simulate.segments import NO_MARKS, Segments, segments_of
from foretell.simulate.timeline import DEVICE, HOST, LATE, LEAP, NETWORK, OUT, Record
from foretell.simulate.undrawn import ROUNDING, in_turn, run_undrawn
from foretell.units import Seconds

Recording = Literal["nothing", "segments", "ops"]
Event = tuple[Seconds, int]  # when, and the record whose end it is (-1: not recorded)


class Clocks(NamedTuple):
    host: Seconds
    device: Seconds
    network: dict[str, Seconds]
    computing: Seconds
    communicating: Seconds


class Moment(NamedTuple):
    """Before a segment of a step's first run, while nothing but the device is at work."""

    segment: int
    clocks: Clocks
    waits: int  # for the host, before


class Rank:
    """The clocks of a rank, moved on by running ranges of its ops."""

    def __init__(self, role: Role, durations: Durations) -> None:
        self.role, self.durations = role, durations
        self.host: Event = (0.0, -1)
        self.device: Event = (0.0, -1)
        self.network: dict[str, Event] = {}
        self.records: list[Record] = []
        self.computing: Seconds = 0.0  # so far: kernels running
        self.communicating: Seconds = 0.0  # at least one lane busy
        self.busy: deque[tuple[Seconds, Seconds]] = deque()  # when lanes are busy, from the device's clock on
        self.busy_until: Seconds = 0.0
        self.debt: Seconds = 0.0  # what communication cost compute that was already laid out
        self.finished: dict[int, Event] = {}  # collective → its end
        self.ready: dict[int, Event] = {}
        self.waits = 0  # so far: of the device or the network for the host, each counted once and more
        self._met: Moment | None = None
        self._marks = role.marks if any(durations.collectives) else NO_MARKS  # those that take no time change nothing
        self._idle: Set[int] = frozenset()  # ops that take the device no time, and wait for a collective all the same
        self._ranges: dict[tuple[int, int], Sums] = {}

    @property
    def end(self) -> Seconds:
        return max(self.host[0], self.device[0], *(event[0] for event in self.network.values()), 0.0)

    @property
    def clocks(self) -> Clocks:
        lanes = {lane: event[0] for lane, event in self.network.items()}
        return Clocks(self.host[0], self.device[0], lanes, self.computing, self.communicating)

    @property
    def ranges(self) -> list[Sums]:
        """Those that were run."""
        return list(self._ranges.values())

    def range_at(self, op: int) -> Sums:
        return next(sums for (first, last), sums in self._ranges.items() if first <= op < last)

    @property
    def is_undisturbed(self) -> bool:
        """Nothing but the device is at work."""
        return not self.debt and max(self.busy_until, *(e[0] for e in self.network.values()), 0.0) <= self.device[0]

    @property
    def met(self) -> Moment | None:
        """The first moment after which all has gone as the device went, and nothing waited for the host."""
        ahead = self.host[0] <= max(self.device[0], *(event[0] for event in self.network.values()), 0.0)
        return self._met if ahead and self._met is not None and self._met.waits == self.waits else None

    def meet(self, segment: int) -> bool:
        """Before a segment: is this such a moment, or was there one, as far as is known?"""
        if self._met is None or self._met.waits != self.waits:
            self._met = Moment(segment, self.clocks, self.waits) if self.is_undisturbed else None
        return self._met is not None

    def forget_results(self) -> None:
        """What one step waited for is not what the next does."""
        self.finished.clear()

    def wait_for_the_last(self) -> None:
        for number in self._marks.awaited.get(len(self.role.graph.ops), ()):
            self.device = max(self.device, self.finished.get(number, self.device))

    def repeat(self, since: Clocks, times: int) -> None:
        """Let all that happened since happen `times` more, unrecorded."""
        if not times:
            return
        now = self.clocks
        ahead = (now.device - since.device) * times
        self.host = (now.host + (now.host - since.host) * times, -1)
        self.device = (now.device + ahead, -1)
        for lane, at in now.network.items():
            self.network[lane] = (at + (at - since.network.get(lane, at)) * times, -1)
        self.computing += (now.computing - since.computing) * times
        self.communicating += (now.communicating - since.communicating) * times
        self.busy = deque((begin + ahead, end + ahead) for begin, end in self.busy)
        self.busy_until += ahead

    def run(
        self,
        first: int,
        last: int,
        *,
        reduces: bool,
        record: Recording = "nothing",
        since: int = 0,
        until: int | None = None,
        watch: bool = False,
    ) -> None:
        """Run the ops from `first` up to `last`, or of their segments some; `reduces`: this is the last micro-step, which
        reduces gradients; `watch` for a moment that each step comes to."""
        found = self._sums(first, last)
        some = range(since, len(found.segments.rows) if until is None else until)
        watch = watch and not self._marks.before  # what is issued early may begin before the device's clock
        if not since:
            for number in self._marks.made_ready.get(first - 1, ()):  # what came before the range has happened
                self.ready[number] = self.device
        self._idle = found.segments.idle
        if found.segments.summed and record == "nothing":
            run_undrawn(self, found, some, reduces, watch)
        else:
            self._run_segments(found, some, record, reduces, watch)
        rows = found.segments.rows
        if some and some.stop == len(rows) and rows[-1].ends:
            self.end_op(last - 1, record != "nothing", reduces)

    def _run_segments(self, found: Sums, some: range, record: Recording, reduces: bool, watch: bool = False) -> None:
        rows, draw = found.segments.rows, record != "nothing"
        leaps, waits_before = found.segments.summed and record != "ops", self.waits
        for number in some:
            if watch and self.waits == waits_before:
                self.meet(number)
            waits_before = self.waits
            begin, end, begins, _, _ = rows[number]
            if number and rows[number - 1].ends:
                self.end_op(begin - 1, draw, reduces)
            if begins:
                self._begin_op(begin, draw, reduces)
            if not (leaps and self._leap(found, number)):
                parts = found.segments.parts_of(number) if leaps else ()
                if len(parts) > 1:
                    self._run_segments(found.parts, parts, record, reduces)
                else:
                    self._run_slowly(begin, end, found, draw)

    def _sums(self, first: int, last: int) -> Sums:
        if (first, last) not in self._ranges:
            self._ranges[first, last] = sums_of(self._segments(first, last), self.durations)
        return self._ranges[first, last]

    def _segments(self, first: int, last: int) -> Segments:
        d, role, silent, short = self.durations, self.role, self._marks is NO_MARKS, self.durations.slowdown > 1
        known = role.found.get(("last segments", first, last, silent, short))
        if known is None or known[0] is not d.device or known[1] is not d.waits:
            busy = d.device > 0
            key = ("segments", first, last, silent, short, busy.tobytes(), d.waits.tobytes())
            if key not in role.found:
                role.found[key] = segments_of(role, first, last, busy=busy, waits=d.waits, silent=silent, short=short)
            known = role.found["last segments", first, last, silent, short] = d.device, d.waits, role.found[key]
        segments: Segments = known[2]
        return segments

    def _leap(self, found: Sums, number: int) -> bool:
        """Move the clocks over a segment at once, and record it; not where other communication is beside a part of it."""
        (host, host_record), (device, device_record), busy = self.host, self.device, self.busy
        first, last, _, _, waits = found.segments.rows[number]
        issuing, inside = found.host[number], found.communicating[number]
        soon = device + self.durations.gap + ROUNDING  # no kernel begins before
        while busy and busy[0][1] <= soon:
            busy.popleft()
        overlaps = bool(busy) and busy[0][0] <= device
        slower = self.durations.slowdown if overlaps else 1.0
        length, computes = found.slowed[number] if overlaps else found.lengths[number], found.computing[number] * slower
        more = self.debt * slower if computes else 0.0
        length, computes = length + more, computes + more
        by_host = host + found.lead(number, overlaps, more) if host + issuing > device else -math.inf
        until = max(device + length, by_host)
        late = by_host > device + length
        if overlaps:
            if inside and in_turn(self.network, found.segments.places.lanes, soon):
                return False
            if until > busy[0][1]:
                return not (late or self.debt) and self._leap_out(found, number)
        elif (busy and until > busy[0][0]) or (inside and self.busy_until > soon):
            return False
        else:
            self.communicating += inside
        begin, end = found.segments.place_rows[number]
        if begin < end:
            stream, after = (LATE, host_record) if late else (LEAP, device_record)
            self.records.append(Record(stream, first, last, device, slower, more, after))
            device_record = len(self.records) - 1
        self.records.append(Record(HOST, first, last, host, 1.0, 0.0, host_record))
        host_record = len(self.records) - 1
        if computes:
            self.debt = 0.0
            self.computing += computes
        self.waits += late
        host += issuing
        self.device = until, device_record
        self.host = self.device if waits and self.device > (host, host_record) else (host, host_record)
        return True

    def _leap_out(self, found: Sums, number: int) -> bool:
        """Over a segment in which communication beside it ends, whose device does not wait for the host."""
        (host, host_record), (device, device_record), busy = self.host, self.device, self.busy
        out = found.way_out(number, (host, device), busy, self.busy_until)
        if out is None:
            return False
        delay, beyond = out
        first, last, _, _, waits = found.segments.rows[number]
        until = device + found.lengths[number] + delay
        self.records.append(
            Record(OUT, first, last, device, self.durations.slowdown, busy[0][1] - device, device_record)
        )
        self.records.append(Record(HOST, first, last, host, 1.0, 0.0, host_record))
        host_record = len(self.records) - 1
        busy.popleft()
        host += found.host[number]
        self.computing += found.computing[number] + delay
        self.communicating += beyond
        self.device = until, host_record - 1
        self.host = self.device if waits and until > host else (host, host_record)
        return True

    def _run_slowly(self, first: int, last: int, found: Sums, draw: bool) -> None:
        """Op by op, with the collectives that are waited for at once."""
        begin, places = first, found.segments.places
        special = places.special
        begun = self.host[0] - found.work.issued.item(first - places.range[0])
        for at in special[bisect_left(special, first) : bisect_left(special, last)]:
            begun = self._run_ops(begin, at + 1, found, begun, draw)
            begin = at + 1
            if at in places.at_once:
                self.wait_at_once(at, places.at_once[at][1], draw)
            else:
                self._follow_host()
        self._run_ops(begin, last, found, begun, draw)

    def _follow_host(self) -> None:
        """The device goes on where the host is."""
        self.waits += self.host[0] > self.device[0]
        self.device = max(self.device, self.host)

    def wait_at_once(self, position: int, then: int, draw: bool) -> None:
        """For the collective that follows an op, and that the op `then` waits for."""
        self.end_op(position, draw, reduces=False)
        self._begin_op(then, draw, reduces=False)

    def _run_ops(self, first: int, last: int, found: Sums, begun: Seconds, draw: bool) -> Seconds:
        """Op by op, between two events; `begun` is when the host would have begun with the range, had it never waited."""
        d, (host, host_record), (device, device_record) = self.durations, self.host, self.device
        gap, computing, busy, records = d.gap, self.computing, self.busy, self.records
        start = found.segments.places.range[0]
        columns = (
            found.work.issued[first - start + 1 : last - start + 1].tolist(),
            d.device[first:last].tolist(),
            d.waits[first:last].tolist(),
        )
        for position, (until, length, waits) in enumerate(zip(*columns, strict=True), first):
            if draw and begun + until > host:
                records.append(Record(HOST, position, position + 1, host, 1.0, 0.0, host_record))
                host_record = len(records) - 1
            host = begun + until
            if length > 0:
                device += gap
                if host > device or (host == device and host_record > device_record):
                    self.waits += host > device
                    device, device_record = host, host_record
                slower = 1.0
                if busy or self.debt:
                    slowed = self.slowed(device, length)
                    length, slower = slowed, slowed / length
                if draw:
                    records.append(Record(DEVICE, position, position + 1, device, slower, 0.0, device_record))
                    device_record = len(records) - 1
                computing += length
                device += length
            if waits and (device, device_record) > (host, host_record):
                host, host_record = device, device_record
                begun = host - until
        self.computing, self.host, self.device = computing, (host, host_record), (device, device_record)
        return begun

    def _begin_op(self, position: int, draw: bool, reduces: bool) -> None:
        """What happens before an op: the host issues collectives, and the device waits for some."""
        for number in self._marks.before.get(position, ()):
            self._communicate(number, self.ready.get(number, (0.0, -1)), draw, reduces)
        gap = 0.0 if position in self._idle else self.durations.gap  # none is left where the device was idle
        for number in self._marks.awaited.get(position, ()):
            done, record = self.finished.get(number, self.device)
            self.device = max(self.device, (done - gap, record))

    def end_op(self, position: int, draw: bool, reduces: bool) -> None:
        """What happens after an op: data is ready, and the host issues collectives of it."""
        if position in self._idle:
            self._follow_host()
        for number in self._marks.made_ready.get(position, ()):
            self.ready[number] = self.device
        for number in self._marks.after.get(position, ()):
            self._communicate(number, self.device, draw, reduces)

    def slowed(self, begin: Seconds, length: Seconds) -> Seconds:
        """How long compute takes that loses some of the device to communication beside it."""
        slower, busy = self.durations.slowdown, self.busy
        now, left = begin, length + self.debt  # `left` is what it takes undisturbed
        self.debt = 0.0
        while busy and left > 0:
            start, end = busy[0]
            if start <= now and left * slower <= end - now:  # as most are, so it comes first
                return now + left * slower - begin
            if end > now:
                if left <= start - now:
                    break
                left, now = left - max(start - now, 0.0), max(start, now)
                if left * slower <= end - now:
                    return now + left * slower - begin
                left, now = left - (end - now) / slower, end
            busy.popleft()
        return now + left - begin

    def _communicate(self, number: int, ready: Event, draw: bool, reduces: bool) -> None:
        collective = self.role.collectives[number]
        if not (reduces or collective.every_micro_step):
            return
        lane, seconds = collective.lane, self.durations.collectives[number]
        begin, record = max(self.network.get(lane, (0.0, -1)), ready, self.host)
        self.waits += begin == self.host[0]
        if seconds > 0:
            self._occupy_network(begin, begin + seconds)
        if draw:
            self.records.append(Record(NETWORK, number, number + 1, begin, 1.0, 0.0, record))
            record = len(self.records) - 1
        self.network[lane] = self.finished[number] = (begin + seconds, record)

    def _occupy_network(self, begin: Seconds, end: Seconds) -> None:
        """The network is busy; lanes that are busy together count once."""
        begin = max(begin, self.busy_until)
        if end <= begin:
            return
        self.communicating += end - begin
        self.busy_until = end
        if (slower := self.durations.slowdown) > 1:
            now = self.device[0]
            self.debt += max(min(end, now) - begin, 0.0) * (1 - 1 / slower)  # compute before now had it beside
            if end > now:
                if self.busy and self.busy[-1][1] == begin:
                    self.busy[-1] = (self.busy[-1][0], end)
                else:
                    self.busy.append((max(begin, now), end))
