"""Measured ops as a table to learn from: one row for each distinct op of a step, with its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe
from foretell.cost.roofline import on_tf32
from foretell.design.blind import is_blind
from foretell.graph import Graph, Signature
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.measure.record import MEASURED, StepRow
from foretell.store.store import Store
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Timed = tuple[
    int, Graph, Sequence[Seconds], Sequence[bool]
]  # index, graph, seconds of each op, whether it ran a kernel
_GONE: Final = -2  # an op of a step that is left out
RECORDED_ALONE: Final = "recorded alone"  # the mark of a step whose ops' times are not those of plain steps


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Rows of ops. `step` is -1 for ops that were measured by themselves."""

    signatures: Sequence[Signature]
    descriptions: Sequence[Description]
    seconds: Floats
    count: Ints  # how often the step runs it
    step: Ints  # index into the steps
    share: Floats  # of the step's device time

    def __len__(self) -> int:
        return len(self.signatures)

    @property
    def names(self) -> list[str]:
        return [s.name for s in self.signatures]

    @classmethod
    def alone(cls, signatures: Sequence[Signature], descriptions: Sequence[Description], seconds: Floats) -> OpTable:
        """Ops that were measured by themselves."""
        size = len(signatures)
        columns = {"count": np.ones(size, np.int64), "step": np.full(size, -1), "share": np.zeros(size)}
        return cls(signatures=signatures, descriptions=descriptions, seconds=seconds, **columns)

    def where(self, chosen: npt.NDArray[np.bool_]) -> OpTable:
        picked = np.flatnonzero(chosen).tolist()
        return OpTable(
            signatures=[self.signatures[i] for i in picked],
            descriptions=[self.descriptions[i] for i in picked],
            **{name: getattr(self, name)[picked] for name in ("seconds", "count", "step", "share")},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The steps of a store on one device, their graphs and their ops."""

    device: Device
    steps: Sequence[StepRow]
    graphs: Mapping[str, Graph]
    ops: OpTable

    def graph(self, index: int) -> Graph:
        return self.graphs[self.steps[index].graph or ""]

    def is_timed(self, index: int) -> bool:
        """Whether a step ran plainly, with a time for each of its ops."""
        s = self.steps[index]
        return (
            s.kind == "step"
            and not is_recorded_alone(s)
            and bool(s.device_seconds and s.step_seconds and s.host_seconds)
        )


def is_recorded_alone(step: StepRow) -> bool:
    return any(mark.startswith(RECORDED_ALONE) for mark in step.marks)


def load_to_fit(
    stores: Sequence[Store], device: str = "h200", progress: Callable[[str], None] = lambda text: None
) -> Measured:
    """What stores hold of a device, but for generated networks that judge models."""
    return merged([without_blind(load(store, device, progress)) for store in stores])


def load(store: Store, device: str = "h200", progress: Callable[[str], None] = lambda text: None) -> Measured:
    """What a store holds of a device. Ops whose times are not those of plain steps are left out."""
    target = known_device(device)
    found = store.steps(f"device = '{target.name}'")
    steps = [s for s in found if s.kind in MEASURED and s.outcome in ("ok", "nan-loss") and s.world_size == 1]
    progress("reading graphs")
    graphs = store.graphs({s.graph for s in steps if s.graph is not None})
    ops = op_table(_timed(store, steps, graphs, progress), target)
    return Measured(device=target, steps=steps, graphs=graphs, ops=ops)


def op_table(steps: Iterable[Timed], device: Device) -> OpTable:
    """A row for each distinct op of each step that ran a kernel: its mean time and how often it runs."""
    signatures: list[Signature] = []
    descriptions: list[Description] = []
    columns: list[tuple[Seconds, int, int, float]] = []
    described = cache(lambda signature, tf32: describe(signature, device, tf32=tf32))
    for index, graph, seconds, launched in steps:
        sums: dict[Signature, tuple[Seconds, int]] = {}
        for op, one, any_kernel in zip(graph.ops, seconds, launched, strict=True):
            if any_kernel:
                total, times = sums.get(op.signature, (0.0, 0))
                sums[op.signature] = (total + one * op.times, times + op.times)
        whole = sum(total for total, _ in sums.values()) or 1.0
        for signature, (total, times) in sums.items():
            signatures.append(signature)
            descriptions.append(described(signature, on_tf32(signature.name, graph.precision, device)))
            columns.append((total / times, times, index, total / whole))
    mean, count, step, share = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    return OpTable(
        signatures=signatures,
        descriptions=descriptions,
        seconds=mean,
        count=count.astype(np.int64),
        step=step.astype(np.int64),
        share=share,
    )


def without_blind(measured: Measured) -> Measured:
    """Without the steps of generated networks that no fit may see."""
    kept = [i for i, s in enumerate(measured.steps) if not is_blind(s.source)]
    place = np.full(len(measured.steps) + 1, _GONE)
    place[kept] = np.arange(len(kept))
    place[-1] = -1  # ops that were measured by themselves stay so
    ops = replace(measured.ops, step=place[measured.ops.step])
    return replace(measured, steps=[measured.steps[i] for i in kept], ops=ops.where(ops.step != _GONE))


def merged(parts: Sequence[Measured]) -> Measured:
    """Several stores of one device as one."""
    steps: list[StepRow] = []
    tables: list[OpTable] = []
    for part in parts:
        ops = part.ops
        tables.append(replace(ops, step=np.where(ops.step >= 0, ops.step + len(steps), -1)))
        steps += part.steps
    graphs = {key: graph for part in parts for key, graph in part.graphs.items()}
    return Measured(device=parts[0].device, steps=steps, graphs=graphs, ops=joined(tables))


def joined(tables: Sequence[OpTable]) -> OpTable:
    return OpTable(
        signatures=[s for t in tables for s in t.signatures],
        descriptions=[d for t in tables for d in t.descriptions],
        **{name: np.concatenate([getattr(t, name) for t in tables]) for name in ("seconds", "count", "step", "share")},
    )


def _timed(
    store: Store, steps: Sequence[StepRow], graphs: Mapping[str, Graph], progress: Callable[[str], None]
) -> Iterator[Timed]:
    table = store.query("select step, device_seconds, len(kernels) > 0 as launched from ops order by step, op")
    ids, seconds, launched = (
        table[name].to_numpy(zero_copy_only=False) for name in ("step", "device_seconds", "launched")
    )
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    spans = {ids[a]: slice(a, b) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)}
    for number, step in enumerate(steps):
        if number % 50 == 0:
            progress(f"reading measured steps: {number} of {len(steps)}")
        if step.id in spans and step.graph is not None and (step.kind == "operators" or not is_recorded_alone(step)):
            span = spans[step.id]
            index = number if step.kind == "step" else -1
            yield index, graphs[step.graph], seconds[span].tolist(), launched[span].tolist()
