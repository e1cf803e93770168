"""A step laid out in time: spans on the host, the device and the network of each distinct rank."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from foretell.units import Bytes, Seconds


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
    talking: Seconds = 0.0  # a lane of the network is busy

    def on(self, stream: str) -> Iterator[Span]:
        return (span for span in self.spans if span.stream.partition(" ")[0] == stream)

    def busy(self, stream: str) -> Seconds:
        """Time in which at least one span of the stream runs."""
        return sum(end - start for start, end in self._covered(stream))

    def exposed(self, stream: str, behind: str) -> Seconds:
        """Time in which `stream` runs while `behind` does not."""
        shadow = list(self._covered(behind))
        exposed, first = 0.0, 0
        for start, end in self._covered(stream):
            while first < len(shadow) and shadow[first][1] <= start:
                first += 1
            hidden, i = 0.0, first
            while i < len(shadow) and shadow[i][0] < end:
                hidden += min(end, shadow[i][1]) - max(start, shadow[i][0])
                i += 1
            exposed += (end - start) - hidden
        return exposed

    def beside(self, others: Mapping[str, Timeline]) -> Timeline:
        """Drawn together with other ranks of the step, under names of their own."""
        spans = list(self.spans)
        for role, other in others.items():
            moved = len(spans)
            spans += [s._replace(role=role, after=s.after + moved if s.after >= 0 else -1) for s in other.spans]
        return replace(self, spans=tuple(spans)) if others else self

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that the end of the step hangs on, each begun by the end of the one before."""
        if not self.spans:
            return ()
        path = [max(self.spans, key=lambda span: span.end)]
        while path[-1].after >= 0:
            path.append(self.spans[path[-1].after])
        return tuple(reversed(path))

    def _covered(self, stream: str) -> Iterator[tuple[Seconds, Seconds]]:
        begin, until = None, 0.0
        for start, end in sorted((s.start, s.end) for s in self.on(stream) if s.duration > 0):
            if begin is None or start > until:
                if begin is not None:
                    yield begin, until
                begin, until = start, end
            else:
                until = max(until, end)
        if begin is not None:
            yield begin, until

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that ui.perfetto.dev and chrome://tracing open."""
        roles = list(dict.fromkeys(s.role for s in self.spans))
        streams = list(dict.fromkeys(s.stream for s in self.spans))
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": role}}
            for pid, role in enumerate(roles)
        ]
        events += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": stream}}
            for pid in range(len(roles))
            for tid, stream in enumerate(streams)
        ]
        events += [
            {"ph": "X", "name": s.name, "cat": s.phase, "pid": roles.index(s.role), "tid": streams.index(s.stream),
             "ts": s.start * 1e6, "dur": s.duration * 1e6, "args": {"module": s.module, "phase": s.phase}}
            for s in self.spans
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))

    def to_chakra(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write Chakra execution traces, one for each role: `path` itself, or with the role's number before its ending."""
        from foretell.simulate.export import encode

        roles = list(dict.fromkeys(s.role for s in self.spans))
        path, written = Path(path), []
        for number, role in enumerate(roles):
            file = path if len(roles) == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
            file.write_bytes(encode(self.spans, role))
            written.append(file)
        return written
