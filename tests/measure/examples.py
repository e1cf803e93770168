"""Records to store: a plain one by number, and any at all for hypothesis."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from foretell.graph import Graph, Op, Signature
from foretell.graph.types import PHASES
from foretell.measure.columns import columns_of
from foretell.measure.record import KINDS, OUTCOMES, AllocationRow, GraphRow, OpRow, Point, Record, SeriesRow, StepRow

_OPS = 64  # of each graph


@functools.cache
def graph_row(number: int) -> GraphRow:
    op = Op(Signature("aten.op.default", (), (), (("number", number),), ()), "forward", "", (), (), 1)
    graph = Graph(name="resnet18", ops=(op,) * _OPS, tensors=(), storages=())
    return GraphRow(hash=graph.content_hash, name=graph.name, file=graph.to_bytes())


def step(number: int = 0, **changed: object) -> StepRow:
    point = Point(source="timm/resnet18", settings={"batch": str(number)})
    values = {
        "point": point.key, "kind": "step", "source": point.source, "settings": point.settings_text,
        "step_seconds": 0.001 * (number + 1), "repetitions": 10, "device": "h200", "occasion": "one",
        "date": "2026-01-02T03:04:05Z", "precision": "fp32", "samples": 8, "peak_allocated": 2**30,
    }  # fmt: skip
    return StepRow(**(values | changed))  # type: ignore[arg-type]


def record(number: int = 0, *, ops: int = 3, **changed: object) -> Record:
    """Different for each number; the numbers share three graphs."""
    graph = graph_row(number % 3)
    return Record(
        step=step(number, graph=graph.hash, **changed),
        ops=tuple(
            OpRow(
                op=position % _OPS,
                target=f"aten.op{position % 2}.default",
                phase="forward",
                device_seconds=1e-6 * (position + 1),
                dispatch_seconds=None,
                issue_seconds=2e-6,
                kernels=("sgemm", "add"),
                kernel_seconds=(1e-6, 1e-7),
            )
            for position in range(ops)
        ),
        graph=graph,
        series=(SeriesRow(resource="device", counter="nvml", unit="fraction", seconds=(0.0, 0.1), values=(0.5, 1.0)),),
        allocations=AllocationRow(action=("alloc", "free_completed"), address=(2**46, 2**46), bytes=(512, 512)),
    )


_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=12),
    "whole": st.integers(0, 2**63 - 1),
    "number": st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "bytes": st.binary(max_size=20),
}


@st.composite
def _rows(draw: st.DrawFn, row: type, **fixed: Any) -> Any:
    values = {}
    for column in columns_of(row):
        value = _KINDS[column.kind]
        if column.many:
            size = len(values[column.rules["as_long_as"]]) if "as_long_as" in column.rules else None
            value = st.lists(value, min_size=size or 0, max_size=3 if size is None else size).map(tuple)
        value = st.none() | value if column.optional else value
        values[column.name] = fixed[column.name] if column.name in fixed else draw(value)
    return row(**values)


@st.composite
def records(draw: st.DrawFn) -> Record:
    graph = draw(st.none() | st.integers(0, 2).map(graph_row))
    said = {
        "graph": graph and graph.hash,
        "kind": draw(st.sampled_from(KINDS)),
        "outcome": draw(st.sampled_from(OUTCOMES)),
        "settings": draw(st.sampled_from(["{}", '{"batch":"8"}'])),
        "libraries": draw(st.sampled_from(["", '{"numpy":"2"}'])),
    }
    phases = st.sampled_from(PHASES)
    ops = [draw(_rows(OpRow, op=position, phase=draw(phases))) for position in range(draw(st.integers(0, 4)))]
    return Record(
        step=draw(_rows(StepRow, **said)),
        ops=tuple(ops),
        graph=graph,
        series=draw(st.lists(_rows(SeriesRow), max_size=2).map(tuple)),
        allocations=draw(st.none() | _rows(AllocationRow)),
    )
