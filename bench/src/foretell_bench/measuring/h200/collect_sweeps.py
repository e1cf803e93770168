"""Packs the batch sweeps of sweeps.py into a store: bench/data/h200-sweep, and of `five` bench/data/h200-five.

Light steps were measured without their graph: it is captured here, at two batches of each network and setting, and continued
to the others. Of the steps whose ops were timed the graph that was recorded stays, with the ops' times on the device; kernels,
allocations and series are left out, which nobody learns from here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from foretell.learn.fit import FAMILIES
from foretell.measure.record import GraphRow, OpRow, Record
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from foretell_bench.graphs import graph_of, named
from foretell_bench.measuring.h200.architectures import FAMILY
from foretell_bench.measuring.h200.collect import recorded_alone

HOST_BOUND: Final = 0.8  # of the step is issuing


def with_graph(record: Record) -> Record:
    settings = json.loads(record.step.settings)
    batch = int(settings.pop("batch"))
    graph = graph_of(named(record.step.source, settings, batch))
    row = GraphRow(hash=graph.content_hash, name=graph.name, file=graph.to_bytes(packed=False))
    return dataclasses.replace(record, step=dataclasses.replace(record.step, graph=row.hash), graph=row)


def slim(record: Record) -> Record:
    def of(op: OpRow) -> OpRow:
        seconds = None if op.device_seconds is None else float(f"{op.device_seconds:.4g}")
        none: dict[str, Any] = {"dispatch_seconds": None, "issue_seconds": None, "kernels": (), "kernel_seconds": ()}
        return dataclasses.replace(op, device_seconds=seconds, **none)

    ops = () if recorded_alone(record) else tuple(map(of, record.ops))
    return dataclasses.replace(record, ops=ops, series=(), allocations=None)


def records(paths: list[Path], outcomes: Counter[str]) -> Iterator[Record]:
    """In the order of networks and settings, so that a pair of captures serves all batches."""
    every = [record for path in paths for record in RecordFile(path).records()]
    for record in sorted(every, key=lambda r: (r.step.source, r.step.precision, r.step.settings)):
        outcomes[record.step.outcome] += 1
        if record.step.outcome == "ok":
            yield slim(record if record.graph else with_graph(record))


def described(store: Store) -> str:
    """How far steps vary, and how well the two batches around one predict its time and memory."""
    sweeps: dict[tuple[str, str], list[tuple[int, float, float]]] = defaultdict(list)
    spreads, issued = [], []
    for step in store.steps():
        settings = json.loads(step.settings)
        batch = int(settings.pop("batch"))
        found = (batch, step.step_seconds or 0.0, float(step.peak_allocated or 0))
        sweeps[step.source, json.dumps(settings, sort_keys=True)].append(found)
        spreads.append((step.step_high or 0.0) / (step.step_low or 1.0) - 1)
        issued.append((step.issue_seconds or 0.0) > HOST_BOUND * (step.step_seconds or 0.0))
    errors: list[list[float]] = [[], []]
    for sweep in sweeps.values():
        ordered = sorted(sweep)
        for low, own, high in zip(ordered, ordered[1:], ordered[2:], strict=False):
            share = math.log(own[0] / low[0]) / math.log(high[0] / low[0])
            for which in (1, 2):
                between = low[which] ** (1 - share) * high[which] ** share
                errors[which - 1].append(abs(between / own[which] - 1))
    time, memory = (f"{fmean(those):.1%} on average, {median(those):.1%} in the median" for those in errors)
    return (
        f"{len(spreads)} steps; from the 10th to the 90th percentile of a step's repetitions {median(spreads):.1%} in the "
        f"median; issuing takes over {HOST_BOUND:.0%} of the step in {fmean(issued):.0%}. Interpolated between the batches "
        f"around it, the time of a step has an error of {time}, its memory of {memory}."
    )


def run(files: list[Path], to: Path) -> None:
    """Pack these files; without any, print how far the steps that are there vary by themselves."""
    if not files:
        print(described(Store(to)))
        return
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Store(folder)
        print(f"{fresh.append(records(files, outcomes))} records written; outcomes {dict(outcomes)}")
        fresh.merge()
        shutil.copytree(folder, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*lock"))
    store = Store(to)
    families = {source: FAMILY[source] for source in sorted({step.source for step in store.steps()})}
    (to / FAMILIES).write_text(json.dumps(families, indent=0) + "\n")
    print(f"{store.size() / 1e6:.1f} MB in all")
