"""A step laid out in time: spans on the host, the device and the network of each distinct rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from foretell.simulate.export import write_chakra, write_perfetto
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
    kind: str = ""  # of a collective
    nbytes: Bytes = 0

    @property
    def end(self) -> Seconds:
        return self.start + self.duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The spans of a step that starts with empty queues; repeated micro-steps are drawn once and counted in `makespan`.

    Steps that follow each other start before the one before has ended: `period` is what each of them adds.
    """

    spans: tuple[Span, ...]
    makespan: Seconds
    period: Seconds
    waiting: Seconds = 0.0  # of a pipeline: what even its busiest stage spends without work
    # Of a step among others, on the rank that does most of it; micro-steps that are not drawn are counted.
    computing: Seconds = 0.0  # a kernel runs
    communicating: Seconds = 0.0  # a lane of the network is busy

    def on(self, stream: str) -> Iterator[Span]:
        return (span for span in self.spans if span.stream.partition(" ")[0] == stream)

    def beside(self, others: Mapping[str, Timeline]) -> Timeline:
        """Drawn together with other ranks of the step, under names of their own."""
        spans = list(self.spans)
        for role, other in others.items():
            moved = len(spans)
            spans += [s._replace(role=role, after=s.after + moved if s.after >= 0 else -1) for s in other.spans]
        return replace(self, spans=tuple(spans)) if others else self

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
