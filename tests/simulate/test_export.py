"""Chakra traces read back by the rules of protocol buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretell.program import Collective, Group
from foretell.simulate.step import simulate

from .test_step import durations, role


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> list[tuple[int, Any]]:
    out, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            out.append((key >> 3, value))
        else:
            length, at = varint(data, at)
            out.append((key >> 3, data[at : at + length]))
            at += length
    return out


def messages(data: bytes) -> list[list[tuple[int, Any]]]:
    out, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        out.append(fields(data[at : at + length]))
        at += length
    return out


def test_nodes_depend_on_what_they_waited_for(tmp_path: Path) -> None:
    reduce = Collective(
        kind="all-reduce", nbytes=4096, group=Group(size=2), name="bucket", starts_after=0, waited_for_by=2
    )
    step = role(["backward", "backward", "optimizer"], collectives=(reduce,))
    [file] = simulate(step, durations([2, 3, 1], [0, 0, 0], collectives=[7])).to_chakra(tmp_path / "trace.et")
    metadata, *nodes = messages(file.read_bytes())
    assert metadata[0][0] == 1
    kinds = [dict(node)[3] for node in nodes]
    assert kinds == [4, 7, 4, 4]
    first, bucket, second, update = ([value for key, value in node if key == 5] for node in nodes)
    assert first == []
    assert bucket == [b"\x01"]
    assert second == [b"\x01"]
    assert update == [b"\x02\x03"]  # after the op before it, and after the collective it waited for
    attributes = [dict(fields(value)) for key, value in nodes[1] if key == 10]
    assert {a[1]: a.get(9) for a in attributes} == {b"is_cpu_op": None, b"comm_size": 4096, b"comm_type": 0}
    assert [dict(node)[7] for node in nodes] == [2_000_000, 7_000_000, 3_000_000, 1_000_000]
