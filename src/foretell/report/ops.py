"""The operators of a step, added up by kind: which ones take the device's time."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.forecasting.result import Forecast
from foretell.graph import Layout, Op
from foretell.precision import UNIT_OF_DTYPE
from foretell.report.findings import op_seconds
from foretell.units import Bytes, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorUse:
    """All calls of one operator in one phase; `heaviest_*` are of the call that takes longest."""

    name: str
    phase: str
    calls: int
    seconds: Seconds
    share: float  # of the device time
    output_bytes: Bytes
    heaviest_module: str
    heaviest_shape: str


def operators(forecast: Forecast) -> tuple[OperatorUse, ...]:
    """Every operator by phase, the most expensive first."""
    seconds = op_seconds(forecast)
    total = sum(seconds)
    groups: dict[tuple[str, str], list[int]] = {}
    for position, op in enumerate(forecast.graph.ops):
        groups.setdefault((op.signature.name, op.phase), []).append(position)
    uses = [
        _use(name, phase, [(forecast.graph.ops[p], seconds[p]) for p in positions], total)
        for (name, phase), positions in groups.items()
    ]
    return tuple(sorted(uses, key=lambda use: (-use.seconds, -use.output_bytes, use.name)))


def _use(name: str, phase: str, calls: list[tuple[Op, Seconds]], total: Seconds) -> OperatorUse:
    heaviest, _ = max(calls, key=lambda call: call[1] / call[0].times)
    spent = sum(seconds for _, seconds in calls)
    return OperatorUse(
        name=name,
        phase=phase,
        calls=sum(op.times for op, _ in calls),
        seconds=spent,
        share=spent / total if total else 0.0,
        output_bytes=sum(op.times * sum(layout.nbytes for layout in op.signature.outputs) for op, _ in calls),
        heaviest_module=heaviest.module,
        heaviest_shape=show_shape(heaviest),
    )


def show_shape(op: Op) -> str:
    """`64×256×56×56 bf16`: the op's largest tensor, which decides most of its work."""
    layouts = op.signature.inputs or op.signature.outputs
    return show_layout(max(layouts, key=lambda layout: layout.numel)) if layouts else ""


def show_layout(layout: Layout) -> str:
    return f"{'×'.join(map(str, layout.shape)) or 'scalar'} {UNIT_OF_DTYPE.get(layout.dtype, layout.dtype)}"


def short_name(operator: str) -> str:
    """`convolution` for `aten.convolution`: almost every operator is PyTorch's own."""
    return operator.removeprefix("aten.")
