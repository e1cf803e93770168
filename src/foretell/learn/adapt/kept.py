"""Step times and collectives that a store or a record file holds, ready to fit a profile on."""

from __future__ import annotations

from pathlib import Path

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.learn.adapt.collectives import Timed, timed
from foretell.learn.adapt.operators import Recorded, recorded_of
from foretell.learn.adapt.steps import Step
from foretell.store.place import RecordPlace, found
from foretell.watching.steps_csv import CsvRow, steps_csv


def kept_steps(path: Path) -> list[Step]:
    """Of the jobs that were watched and the steps that were measured, a step each."""
    kept = found(path)
    rows = steps_csv(kept.steps())
    graphs = _graphs(kept, {row.graph for row in rows if row.is_graph and row.graph})
    recorded = _recorded(kept, {row.step for row in rows if row.step})
    steps = [_step(row, graphs, recorded) for row in rows if not row.is_graph or row.graph in graphs]
    if not steps:
        raise InputError(
            f"{path} holds no step of a known device and no watched job. Measure some with foretell measure, or watch a job "
            "as docs/guide/watching.md shows."
        )
    return steps


def kept_collectives(path: Path, on: str = "") -> tuple[list[Timed], Cluster]:
    """Its collectives, and the cluster they are fitted for: the one named, or as its ranks lay."""
    rows = [row for row in found(path).steps() if row.kind == "collective"]
    if not rows:
        raise InputError(f"{path} holds no collectives. Measure some under torchrun: foretell measure --collectives")
    cluster = Cluster.parse(on or max((row.cluster for row in rows), key=lambda laid: Cluster.parse(laid).devices))
    return timed(rows, cluster), cluster


def _step(row: CsvRow, graphs: dict[str, Graph], recorded: dict[str, Recorded]) -> Step:
    return Step(
        workload=graphs[row.graph or ""] if row.is_graph else row.source, on=row.cluster, plan=row.plan or None,
        settings=row.settings, seconds=row.seconds, allocated=row.allocated, reserved=row.reserved,
        recorded=recorded.get(row.step),
    )  # fmt: skip


def _recorded(kept: RecordPlace, steps: set[str]) -> dict[str, Recorded]:
    """Op by op, those of them that were."""
    found = {r.step.id: recorded_of(r) for r in kept.records() if r.step.id in steps} if steps else {}
    return {step: recorded for step, recorded in found.items() if recorded is not None}


def _graphs(kept: RecordPlace, hashes: set[str]) -> dict[str, Graph]:
    from foretell.store.store import Store

    if isinstance(kept, Store):
        return kept.graphs(hashes)
    rows = (record.graph for record in kept.records(graphs=True) if record.graph is not None)
    return {row.hash: Graph.from_bytes(row.file, name=row.name) for row in rows if row.hash in hashes}
