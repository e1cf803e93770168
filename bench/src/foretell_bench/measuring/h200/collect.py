"""Packs record files from the H200 into the dataset, a store in bench/data/h200.

Left out are failures that say nothing about the point: memory that other points prepared at the same time had allocated, and
time limits of a round; and records whose ops could not be timed in plain steps, where another record of the point has
them. Times of ops that were not taken alone are dropped. Device times keep four digits, those of single kernels three,
and host times two: they move by a fifth between occasions. Host times of operators by themselves teach nothing and are
dropped, and so are kernels of theirs beyond the first few of thousands, and every allocation of a step that was measured
before. `anew` writes what is there again, as this version of the store does.

Until MENDED an op's time was the sum of its kernels', also where they ran side by side, as those of grouped convolutions
and recurrent layers do. Operators whose kernels may have done so are left out if they are older; they were measured again.
Older steps whose kernels did so keep what holds of the whole step, and lose the times of their ops.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from foretell.graph import Graph
from foretell.learn.fit import FAMILIES
from foretell.measure.record import OpRow, Record
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from foretell_bench.measuring.h200.architectures import FAMILY
from foretell_bench.measuring.h200.kinds.points import family_of
from foretell_bench.measuring.h200.unseen import kin

MENDED: Final = "2026-11-15T14:50"
SIDE_BY_SIDE: Final = 1.01  # kernels' seconds over the seconds with a kernel running
SPLIT: Final = 4  # kernels of the same name in one op, at least, where a library spreads it over streams
_MAX_KERNELS: Final = 32  # a recurrent layer launches some for every step of its sequence


def is_about_the_point(record: Record) -> bool:
    step = record.step
    crowded = "Process " in step.error or "CUDA error: out of memory" in step.error
    return step.outcome in ("ok", "nan-loss") or not (crowded or step.outcome == "time-limit")


def recorded_alone(record: Record) -> bool:
    """Its ops' times are from a recorded step: plain steps launch other kernels."""
    return any(mark.startswith("recorded alone") for mark in record.step.marks)


def recorded_in_company(record: Record) -> bool:
    """And other points were prepared on the device meanwhile."""
    return recorded_alone(record) and record.step.used_outside is None


def summed_side_by_side(record: Record) -> bool:
    """From before the mend, with ops whose kernels ran, or may have run, side by side."""
    step = record.step
    if step.date >= MENDED or not step.device_seconds:
        return False
    if step.kind == "step":
        return (step.kernel_seconds or 0.0) > SIDE_BY_SIDE * step.device_seconds
    return any(op.target.startswith(("aten.convolution", "aten._cudnn_rnn")) and is_split(op) for op in record.ops)


def is_split(op: OpRow) -> bool:
    work = Counter(name for name in op.kernels if not re.search("elementwise|Memset|Memcpy|reduce_kernel", name))
    return max(work.values(), default=0) >= SPLIT


def unpacked(record: Record) -> Record:
    """Graphs side by side compress far better than each by itself."""
    if record.graph is None:
        return record
    file = Graph.from_bytes(record.graph.file).to_bytes(packed=False)
    return dataclasses.replace(record, graph=dataclasses.replace(record.graph, file=file))


def rounded(record: Record) -> Record:
    if recorded_in_company(record) or summed_side_by_side(record):
        return dataclasses.replace(record, ops=())

    alone = record.step.kind == "operators"

    def of(op: OpRow) -> OpRow:
        dispatch, issue = (
            None if t is None or alone else float(f"{t:.2g}") for t in (op.dispatch_seconds, op.issue_seconds)
        )
        most = _MAX_KERNELS if alone else None
        device = None if op.device_seconds is None else float(f"{op.device_seconds:.4g}")
        return dataclasses.replace(
            op, device_seconds=device, dispatch_seconds=dispatch, issue_seconds=issue, kernels=op.kernels[:most],
            kernel_seconds=tuple(float(f"{t:.3g}") for t in op.kernel_seconds[:most]),
        )  # fmt: skip

    return dataclasses.replace(record, ops=tuple(map(of, record.ops)))


def read(paths: list[Path]) -> Iterator[Record]:
    for path in paths:
        for record in RecordFile(path).records(broken=lambda line, why: print(f"line {line} is no record: {why}")):
            if is_about_the_point(record):
                yield record


def _kept(records: Iterable[Record]) -> Iterator[Record]:
    """Operators whose times are not to be had teach nothing."""
    return (r for r in records if r.step.kind == "step" or not (summed_side_by_side(r) or recorded_in_company(r)))


def records(paths: list[Path]) -> Iterator[Record]:
    well = {record.step.point for record in read(paths) if record.step.outcome == "ok" and not recorded_alone(record)}
    return (unpacked(rounded(r)) for r in _kept(read(paths)) if not (recorded_alone(r) and r.step.point in well))


def allocations_once(records: Iterable[Record], points: Iterable[str] = ()) -> Iterator[Record]:
    """A step allocates alike on every occasion; `points` were measured before."""
    seen = set(points)
    for record in records:
        yield dataclasses.replace(record, allocations=None) if record.step.point in seen else record
        seen.add(record.step.point)


def run(files: list[Path], to: Path, *, anew: bool = False) -> None:
    store = Store(to)
    known = {step.id: step.point for step in store.steps()} if store.exists() else {}
    fresh_ones = (record for record in records(files) if record.step.id not in known)
    with tempfile.TemporaryDirectory() as folder:
        fresh = Store(folder)
        if anew:
            written = fresh.append(allocations_once(chain(map(rounded, _kept(store.records())), fresh_ones)))
        else:
            written = fresh.append(allocations_once(fresh_ones, known.values()))
        print(f"{written} records written")
        fresh.merge()
        if anew:
            shutil.rmtree(store.root)
        # Segments are named by their content: a new stay adds files, and changes none.
        shutil.copytree(folder, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*lock"))
    store = Store(to)
    sources = sorted({step.source for step in store.steps("kind = 'step'")} | FAMILY.keys())
    families = {source: FAMILY.get(source) or family_of(source) or kin(source) for source in sources}
    (to / FAMILIES).write_text(json.dumps(families, indent=0) + "\n")
    print(f"{store.size() / 1e6:.1f} MB in all")
