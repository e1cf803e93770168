"""Timelines as files of other tools: Perfetto's JSON, and Chakra execution traces (MLCommons), which ASTRA-sim reads.

A Chakra file is a row of protocol buffers, each after its length: metadata, then a node for every span of device and
network. They are written by hand, field by field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from foretell.simulate.timeline import Span

_COMPUTES, _SENDS, _RECEIVES, _COLLECTIVE = 4, 5, 6, 7  # Chakra's NodeType
_COLLECTIVES: Final = {"all-reduce": 0, "all-gather": 2, "broadcast": 5, "all-to-all": 6, "reduce-scatter": 7}


def write_perfetto(spans: Sequence[Span], path: Path) -> None:
    """A process for each role, a thread for each stream."""
    processes, threads = (_numbered([getattr(s, what) for s in spans]) for what in ("role", "stream"))
    events: list[dict[str, Any]] = []
    for role, pid in processes.items():
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": role}})
        for stream, tid in threads.items():
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": stream}})
    for s in spans:
        where = {"pid": processes[s.role], "tid": threads[s.stream], "ts": s.start * 1e6, "dur": s.duration * 1e6}
        args = {"module": s.module, "phase": s.phase}
        events.append({"ph": "X", "name": s.name, "cat": s.phase, **where, "args": args})
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def write_chakra(spans: Sequence[Span], path: Path) -> list[Path]:
    """A file for each role; several have the role's number before their ending."""
    roles, written = _numbered([s.role for s in spans]), []
    for role, number in roles.items():
        file = path if len(roles) == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
        file.write_bytes(_chakra(spans, role, roles))
        written.append(file)
    return written


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _chakra(spans: Sequence[Span], role: str, roles: Mapping[str, int]) -> bytes:
    out = [_delimited(_text(1, "0.0.4"))]
    numbers: dict[int, int] = {}
    tags = _numbered([s.name for s in spans if s.peer])  # what is sent and received has one name
    last: dict[str, int] = {}  # stream → the node before on it
    for index, span in enumerate(spans):
        if span.role != role or span.stream == "host":
            continue
        numbers[index] = number = len(numbers) + 1
        after = _drawn_before(spans, span, numbers)
        waits = sorted({n for n in (last.get(span.stream), after) if n is not None})
        last[span.stream] = number
        partner = b"".join(_partner(span, roles[span.peer], tags[span.name])) if span.peer else b""
        out.append(_delimited(b"".join(_node(span, number, waits)) + partner))
    return b"".join(out)


def _drawn_before(spans: Sequence[Span], span: Span, numbers: dict[int, int]) -> int | None:
    """The nearest node of this role that the span depends on: what the host did in between is not a node."""
    at = span.after
    while at >= 0 and at not in numbers:
        at = spans[at].after
    return numbers.get(at)


def _node(span: Span, number: int, waits: list[int]) -> Iterator[bytes]:
    communicates = span.stream != "device"
    sends = _RECEIVES if span.kind == "receive" else _SENDS
    kind = _COMPUTES if not communicates else _COLLECTIVE if span.kind in _COLLECTIVES else sends
    yield _number(1, number)
    yield _text(2, f"{span.module}:{span.name}".strip(":"))
    yield _number(3, kind)
    if waits:
        yield _bytes(5, b"".join(map(_varint, waits)))
    yield _number(6, round(span.start * 1e6))
    yield _number(7, max(round(span.duration * 1e6), 1))
    yield _attribute("is_cpu_op", _number(27, 0))
    if communicates:
        yield _attribute("comm_size", _number(9, span.nbytes))
        if span.kind in _COLLECTIVES:
            yield _attribute("comm_type", _number(9, _COLLECTIVES[span.kind]))


def _partner(span: Span, number: int, tag: int) -> Iterator[bytes]:
    """The other end of what is sent: its file's number, and a tag that both ends have."""
    yield _attribute("comm_src" if span.kind == "receive" else "comm_dst", _number(7, number))
    yield _attribute("comm_tag", _number(7, tag))


def _attribute(name: str, value: bytes) -> bytes:
    return _bytes(10, _text(1, name) + value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _delimited(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message
