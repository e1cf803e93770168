"""A step laid out in time: spans on the host, the device and the network of each distinct rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, overload

from foretell.program import Role
from foretell.simulate.export import write_chakra, write_perfetto
from foretell.simulate.segment_sums import Durations, Floats
from foretell.units import Bytes, Seconds

WHOLE_PASS: Final = 2**31  # the task of a span that is no op of a graph, but a whole pass of a pipeline's stage


class Span(NamedTuple):
    """One task in time, on one stream of one rank role."""

    role: str
    stream: str  # host, device or network; a lane of the network beside the first is named after it
    name: str
    module: str
    phase: str
    start: Seconds
    duration: Seconds
    task: int  # position in the program
    after: int = -1  # the span whose end let this one begin; -1: none that is drawn
    kind: str = ""  # of a collective; send or receive of a pipeline's stages
    nbytes: Bytes = 0
    peer: str = ""  # role that it sends to or receives from

    @property
    def end(self) -> Seconds:
        return self.start + self.duration


# Streams. The device goes over a segment in a LEAP; in one that is LATE it waited for the host on the way, in one OUT of
# communication beside it, that ended on the way.
HOST, DEVICE, LEAP, LATE, OUT, NETWORK = range(6)


class Record(NamedTuple):
    """What a rank did on one of its streams: an op, several on end, or a collective."""

    stream: int
    first: int
    last: int  # past the last op
    start: Seconds
    slowdown: float  # how many times as long its ops took as they do alone
    more: Seconds  # that the first took; of a leap out, how long they took so much longer
    after: int  # the record whose end let it begin; -1: none


class LazySpans(Sequence[Span]):
    """Spans of one rank, drawn when they are looked at, which few do."""

    def __init__(self, role: Role, durations: Durations, draw: Callable[[], Sequence[Record]]) -> None:
        self.role, self.durations, self._draw = role, durations, draw

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        return tuple(map(self._span, self._draw()))

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, at: int) -> Span: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Span]: ...
    def __getitem__(self, at: int | slice) -> Span | Sequence[Span]:
        return self._spans[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._spans == tuple(other)

    def __hash__(self) -> int:
        return hash(self._spans)

    def __reduce__(self) -> tuple[type[tuple[Span, ...]], tuple[tuple[Span, ...]]]:
        return tuple, (self._spans,)

    def _span(self, record: Record) -> Span:
        role, number, ops = self.role, record.first, self.role.graph.ops
        start, after = record.start, record.after
        if record.stream == NETWORK:
            c, seconds = role.collectives[number], self.durations.collectives[number]
            phase = ops[c.starts_after if c.issued_by is None else c.issued_by].phase
            stream = "network" if c.lane == "dp" else f"network {c.lane}"
            task = len(ops) + number
            return Span(role.name, stream, c.name, "", phase, start, seconds, task, after, c.kind, c.nbytes)
        stream, every = ("host", self.durations.host) if record.stream == HOST else ("device", self.durations.device)
        seconds = float(every[number]) * record.slowdown + record.more
        op = ops[number]
        return Span(role.name, stream, op.signature.target, op.module, op.phase, start, seconds, number, after)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPath:
    """What lies on the critical path: seconds of each op on the host and on the device, and of each collective."""

    host: Floats
    device: Floats
    collectives: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The spans of a step that starts with empty queues; repeated micro-steps are drawn once and counted in `makespan`.

    Steps that follow each other start before the one before has ended: `period` is what each of them adds.
    """

    spans: Sequence[Span]
    makespan: Seconds
    period: Seconds
    waiting: Seconds = 0.0  # of a pipeline: what even its busiest stage spends without work
    # Of a step among others, on the rank that does most of it; micro-steps that are not drawn are counted.
    computing: Seconds = 0.0  # a kernel runs
    communicating: Seconds = 0.0  # a lane of the network is busy
    waits_for_host: bool = True  # the period is another with another host
    path: OnPath | None = None  # what of one rank's step is critical, without looking at its spans

    def on(self, stream: str) -> Iterator[Span]:
        return (span for span in self.spans if span.stream.partition(" ")[0] == stream)

    def with_ranks(self, others: Mapping[str, Timeline]) -> Timeline:
        """Drawn together with other ranks of the step, under names of their own."""
        if not others:
            return self
        spans = list(self.spans)
        for role, other in others.items():
            moved = len(spans)
            spans += [s._replace(role=role, after=s.after + moved if s.after >= 0 else -1) for s in other.spans]
        return replace(self, spans=tuple(spans), path=None)

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that the step's end depends on, each begun by the end of the one before."""
        if not self.spans:
            return ()
        path = [max(self.spans, key=lambda span: span.end)]
        while path[-1].after >= 0:
            path.append(self.spans[path[-1].after])
        return tuple(reversed(path))

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that ui.perfetto.dev and chrome://tracing open."""
        write_perfetto(self.spans, Path(path))

    def to_chakra(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write Chakra execution traces, one for each role: `path` itself, or with the role's number before its ending."""
        return write_chakra(self.spans, Path(path))
