"""One rank's streams: the host issues ops one after another, the device runs them in order, lanes of the network run
beside. Every span remembers the one it waited for, which makes the critical path."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretell.program import Role
from foretell.simulate.timeline import Span
from foretell.units import Seconds

_Event = tuple[Seconds, int]  # when, and the span whose end it is (-1: not drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Plain numbers, one an op or a collective, predicted or measured."""

    device: Sequence[Seconds]
    host: Sequence[Seconds]
    waits: Sequence[bool]  # the host goes on only when the device is done with the op
    collectives: Sequence[Seconds]
    gap: Seconds = 0.0  # between two kernels of a busy device
    slowdown: float = 1.0  # how many times longer compute takes while the network is busy


class Clocks(NamedTuple):
    host: Seconds
    device: Seconds
    network: dict[str, Seconds]
    computing: Seconds
    talking: Seconds


class Rank:
    """The clocks of a rank, moved on by running ranges of its ops."""

    def __init__(self, role: Role, durations: Durations) -> None:
        self.role, self.durations = role, durations
        self.host: _Event = (0.0, -1)
        self.device: _Event = (0.0, -1)
        self.network: dict[str, _Event] = {}
        self.spans: list[Span] = []
        self.computing: Seconds = 0.0  # so far: kernels running
        self.talking: Seconds = 0.0  # at least one lane busy
        self._talks: deque[tuple[Seconds, Seconds]] = deque()  # when lanes are busy, from the device's clock on
        self._talks_until: Seconds = 0.0
        self._owed: Seconds = 0.0  # what communication cost compute that was already laid out
        self._finished: dict[int, _Event] = {}
        self._ready: dict[int, _Event] = {}
        self._before: dict[int, list[int]] = defaultdict(list)  # op → collectives the host asks for before it
        self._after: dict[int, list[int]] = defaultdict(list)
        self._waiting: dict[int, list[int]] = defaultdict(list)
        self._makes_ready: dict[int, list[int]] = defaultdict(list)
        for number, collective in enumerate(role.collectives):
            if collective.issued_by is None:
                self._after[collective.starts_after].append(number)
            else:
                self._before[collective.issued_by].append(number)
                self._makes_ready[collective.starts_after].append(number)
            self._waiting[collective.waited_for_by].append(number)

    @property
    def end(self) -> Seconds:
        return max(self.host[0], self.device[0], *(event[0] for event in self.network.values()), 0.0)

    def forget_results(self) -> None:
        """What one step waited for is not what the next does."""
        self._finished.clear()

    def wait_for_the_last(self) -> None:
        for number in self._waiting[len(self.role.graph.ops)]:
            self.device = max(self.device, self._finished.get(number, self.device))

    @property
    def clocks(self) -> Clocks:
        lanes = {lane: event[0] for lane, event in self.network.items()}
        return Clocks(self.host[0], self.device[0], lanes, self.computing, self.talking)

    def go_on(self, since: Clocks, times: int) -> None:
        """Let all that happened since happen `times` more, undrawn."""
        now = self.clocks
        ahead = (now.device - since.device) * times
        self.host = (now.host + (now.host - since.host) * times, -1)
        self.device = (now.device + ahead, -1)
        for lane, at in now.network.items():
            self.network[lane] = (at + (at - since.network.get(lane, at)) * times, -1)
        self.computing += (now.computing - since.computing) * times
        self.talking += (now.talking - since.talking) * times
        self._talks = deque((begin + ahead, end + ahead) for begin, end in self._talks)
        self._talks_until += ahead

    def run(self, first: int, last: int, *, draw: bool, reduces: bool) -> None:
        """Run the ops from `first` up to `last`; `reduces` says that this is the last micro-step."""
        if not (draw or self.role.collectives):
            self._run_undrawn(first, last)
            return
        durations, ops = self.durations, self.role.graph.ops
        device_seconds, host_seconds, waits = durations.device, durations.host, durations.waits
        gap = durations.gap
        for number in self._makes_ready[first - 1]:  # what came before the range has happened
            self._ready[number] = self.device
        for position in range(first, last):
            for number in self._before.get(position, ()):
                self._communicate(number, self._ready.get(number, (0.0, -1)), ops[position].phase, draw, reduces)
            issuing, length = host_seconds[position], device_seconds[position]
            issued = self.host
            self.host = (issued[0] + issuing, issued[1])
            if draw and issuing > 0:
                self._draw("host", position, issued, issuing)
                self.host = (self.host[0], len(self.spans) - 1)
            begin = max(self.host, (self.device[0] + gap, self.device[1]) if length > 0 else self.device)
            waited = self._waiting.get(position)
            if waited:
                begin = max([begin, *(self._finished[n] for n in waited if n in self._finished)])
            if length > 0 or waited:
                if length > 0 and (self._talks or self._owed):
                    length = self._slowed(begin[0], length)
                self.computing += length
                self.device = (begin[0] + length, begin[1])
                if draw and length > 0:
                    self._draw("device", position, begin, length)
                    self.device = (self.device[0], len(self.spans) - 1)
            if waits[position]:
                self.host = max(self.host, self.device)
            for number in self._makes_ready.get(position, ()):
                self._ready[number] = self.device
            for number in self._after.get(position, ()):
                self._communicate(number, self.device, ops[position].phase, draw, reduces)

    def _run_undrawn(self, first: int, last: int) -> None:
        """The same clocks, with nothing to draw and nobody to talk to: most of a forecast's time would go here."""
        d, host, device = self.durations, self.host[0], self.device[0]
        for issuing, length, waits in zip(d.host[first:last], d.device[first:last], d.waits[first:last], strict=True):
            host += issuing
            if length > 0:
                device = max(host, device + d.gap) + length
            if waits and device > host:
                host = device
        self.computing += sum(d.device[first:last])
        self.host, self.device = (host, -1), (device, -1)

    def _slowed(self, begin: Seconds, length: Seconds) -> Seconds:
        """How long compute takes that loses some of the device to communication beside it."""
        slower, talks = self.durations.slowdown, self._talks
        now, left = begin, length + self._owed  # `left` is what it takes undisturbed
        self._owed = 0.0
        while talks and left > 0:
            start, end = talks[0]
            if end > now:
                if left <= start - now:
                    break
                left, now = left - max(start - now, 0.0), max(start, now)
                if left * slower <= end - now:
                    return now + left * slower - begin
                left, now = left - (end - now) / slower, end
            talks.popleft()
        return now + left - begin

    def _communicate(self, number: int, ready: _Event, phase: str, draw: bool, reduces: bool) -> None:
        collective = self.role.collectives[number]
        if not (reduces or collective.every_micro_step):
            return
        lane, seconds = collective.lane, self.durations.collectives[number]
        begin = max(self.network.get(lane, (0.0, -1)), ready, self.host)
        done = (begin[0] + seconds, begin[1])
        if seconds > 0:
            self._talk(begin[0], done[0])
        if draw:
            stream = "network" if lane == "dp" else f"network {lane}"
            task = len(self.role.graph.ops) + number
            self.spans.append(
                Span(self.role.name, stream, collective.name, "", phase, begin[0], seconds, task, begin[1],
                     collective.kind, collective.nbytes)
            )  # fmt: skip
            done = (done[0], len(self.spans) - 1)
        self.network[lane] = self._finished[number] = done

    def _talk(self, begin: Seconds, end: Seconds) -> None:
        """The network is busy; lanes that are busy together count once."""
        begin = max(begin, self._talks_until)
        if end <= begin:
            return
        self.talking += end - begin
        self._talks_until = end
        if (slower := self.durations.slowdown) > 1:
            now = self.device[0]
            self._owed += max(min(end, now) - begin, 0.0) * (1 - 1 / slower)  # compute before now had it beside
            if end > now:
                self._talks.append((max(begin, now), end))

    def _draw(self, stream: str, position: int, begin: _Event, seconds: Seconds) -> None:
        op = self.role.graph.ops[position]
        self.spans.append(
            Span(self.role.name, stream, op.target, op.module, op.phase, begin[0], seconds, position, begin[1])
        )
