"""Chakra execution traces (MLCommons), which ASTRA-sim and its kin read: one file a role, protocol buffers by hand.

A file is a row of messages, each after its length: metadata, then a node for every span of device and network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foretell.simulate.timeline import Span

_COMPUTES, _SENDS, _COLLECTIVE = 4, 5, 7  # NodeType
_COLLECTIVES: Final = {"all-reduce": 0, "all-gather": 2, "broadcast": 5, "all-to-all": 6, "reduce-scatter": 7}


def encode(spans: Sequence[Span], role: str) -> bytes:
    """The trace of one role."""
    out = [_delimited(_text(1, "0.0.4"))]
    numbers: dict[int, int] = {}
    last: dict[str, int] = {}  # stream → the node before on it
    for index, span in enumerate(spans):
        if span.role != role or span.stream == "host":
            continue
        numbers[index] = number = len(numbers) + 1
        after = _drawn_before(spans, span, numbers)
        waits = sorted({n for n in (last.get(span.stream), after) if n is not None})
        last[span.stream] = number
        out.append(_delimited(b"".join(_node(span, number, waits))))
    return b"".join(out)


def _drawn_before(spans: Sequence[Span], span: Span, numbers: dict[int, int]) -> int | None:
    """The nearest node of this role that the span hangs on: what the host did in between is not a node."""
    at = span.after
    while at >= 0 and at not in numbers:
        at = spans[at].after
    return numbers.get(at)


def _node(span: Span, number: int, waits: list[int]) -> Iterator[bytes]:
    talks = span.stream != "device"
    kind = _COMPUTES if not talks else _COLLECTIVE if span.kind in _COLLECTIVES else _SENDS
    yield _number(1, number)
    yield _text(2, f"{span.module}:{span.name}".strip(":"))
    yield _number(3, kind)
    if waits:
        yield _bytes(5, b"".join(map(_varint, waits)))
    yield _number(6, round(span.start * 1e6))
    yield _number(7, max(round(span.duration * 1e6), 1))
    yield _attribute("is_cpu_op", _number(27, 0))
    if talks:
        yield _attribute("comm_size", _number(9, span.nbytes))
        if span.kind in _COLLECTIVES:
            yield _attribute("comm_type", _number(9, _COLLECTIVES[span.kind]))


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
