"""One rank's streams: the host issues ops one after another, the device runs them in order, lanes of the network run
beside. Clocks leap over segments of ops; what is recorded remembers what it waited for, which makes the critical path."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Set
from typing import Literal, NamedTuple

from foretell.program import Role
from foretell.simulate.segment_sums import Durations, Pace, Sums, sums_of
from foretell.simulate.segments import NO_MARKS, segments_of
from foretell.simulate.timeline import DEVICE, HOST, LATE, LEAP, NETWORK, OUT, Record
from foretell.simulate.undrawn import ROUNDING, in_turn, run_undrawn, with_debt
from foretell.units import Seconds

Recording = Literal["nothing", "segments", "ops"]
Event = tuple[Seconds, int]  # when, and the record whose end it is (-1: not recorded)


class Clocks(NamedTuple):
    host: Seconds
    device: Seconds
    network: dict[str, Seconds]
    computing: Seconds
    communicating: Seconds


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
        self.waited_for_host = False  # so far: the device or the network
        self._marks = role.marks if any(durations.collectives) else NO_MARKS  # those that take no time change nothing
        # Ops that take the device no time, and wait for a collective all the same.
        taken = durations.device
        self._idle = {at for at in self._marks.awaited if at < len(taken) and not taken.item(at) > 0}
        self._ranges: dict[tuple[int, int], Sums] = {}
        self._lanes: Set[str] = frozenset()

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

    def forget_results(self) -> None:
        """What one step waited for is not what the next does."""
        self.finished.clear()

    def wait_for_the_last(self) -> None:
        for number in self._marks.awaited.get(len(self.role.graph.ops), ()):
            self.device = max(self.device, self.finished.get(number, self.device))

    def repeat(self, since: Clocks, times: int) -> None:
        """Let all that happened since happen `times` more, unrecorded."""
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

    def run(self, first: int, last: int, *, reduces: bool, record: Recording = "nothing") -> None:
        """Run the ops from `first` up to `last`; `reduces`: this is the last micro-step, which reduces gradients."""
        for number in self._marks.made_ready.get(first - 1, ()):  # what came before the range has happened
            self.ready[number] = self.device
        found, draw, leaps = self._sums(first, last), record != "nothing", record != "ops"
        segments, self._lanes = found.segments, found.segments.lanes
        if segments.summed and not draw:
            run_undrawn(self, found, reduces)
            return
        self.waited_for_host = True  # it may have: what is recorded says so op by op
        sums = zip(found.host, found.communicating, found.alone, found.slowed, strict=True)
        for (begin, end, begins, ends, waits), each in zip(segments.rows, sums, strict=True):
            if begins:
                self._begin_op(begin, draw, reduces)
            if not (leaps and segments.summed and self._leap(found, begin, end, waits, *each)):
                self._run_slowly(begin, end, found, draw)
            if ends:
                self.end_op(end - 1, draw, reduces)

    def _sums(self, first: int, last: int) -> Sums:
        if (first, last) not in self._ranges:
            d, role, silent = self.durations, self.role, self._marks is NO_MARKS
            busy, short = d.device > 0, d.slowdown > 1
            key = ("segments", first, last, silent, short, busy.tobytes(), d.waits.tobytes())
            if key not in role.found:
                role.found[key] = segments_of(role, first, last, busy=busy, waits=d.waits, silent=silent, short=short)
            self._ranges[first, last] = sums_of(role.found[key], d)
        return self._ranges[first, last]

    def _leap(
        self,
        sums: Sums,
        first: int,
        last: int,
        waits: bool,
        issuing: Seconds,
        communicating: Seconds,
        alone: Pace,
        slowed: Pace,
    ) -> bool:
        """Move the clocks over a segment at once, and record it; not where other communication is beside a part of it."""
        (host, host_record), (device, device_record), busy = self.host, self.device, self.busy
        soon = device + self.durations.gap + ROUNDING  # no kernel begins before
        while busy and busy[0][1] <= soon:
            busy.popleft()
        slower, pace = 1.0, with_debt(alone, self.debt) if self.debt else alone
        until = max(device + pace[0], host + pace[1])
        if busy and until > busy[0][0]:
            slower = self.durations.slowdown
            pace = with_debt(slowed, self.debt * slower) if self.debt else slowed
            until = max(device + pace[0], host + pace[1])
            if busy[0][0] > device or (communicating and in_turn(self.network, self._lanes, soon)):
                return False
            if until > busy[0][1]:
                out = (sums, first, last, waits, issuing, communicating, alone)
                return not self.debt and self.leap_out(*out, draw=True)
        elif communicating:
            if self.busy_until > soon:
                return False
            self.communicating += communicating
        late = host + pace[1] > device + pace[0]
        if late or pace[1] > -1e300:
            stream, after = (LATE, host_record) if late else (LEAP, device_record)
            more = self.debt * slower if pace[3] else 0.0
            self.records.append(Record(stream, first, last, device, slower, more, after))
            device_record = len(self.records) - 1
        self.records.append(Record(HOST, first, last, host, 1.0, 0.0, host_record))
        host_record = len(self.records) - 1
        if pace[3]:
            self.debt = 0.0
            self.computing += pace[3]
        host += issuing
        self.device = until, device_record
        self.host = self.device if waits and self.device > (host, host_record) else (host, host_record)
        return True

    def leap_out(
        self,
        sums: Sums,
        first: int,
        last: int,
        waits: bool,
        issuing: Seconds,
        communicating: Seconds,
        alone: Pace,
        draw: bool,
    ) -> bool:
        """Over a segment in which communication beside it ends, if the device does not wait for the host in it."""
        (host, host_record), (device, device_record), busy = self.host, self.device, self.busy
        if host + alone[1] > device + alone[0]:
            return False
        left = busy[0][1] - device
        _, before, within = sums.slowed_until(first, left)
        delay = (before + within) * (1 - 1 / self.durations.slowdown)
        until = device + alone[0] + delay
        if len(busy) > 1 and until > busy[1][0]:
            return False
        if communicating:
            beyond = sums.communicating_beyond(first, left)
            if beyond is None or self.busy_until > busy[0][1]:
                return False
            self.communicating += beyond
        if draw:
            slowed = (self.durations.slowdown, busy[0][1] - device)
            self.records.append(Record(OUT, first, last, device, *slowed, device_record))
            self.records.append(Record(HOST, first, last, host, 1.0, 0.0, host_record))
            host_record = len(self.records) - 1
            device_record = host_record - 1
        busy.popleft()
        host += issuing
        self.computing += alone[3] + delay
        self.device = until, device_record
        self.host = self.device if waits and until > host else (host, host_record)
        return True

    def _run_slowly(self, first: int, last: int, found: Sums, draw: bool) -> None:
        """Op by op, with the collectives that are waited for at once."""
        begin, segments = first, found.segments
        special = segments.special
        begun = self.host[0] - found.issued.item(first - segments.range[0])
        for at in special[bisect_left(special, first) : bisect_left(special, last)]:
            begun = self._run_ops(begin, at + 1, found, begun, draw)
            begin = at + 1
            if at in segments.at_once:
                self.wait_at_once(at, segments.at_once[at][1], draw)
            else:
                self.device = max(self.device, self.host)
        self._run_ops(begin, last, found, begun, draw)

    def wait_at_once(self, position: int, then: int, draw: bool) -> None:
        """For the collective that follows an op, and that the op `then` waits for."""
        self.end_op(position, draw, reduces=False)
        self._begin_op(then, draw, reduces=False)

    def _run_ops(self, first: int, last: int, found: Sums, begun: Seconds, draw: bool) -> Seconds:
        """Op by op, between two events; `begun` is when the host would have begun with the range, had it never waited."""
        d, (host, host_record), (device, device_record) = self.durations, self.host, self.device
        gap, computing, busy, records = d.gap, self.computing, self.busy, self.records
        start = found.segments.range[0]
        columns = (
            found.issued[first - start + 1 : last - start + 1].tolist(),
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
            self.device = max(self.device, self.host)
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
        self.waited_for_host = self.waited_for_host or begin == self.host[0]
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
