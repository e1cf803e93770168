"""From what workers that share a device told, rows of bench/data/box-gpu."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from box_gpu_rank import WORKERS
from box_runs import COUNTED, DIGITS, GAPS, INTERVAL, gap_share
from foretell_bench.rounding import short

from foretell.measure.record import SeriesRow
from foretell.measure.resources import Reduced, reduce_series

FOLDER: Final = Path(__file__).parents[1] / "data" / "box-gpu"
KEPT: Final = ("plan", "mbit", "servers", "joined", "date", "torch", "python", "machine", "cores")
Points = list[tuple[float, float]]  # since when, and what


def collect(lines: Iterable[Mapping[str, Any]], counters: Sequence[Sequence[float]], folder: Path = FOLDER) -> None:
    """`counters` are those of the device: [nanoseconds, share in use, share of bandwidth since the one before]."""
    made = [one_row(line, row, counters) for line in lines for row in line.get("rows", ())]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(short(row, DIGITS), separators=(",", ":")) + "\n" for row, _ in made)
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    text = "".join(json.dumps(series, separators=(",", ":")) + "\n" for _, series in made)
    (folder / "series.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(made)} rows, {sum('network_tx_peak' in row and 'device_peak' in row for row, _ in made)} with both")


def one_row(
    line: Mapping[str, Any], row: Mapping[str, Any], counters: Sequence[Sequence[float]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A batch of a network in a setting, and the series of its first worker."""
    told = row["workers"]
    readings = spaced([[(row["zero"][0] + r[0]) / 1e9, *r[1:]] for r in row["readings"]])
    ranks = [worker_facts(i, one, readings) for i, one in enumerate(told)]
    begin, end = min(t["begin"] for t in told), max(t["ends"][-1] for t in told)
    late = gap_share(readings)
    if late > GAPS:
        ranks = [{name: v for name, v in rank.items() if not name.endswith(COUNTED)} for rank in ranks]
    batch, steps = told[0]["batch"], len(told[0]["ends"])
    run = f"{line['setting']}/{line['network']}/{batch}"
    facts: dict[str, Any] = {
        "run": run, "architecture": f"box/{line['network']}", "batch": batch, "workers": WORKERS, "steps": steps,
        "step_time": max(rank["step_seconds"] for rank in ranks), "gap_share": late,
        **{name: fmean(rank[name] for rank in ranks) for name in ranks[0] if name.endswith(COUNTED)},
        "sent_bytes": fmean(rank["sent_bytes"] for rank in ranks),
        "received_bytes": fmean(rank["received_bytes"] for rank in ranks),
        "finite": all(t["finite"] for t in told), "ranks": ranks, **{name: line[name] for name in KEPT},
    }  # fmt: skip
    used: list[float] = []
    if "device" in row:
        facts |= {f"device_{name}": value for name, value in device_facts(row["device"], steps).items()}
        used = row["device"]["busy_us"]
    facts |= counted(counters, begin, end, steps)
    seen = list(pairwise(readings))
    return facts, {
        "run": run, "steps_end_ms": [round((e - begin) / 1e6, 1) for e in told[0]["ends"]],
        "ms": [round(1e3 * (b[0] - a[0]), 1) for a, b in seen],
        "received": [b[1] - a[1] for a, b in seen], "sent": [b[2] - a[2] for a, b in seen],
        "device_us_each_ms": used,
    }  # fmt: skip


def worker_facts(number: int, told: Mapping[str, Any], readings: Sequence[Sequence[float]]) -> dict[str, Any]:
    begin, ends = told["begin"] / 1e9, [e / 1e9 for e in told["ends"]]
    steps = [b - a for a, b in pairwise([begin, *ends])]
    first = bisect_left(readings, begin - INTERVAL, key=lambda r: r[0])
    seen = list(pairwise(readings[first : bisect_right(readings, ends[-1] + INTERVAL, key=lambda r: r[0])]))
    facts: dict[str, Any] = {"step_seconds": median(steps), "steps": steps}
    for column, name, what in ((1, "network_rx", "received_bytes"), (2, "network_tx", "sent_bytes")):
        place = column + 2 * number
        facts[what] = sum(b[place] - a[place] for a, b in seen) / len(steps)
        points = [(max(0.0, a[0] - begin), (b[place] - a[place]) / (b[0] - a[0])) for a, b in seen]
        facts |= reduced(name, points, ends[-1] - begin).columns(name, 1 / len(steps))
    if "active_ns" in told:
        facts |= {"kernels": told["kernels"] / len(steps), "staged_seconds": told["staged_ns"] / 1e9 / len(steps),
                  "kernel_seconds": told["active_ns"] / 1e9 / len(steps)}  # fmt: skip
    return facts


def device_facts(device: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Whoever's kernels run; the peak is of 5 ms, or of all where that is less."""
    active, whole = device["active_ns"] / 1e9, (device["end"] - device["begin"]) / 1e9
    bins, width = device["busy_us"], min(len(device["busy_us"]), round(1e3 * INTERVAL))
    peak = max(sum(bins[i : i + width]) / 1e6 for i in range(len(bins) - width + 1)) / min(width / 1e3, whole)
    return {"idle_seconds": (whole - active) / steps, "active_seconds": active / steps, "peak": min(1.0, peak)}


def counted(counters: Sequence[Sequence[float]], begin: int, end: int, steps: int) -> dict[str, float]:
    """What the device's own counter of its memory bandwidth says; nothing where there are no readings."""
    first, last = bisect_left(counters, begin, key=lambda c: c[0]), bisect_right(counters, end, key=lambda c: c[0])
    seen = [(a, b) for a, b in pairwise(counters[max(0, first - 1) : last + 1]) if b[2] >= 0]
    if len(seen) < 2:
        return {}
    points = [(max(0.0, (a[0] - begin) / 1e9), b[2]) for a, b in seen]
    return reduced("memory_bandwidth", points, (end - begin) / 1e9).columns("memory_bandwidth", 1 / steps)


def reduced(name: str, points: Points, length: float) -> Reduced:
    seconds, values = zip(*points, strict=True) if points else ((), ())
    return reduce_series(SeriesRow(resource=name, counter="", unit="", seconds=seconds, values=values), length)


def spaced(readings: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Those that are as far apart as in the box."""
    kept = list(readings[:1])
    for reading in readings[1:]:
        if reading[0] - kept[-1][0] >= 0.9 * INTERVAL:
            kept.append(reading)
    return kept
