"""Measured ops as a table to learn from: one row for each distinct op of a step, with what it took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe
from foretell.graph import Graph, Layout, Signature
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.measure.record import StepRow
from foretell.store.store import Store
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
RECORDED_ALONE: Final = "recorded alone"  # the mark of a step whose ops' times are not those of plain steps


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Rows of ops. `step` is -1 for ops that were measured by themselves."""

    names: Sequence[str]
    descriptions: Sequence[Description]
    seconds: Floats
    count: Ints  # how often the step runs it
    step: Ints  # index into the steps
    share: Floats  # of the step's device time

    def __len__(self) -> int:
        return len(self.names)

    def where(self, chosen: npt.NDArray[np.bool_]) -> OpTable:
        picked = np.flatnonzero(chosen).tolist()
        return OpTable(
            names=[self.names[i] for i in picked], descriptions=[self.descriptions[i] for i in picked],
            seconds=self.seconds[picked], count=self.count[picked], step=self.step[picked], share=self.share[picked],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The steps of a store on one device, their graphs and their ops."""

    device: Device
    steps: Sequence[StepRow]
    graphs: Mapping[str, Graph]
    ops: OpTable


def load(store: Store, device: str = "h200", progress: Callable[[str], None] = lambda text: None) -> Measured:
    """What a store holds of a device. Ops whose times are not those of plain steps are left out."""
    target = known_device(device)
    steps = [
        s for s in store.steps(f"device = '{target.name}'") if s.outcome in ("ok", "nan-loss") and s.world_size == 1
    ]
    progress("reading graphs")
    graphs = store.graphs({s.graph for s in steps if s.graph is not None})
    names: list[str] = []
    descriptions: list[Description] = []
    columns: list[tuple[Seconds, int, int, float]] = []
    known: dict[tuple[Signature, bool], Description] = {}
    for number, seconds, launched in _op_times(store, steps):
        step = steps[number]
        if number % 50 == 0:
            progress(f"reading measured steps: {number} of {len(steps)}")
        assert step.graph is not None
        graph = graphs[step.graph]
        if any(mark.startswith(RECORDED_ALONE) for mark in step.marks):
            continue
        tf32 = graph.precision == "tf32"
        total = sum(s * op.times for s, op in zip(seconds, graph.ops, strict=True)) or 1.0
        for signature, (mean, times) in _distinct(graph, seconds, launched).items():
            key = (signature, tf32)
            if key not in known:
                known[key] = describe(signature, target, tf32=tf32)
            names.append(signature.name)
            descriptions.append(known[key])
            columns.append((mean, times, number if step.kind == "step" else -1, mean * times / total))
    took, count, index, share = (np.array(c) for c in zip(*columns, strict=True))
    ops = OpTable(names=names, descriptions=descriptions, seconds=took, count=count, step=index, share=share)
    return Measured(device=target, steps=steps, graphs=graphs, ops=ops)


def products(rows: Iterable[tuple[int, int, int, Seconds]], device: Device, dtype: str = "bfloat16") -> OpTable:
    """Matrix products (m, n, k) measured elsewhere, as `linear` calls them: the second factor is a transposed weight."""
    descriptions, seconds = [], []
    for m, n, k, took in rows:
        a, b, out = Layout((m, k), (k, 1), dtype), Layout((k, n), (1, k), dtype), Layout((m, n), (n, 1), dtype)
        descriptions.append(describe(Signature("aten.mm.default", (a, b), (out,)), device, tf32=False))
        seconds.append(took)
    size = len(seconds)
    return OpTable(
        names=["aten.mm"] * size, descriptions=descriptions, seconds=np.array(seconds), count=np.ones(size, np.int64),
        step=np.full(size, -1), share=np.zeros(size),
    )  # fmt: skip


def joined(tables: Sequence[OpTable]) -> OpTable:
    return OpTable(
        names=[n for t in tables for n in t.names], descriptions=[d for t in tables for d in t.descriptions],
        seconds=np.concatenate([t.seconds for t in tables]), count=np.concatenate([t.count for t in tables]),
        step=np.concatenate([t.step for t in tables]), share=np.concatenate([t.share for t in tables]),
    )  # fmt: skip


def _op_times(store: Store, steps: Sequence[StepRow]) -> Iterable[tuple[int, Floats, npt.NDArray[np.bool_]]]:
    """(index of the step, seconds of each op, whether it launches a kernel); a step may have none."""
    table = store.query("select step, device_seconds, len(kernels) > 0 as launched from ops order by step, op")
    ids = table["step"].to_numpy(zero_copy_only=False)
    seconds = table["device_seconds"].to_numpy(zero_copy_only=False)
    launched = table["launched"].to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    spans = {ids[a]: (a, b) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)}
    for number, step in enumerate(steps):
        if step.id in spans:
            a, b = spans[step.id]
            yield number, seconds[a:b], launched[a:b]


def _distinct(
    graph: Graph, seconds: Floats, launched: npt.NDArray[np.bool_]
) -> dict[Signature, tuple[Seconds, int]]:  # fmt: skip
    """Mean time and count of each distinct op that launches a kernel."""
    sums: dict[Signature, tuple[float, int]] = {}
    for op, took, any_kernel in zip(graph.ops, seconds, launched, strict=True):
        if any_kernel:
            total, times = sums.get(op.signature, (0.0, 0))
            sums[op.signature] = (total + float(took) * op.times, times + op.times)
    return {signature: (total / times, times) for signature, (total, times) in sums.items()}
