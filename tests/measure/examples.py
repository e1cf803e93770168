"""Records to store: a plain one by number, and any at all for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from foretell.measure.record import OUTCOMES, AllocationRow, GraphRow, OpRow, Point, Record, SeriesRow, StepRow
from foretell.store.tables import columns


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
    graph = GraphRow(hash=f"{number % 3:064x}", name="resnet18", file=bytes([number % 3]) * 100)
    return Record(
        step=step(number, graph=graph.hash, **changed),
        ops=tuple(
            OpRow(
                op=position,
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


_text = st.text(max_size=12)
_number = st.floats(allow_nan=False)
_whole = st.integers(-(2**63), 2**63 - 1)
_KINDS = {
    "text": _text,
    "whole": _whole,
    "number": _number,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=20),
    "texts": st.lists(_text, max_size=3).map(tuple),
    "wholes": st.lists(_whole, max_size=3).map(tuple),
    "numbers": st.lists(_number, max_size=3).map(tuple),
}


def _rows(table: str, kind: type, **fixed: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    optional = {n for n in kind.__dataclass_fields__ if "None" in str(kind.__dataclass_fields__[n].type)}  # type: ignore[attr-defined]
    values = {
        column.name: (st.none() | _KINDS[column.kind]) if column.name in optional else _KINDS[column.kind]
        for column in columns(table)
        if not column.extra
    }
    return st.builds(kind, **(values | fixed))


@st.composite
def records(draw: st.DrawFn) -> Record:
    graph = draw(st.none() | _rows("graphs", GraphRow))
    hash = st.just(graph.hash) if isinstance(graph, GraphRow) else st.none()
    return Record(
        step=draw(_rows("steps", StepRow, graph=hash, outcome=st.sampled_from(OUTCOMES))),  # type: ignore[arg-type]
        ops=draw(st.lists(_rows("ops", OpRow), max_size=4).map(tuple)),  # type: ignore[arg-type]
        graph=graph,  # type: ignore[arg-type]
        series=draw(st.lists(_rows("series", SeriesRow), max_size=2).map(tuple)),  # type: ignore[arg-type]
        allocations=draw(st.none() | _rows("allocations", AllocationRow)),  # type: ignore[arg-type]
    )
