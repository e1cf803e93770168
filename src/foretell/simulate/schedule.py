"""Durations → Timeline: the host issues ops one after another, the device runs them in order, the network runs beside.

The step ends when all are done. Repeated micro-steps are run twice and continued in proportion. A second step follows
the first as in training, its host running ahead: what it adds is the period.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foretell.program import Role
from foretell.simulate.timeline import Span, Timeline
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Plain numbers, one an op or a collective, predicted or measured."""

    device: Sequence[Seconds]
    host: Sequence[Seconds]
    waits: Sequence[bool]  # the host goes on only when the device is done with the op
    collectives: Sequence[Seconds]


@dataclass(slots=True)
class _Clocks:
    host: Seconds = 0.0
    device: Seconds = 0.0
    network: Seconds = 0.0


def simulate(role: Role, durations: Durations) -> Timeline:
    """One step of a rank."""
    graph = role.graph
    clocks = _Clocks()
    spans: list[Span] = []
    starting = defaultdict(list)
    waiting = defaultdict(list)
    for number, collective in enumerate(role.collectives):
        starting[collective.starts_after].append(number)
        waiting[collective.waited_for_by].append(number)
    finished: dict[int, Seconds] = {}

    def run(first: int, last: int, *, draw: bool, communicates: bool) -> None:
        for position in range(first, last):
            op = graph.ops[position]
            issued = clocks.host
            clocks.host += durations.host[position]
            begin = max(clocks.host, clocks.device)
            for number in waiting[position]:
                begin = max(begin, finished.get(number, 0.0))
            length = durations.device[position]
            if length > 0 or waiting[position]:
                clocks.device = begin + length
            if durations.waits[position]:
                clocks.host = max(clocks.host, clocks.device)
            if draw and durations.host[position] > 0:
                spans.append(
                    Span(role.name, "host", op.target, op.module, op.phase, issued, durations.host[position], position)
                )
            if draw and length > 0:
                spans.append(Span(role.name, "device", op.target, op.module, op.phase, begin, length, position))
            for number in starting[position] if communicates else ():
                name, seconds = role.collectives[number].name, durations.collectives[number]
                start = max(clocks.network, clocks.device, clocks.host)
                clocks.network = finished[number] = start + seconds
                if draw:
                    task = len(graph.ops) + number
                    spans.append(Span(role.name, "network", name, "", op.phase, start, seconds, task))

    def run_step(*, draw: bool) -> Seconds:
        for first, last, times in segments:
            if times > 1:
                run(first, last, draw=False, communicates=False)
                before = (clocks.host, clocks.device)
                if times > 2:
                    run(first, last, draw=False, communicates=False)
                    clocks.host += (clocks.host - before[0]) * (times - 3)
                    clocks.device += (clocks.device - before[1]) * (times - 3)
            run(first, last, draw=draw, communicates=True)
        return max(clocks.host, clocks.device, clocks.network)

    segments = list(_segments(role))
    makespan = run_step(draw=True)
    finished.clear()  # what the first step waited for is not what the second does
    return Timeline(spans=tuple(spans), makespan=makespan, period=run_step(draw=False) - makespan)


def _segments(role: Role) -> Iterator[tuple[int, int, int]]:
    """(first, past the last, times) of each run of ops that repeat together."""
    ops = role.graph.ops
    first = 0
    for position in range(1, len(ops) + 1):
        if position == len(ops) or ops[position].times != ops[first].times:
            if first < position:
                yield first, position, ops[first].times
            first = position
