"""One rank's streams: the host issues ops one after another, the device runs them in order, lanes of the network run
beside. Every span remembers the one it waited for, which makes the critical path."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretell.program import Role
from foretell.simulate.timeline import Span
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Plain numbers, one per op or collective, predicted or measured."""

    device: Sequence[Seconds]
    host: Sequence[Seconds]
    waits: Sequence[bool]  # the host goes on only when the device is done with the op
    collectives: Sequence[Seconds]
    gap: Seconds = 0.0  # between two kernels of a busy device
    slowdown: float = 1.0  # how many times longer compute takes while the network is busy


_Event = tuple[Seconds, int]  # when, and the span whose end it is (-1: not drawn)


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
        self.host: _Event = (0.0, -1)
        self.device: _Event = (0.0, -1)
        self.network: dict[str, _Event] = {}
        self.spans: list[Span] = []
        self.computing: Seconds = 0.0  # so far: kernels running
        self.communicating: Seconds = 0.0  # at least one lane busy
        self._busy: deque[tuple[Seconds, Seconds]] = deque()  # when lanes are busy, from the device's clock on
        self._busy_until: Seconds = 0.0
        self._debt: Seconds = 0.0  # what communication cost compute that was already laid out
        self._finished: dict[int, _Event] = {}  # collective → its end
        self._ready: dict[int, _Event] = {}
        # By op: collectives that the host issues before it and after it, that it waits for, that it makes ready.
        self._before: dict[int, list[int]] = defaultdict(list)
        self._after: dict[int, list[int]] = defaultdict(list)
        self._awaited: dict[int, list[int]] = defaultdict(list)
        self._made_ready: dict[int, list[int]] = defaultdict(list)
        if any(durations.collectives):  # those that take no time change nothing
            self._place_collectives()
        self._eventful = sorted(
            self._before.keys() | self._after.keys() | self._awaited.keys() | self._made_ready.keys()
        )

    def _place_collectives(self) -> None:
        for number, collective in enumerate(self.role.collectives):
            if collective.issued_by is None:
                self._after[collective.starts_after].append(number)
            else:
                self._before[collective.issued_by].append(number)
                self._made_ready[collective.starts_after].append(number)
            self._awaited[collective.waited_for_by].append(number)

    @property
    def end(self) -> Seconds:
        return max(self.host[0], self.device[0], *(event[0] for event in self.network.values()), 0.0)

    @property
    def clocks(self) -> Clocks:
        lanes = {lane: event[0] for lane, event in self.network.items()}
        return Clocks(self.host[0], self.device[0], lanes, self.computing, self.communicating)

    def forget_results(self) -> None:
        """What one step waited for is not what the next does."""
        self._finished.clear()

    def wait_for_the_last(self) -> None:
        for number in self._awaited.get(len(self.role.graph.ops), ()):
            self.device = max(self.device, self._finished.get(number, self.device))

    def repeat(self, since: Clocks, times: int) -> None:
        """Let all that happened since happen `times` more, undrawn."""
        now = self.clocks
        ahead = (now.device - since.device) * times
        self.host = (now.host + (now.host - since.host) * times, -1)
        self.device = (now.device + ahead, -1)
        for lane, at in now.network.items():
            self.network[lane] = (at + (at - since.network.get(lane, at)) * times, -1)
        self.computing += (now.computing - since.computing) * times
        self.communicating += (now.communicating - since.communicating) * times
        self._busy = deque((begin + ahead, end + ahead) for begin, end in self._busy)
        self._busy_until += ahead

    def run(self, first: int, last: int, *, draw: bool, reduces: bool) -> None:
        """Run the ops from `first` up to `last`; `reduces`: this is the last micro-step, which reduces gradients."""
        for number in self._made_ready.get(first - 1, ()):  # what came before the range has happened
            self._ready[number] = self.device
        begin, end = (bisect_left(self._eventful, at) for at in (first, last))
        for position in self._eventful[begin:end]:
            self._run_ops(first, position, draw)
            self._run_op_with_collectives(position, draw, reduces)
            first = position + 1
        self._run_ops(first, last, draw)

    def _run_ops(self, first: int, last: int, draw: bool) -> None:
        """Ops at which no collective begins or ends: most of a forecast's time goes here."""
        d, (host, host_span), (device, device_span) = self.durations, self.host, self.device
        gap, computing, busy, debt = d.gap, self.computing, self._busy, self._debt
        position = first - 1
        for issuing, length, waits in zip(d.host[first:last], d.device[first:last], d.waits[first:last], strict=True):
            position += 1
            if draw and issuing > 0:
                host_span = self._draw("host", position, host, issuing, host_span)
            host += issuing
            if length > 0:
                device += gap
                if host > device or (host == device and host_span > device_span):
                    device, device_span = host, host_span
                if busy or debt:
                    length, debt = self._slowed(device, length), 0.0
                if draw:
                    device_span = self._draw("device", position, device, length, device_span)
                computing += length
                device += length
            if waits and (device, device_span) > (host, host_span):
                host, host_span = device, device_span
        self.computing, self.host, self.device = computing, (host, host_span), (device, device_span)

    def _run_op_with_collectives(self, position: int, draw: bool, reduces: bool) -> None:
        d, phase = self.durations, self.role.graph.ops[position].phase
        for number in self._before.get(position, ()):
            self._communicate(number, self._ready.get(number, (0.0, -1)), phase, draw, reduces)
        awaited = self._awaited.get(position, ())
        gap = d.gap if d.device[position] > 0 else 0.0  # none is left where the device was idle
        for number in awaited:
            done, span = self._finished.get(number, self.device)
            self.device = max(self.device, (done - gap, span))
        self._run_ops(position, position + 1, draw)
        if awaited and not d.device[position] > 0:
            self.device = max(self.device, self.host)
        for number in self._made_ready.get(position, ()):
            self._ready[number] = self.device
        for number in self._after.get(position, ()):
            self._communicate(number, self.device, phase, draw, reduces)

    def _slowed(self, begin: Seconds, length: Seconds) -> Seconds:
        """How long compute takes that loses some of the device to communication beside it."""
        slower, busy = self.durations.slowdown, self._busy
        now, left = begin, length + self._debt  # `left` is what it takes undisturbed
        self._debt = 0.0
        while busy and left > 0:
            start, end = busy[0]
            if end > now:
                if left <= start - now:
                    break
                left, now = left - max(start - now, 0.0), max(start, now)
                if left * slower <= end - now:
                    return now + left * slower - begin
                left, now = left - (end - now) / slower, end
            busy.popleft()
        return now + left - begin

    def _communicate(self, number: int, ready: _Event, phase: str, draw: bool, reduces: bool) -> None:
        collective = self.role.collectives[number]
        if not (reduces or collective.every_micro_step):
            return
        lane, seconds = collective.lane, self.durations.collectives[number]
        begin, span = max(self.network.get(lane, (0.0, -1)), ready, self.host)
        if seconds > 0:
            self._occupy_network(begin, begin + seconds)
        if draw:
            stream = "network" if lane == "dp" else f"network {lane}"
            task = len(self.role.graph.ops) + number
            drawn = (collective.name, "", phase, begin, seconds, task, span, collective.kind, collective.nbytes)
            self.spans.append(Span(self.role.name, stream, *drawn))
            span = len(self.spans) - 1
        self.network[lane] = self._finished[number] = (begin + seconds, span)

    def _occupy_network(self, begin: Seconds, end: Seconds) -> None:
        """The network is busy; lanes that are busy together count once."""
        begin = max(begin, self._busy_until)
        if end <= begin:
            return
        self.communicating += end - begin
        self._busy_until = end
        if (slower := self.durations.slowdown) > 1:
            now = self.device[0]
            self._debt += max(min(end, now) - begin, 0.0) * (1 - 1 / slower)  # compute before now had it beside
            if end > now:
                self._busy.append((max(begin, now), end))

    def _draw(self, stream: str, position: int, begin: Seconds, seconds: Seconds, after: int) -> int:
        """The number of the new span."""
        op = self.role.graph.ops[position]
        span = Span(self.role.name, stream, op.signature.target, op.module, op.phase, begin, seconds, position, after)
        self.spans.append(span)
        return len(self.spans) - 1
