"""Lines of runs from what ranks and counters recorded: of hosts with a share of a core, and of workers that share a GPU."""

from __future__ import annotations

import gzip
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from foretell.plans import Plan
from foretell_bench.emulated.readings import (
    DIGITS,
    INTERVAL,
    Facts,
    Reading,
    as_lines,
    between,
    gap_share,
    means,
    rates,
    resource,
    software,
    trusted,
)
from foretell_bench.rounding import short

SMOOTH: Final = 5  # readings of processor time in one: a share is kept on average, not in every moment
BUSY: Final = 0.25  # of its share; below, a host only moves bytes, which takes a processor too
COPIED: Final = ("plan", "mbit", "servers", "joined", "date", "torch", "python", "machine", "cores")
_COUNTERS: Final = ("network_rx", "network_tx", "compute")  # of each host, in this order


def host_line(
    run: str, network: str, about: Mapping[str, Any], moments: Sequence[Mapping[str, Any]], readings: Sequence[Reading]
) -> tuple[Facts, list[Facts]]:
    """A job on hosts: its line, and the series of one rank of each kind."""
    plan = Plan.parse(about["plan"])
    ranks, series = [], []
    for host, own in enumerate(moments):
        ranks.append(host_facts(host, own, readings, about["share"], worker=host < plan.dp))
        if host in (0, plan.dp):  # one of a kind is enough to see what it does
            series.append({"run": run, "rank": host, **host_series(host, own, readings)})
    late = gap_share(between(readings, moments[0]["ends"][0], moments[0]["ends"][-1]))
    ranks = trusted(ranks, late)
    workers = [rank for rank in ranks if rank["role"] == "worker"]
    begin, end = min(m["begin"] for m in moments), max(m["ends"][-1] for m in moments)
    window = between(readings, begin, end)
    ours = sum(window[-1][4 + 3 * h] - window[0][4 + 3 * h] for h in range(len(moments))) / 1e9
    line: Facts = {
        "run": run, **about, "workers": plan.dp, "servers": plan.servers, "asynchronous": plan.asynchronous,
        "architecture": f"box/{network}", "job_seconds": end - begin,
        "start_seconds": max(m["ready"] for m in moments[: plan.dp]) - begin,
        "step_time": max(rank["step_seconds"] for rank in workers), "gap_share": late, **means(workers),
        "finite": all(m["finite"] for m in moments), "ranks": ranks,
        "others_cores": (window[-1][1] - window[0][1] - ours) / (window[-1][0] - window[0][0]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), **software(), "cores": os.cpu_count(),
    }  # fmt: skip
    return short(line, DIGITS), series


def host_facts(
    host: int, moments: Mapping[str, Any], readings: Sequence[Reading], share: float, *, worker: bool
) -> Facts:
    """Of the steps after the first, which is for warming up: their time, and the use of three resources."""
    ends = moments["ends"]
    steps, begin, length = [b - a for a, b in pairwise(ends)], ends[0], ends[-1] - ends[0]
    seen = between(readings, begin - INTERVAL, ends[-1] + INTERVAL)
    first = 2 + 3 * host
    received, sent = (seen[-1][first + i] - seen[0][first + i] if seen else 0 for i in (0, 1))
    facts: Facts = {
        "role": "worker" if worker else "server", "step_seconds": median(steps), "steps": steps,
        "first_step_seconds": ends[0] - moments["ready"], "ready_seconds": moments["ready"] - moments["begin"],
        "received_bytes": received / len(steps), "sent_bytes": sent / len(steps),
    }  # fmt: skip
    for i, name in enumerate(_COUNTERS):
        found = rates(seen[::SMOOTH] if name == "compute" else seen, first + i, begin)
        if name == "compute":  # share of the host's own processor that is in use
            used = [(at, rate / 1e9 / share) for at, rate in found]
            found = [(at, rate if rate > BUSY else 0.0) for at, rate in used]
        facts |= resource(name, found, length, len(steps))
    return facts


def host_series(host: int, moments: Mapping[str, Any], readings: Sequence[Reading]) -> Facts:
    """Its counters, from one reading to the next."""
    ends = moments["ends"]
    pairs = list(pairwise(between(readings, ends[0] - INTERVAL, ends[-1] + INTERVAL)))
    received, sent, compute = ([round(b[2 + 3 * host + i] - a[2 + 3 * host + i]) for a, b in pairs] for i in range(3))
    return {
        "steps_end_ms": [round(1e3 * (e - ends[0]), 1) for e in ends],
        "ms": [round(1e3 * (b[0] - a[0]), 1) for a, b in pairs],
        "received": received, "sent": sent, "cpu_us": [round(n / 1e3) for n in compute],
    }  # fmt: skip


# Workers that share a GPU.


def collect(lines: Iterable[Mapping[str, Any]], counters: Sequence[Reading], folder: Path) -> tuple[int, int]:
    """Writes a row of every batch; returns how many there are, and how many have targets of device and network.

    `counters` are those of the device: [nanoseconds, share in use, share of bandwidth since the one before].
    """
    made = [batch_row(line, row, counters) for line in lines for row in line.get("rows", ())]
    folder.mkdir(parents=True, exist_ok=True)
    runs, series = [short(row, DIGITS) for row, _ in made], [own for _, own in made]
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(as_lines(runs).encode(), mtime=0))
    (folder / "series.jsonl.gz").write_bytes(gzip.compress(as_lines(series).encode(), mtime=0))
    return len(made), sum("network_tx_peak" in row and "device_peak" in row for row, _ in made)


def batch_row(line: Mapping[str, Any], row: Mapping[str, Any], counters: Sequence[Reading]) -> tuple[Facts, Facts]:
    """A batch of a network in a setting, and the series of its first worker."""
    workers = row["workers"]
    readings = spaced([[(row["zero"][0] + r[0]) / 1e9, *r[1:]] for r in row["readings"]])
    late = gap_share(readings)
    ranks = trusted([worker_facts(i, one, readings) for i, one in enumerate(workers)], late)
    begin, end = min(w["begin"] for w in workers), max(w["ends"][-1] for w in workers)
    batch, steps = workers[0]["batch"], len(workers[0]["ends"])
    run = f"{line['setting']}/{line['network']}/{batch}"
    facts: Facts = {
        "run": run, "architecture": f"box/{line['network']}", "batch": batch, "workers": len(workers), "steps": steps,
        "step_time": max(rank["step_seconds"] for rank in ranks), "gap_share": late, **means(ranks),
        "finite": all(w["finite"] for w in workers), "ranks": ranks, **{name: line[name] for name in COPIED},
    }  # fmt: skip
    used: list[float] = []
    if "device" in row:
        facts |= {f"device_{name}": value for name, value in device_facts(row["device"], steps).items()}
        used = row["device"]["busy_us"]
    facts |= bandwidth_facts(counters, begin, end, steps)
    seen = list(pairwise(readings))
    return facts, {
        "run": run, "steps_end_ms": [round((e - begin) / 1e6, 1) for e in workers[0]["ends"]],
        "ms": [round(1e3 * (b[0] - a[0]), 1) for a, b in seen],
        "received": [b[1] - a[1] for a, b in seen], "sent": [b[2] - a[2] for a, b in seen],
        "device_us_each_ms": used,
    }  # fmt: skip


def worker_facts(number: int, recorded: Mapping[str, Any], readings: Sequence[Reading]) -> Facts:
    begin, ends = recorded["begin"] / 1e9, [e / 1e9 for e in recorded["ends"]]
    steps = [b - a for a, b in pairwise([begin, *ends])]
    seen = between(readings, begin - INTERVAL, ends[-1] + INTERVAL)
    facts: Facts = {"step_seconds": median(steps), "steps": steps}
    for column, name, what in ((1, "network_rx", "received_bytes"), (2, "network_tx", "sent_bytes")):
        place = column + 2 * number
        facts[what] = (seen[-1][place] - seen[0][place] if seen else 0) / len(steps)
        facts |= resource(name, rates(seen, place, begin), ends[-1] - begin, len(steps))
    if "active_ns" in recorded:
        facts |= {"kernels": recorded["kernels"] / len(steps), "staged_seconds": recorded["staged_ns"] / 1e9 / len(steps),
                  "kernel_seconds": recorded["active_ns"] / 1e9 / len(steps)}  # fmt: skip
    return facts


def device_facts(device: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Whoever's kernels run; the peak is of 5 ms, or of all where that is less."""
    active, whole = device["active_ns"] / 1e9, (device["end"] - device["begin"]) / 1e9
    bins, width = device["busy_us"], min(len(device["busy_us"]), round(1e3 * INTERVAL))
    peak = max(sum(bins[i : i + width]) / 1e6 for i in range(len(bins) - width + 1)) / min(width / 1e3, whole)
    return {"idle_seconds": (whole - active) / steps, "active_seconds": active / steps, "peak": min(1.0, peak)}


def bandwidth_facts(counters: Sequence[Reading], begin: float, end: float, steps: int) -> dict[str, float]:
    """Of the device's own counter of its memory bandwidth; nothing where there are no readings."""
    first = bisect_left(counters, begin, key=lambda c: c[0])
    last = bisect_right(counters, end, key=lambda c: c[0])
    seen = [(a, b) for a, b in pairwise(counters[max(0, first - 1) : last + 1]) if b[2] >= 0]
    if len(seen) < 2:
        return {}
    points = [(max(0.0, (a[0] - begin) / 1e9), b[2]) for a, b in seen]
    return resource("memory_bandwidth", points, (end - begin) / 1e9, steps)


def spaced(readings: Sequence[Reading]) -> list[Reading]:
    """Those that are as far apart as on hosts."""
    kept = list(readings[:1])
    for reading in readings[1:]:
        if reading[0] - kept[-1][0] >= 0.9 * INTERVAL:
            kept.append(reading)
    return kept
