"""Measures the H200 dataset on a machine where nothing can be installed: points in, files of records out.

    python benchmarks/h200/measure.py steps   --out FOLDER [--seconds 540]   the steps of points.py
    python benchmarks/h200/measure.py repeats --out FOLDER                   a tenth of them, on another occasion
    python benchmarks/h200/measure.py FILE    --out FOLDER                   a campaign file, as `foretell design` writes it

It is `foretell measure --campaign` with record files in place of the store, which needs pyarrow and DuckDB. A run that is
stopped goes on where it was, given the files of earlier runs with --done. Take the files in with `foretell store import`.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])

from points import REPEATS, STEPS

from foretell.errors import ForetellError
from foretell.measure.jobs import Campaign
from foretell.measure.record import Point, Record
from foretell.measure.record_file import RecordFile
from foretell.measure.worker import Worker, failure

_PART_BYTES = 150 * 10**6  # of a file of records before it is packed


def asked(what: str) -> list[Point]:
    if what in ("steps", "repeats"):
        return list(STEPS if what == "steps" else REPEATS)
    return list(Campaign.load(what).points)


def shown(record: Record) -> str:
    step = record.step
    if step.outcome != "ok":
        return f"{step.outcome}: {step.error[-300:]}"
    lost = (step.unattributed_seconds or 0) / (step.kernel_seconds or 1)
    times = [1e3 * t if t else 0.0 for t in (step.step_seconds, step.device_seconds, step.host_seconds)]
    return "step {:9.3f} device {:9.3f} host {:9.3f} ms".format(*times) + (
        f" {step.bound} {step.kernels} kernels, {lost:.2%} unattributed {'; '.join(step.marks)}"
    )


def pack(path: Path, to: Path) -> None:
    (to / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--done", type=Path, help="a file with the keys of points that are measured already")
    parser.add_argument("--seconds", type=float, default=540.0, help="start no point after this long")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds a point may take")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    began = time.monotonic()
    done = set(options.done.read_text().split()) if options.done else set()
    raw = options.out / "raw"
    waiting = [p for p in asked(options.what) if p.key not in done]
    part, worker = 0, Worker(options.device, instrument="warmed")
    worker.start()
    for i, point in enumerate(waiting):
        if time.monotonic() - began > options.seconds:
            break
        start = time.monotonic()
        try:
            record = worker.measure(point, options.limit)
        except ForetellError as error:  # the process is gone; the next point gets a fresh one
            record = failure(point, "error", str(error), worker.columns)
        file = RecordFile(raw / f"{Path(options.what).stem}-{part}.jsonl")
        file.append(record)
        part += file.path.stat().st_size > _PART_BYTES
        when, took = start - began, time.monotonic() - start
        print(f"{when:5.0f} s {took:5.2f}  {i + 1}/{len(waiting)} {point}: {shown(record)}", flush=True)
    worker.end()
    with ProcessPoolExecutor() as pool:
        list(pool.map(pack, sorted(raw.glob("*.jsonl")), [options.out] * 99))
    for path in raw.glob("*.jsonl"):
        path.unlink()
    raw.rmdir()


if __name__ == "__main__":
    main()
