"""`mlperf_training`, ResNet: from one submission of a system to another of its sizes and batches.

A step is a time a sample, which the one submission gives, a fixed time, and what of the all-reduce does not hide. The
fixed time (starting and draining some hundred kernels, whatever the batch) and how far the slowest of many devices lies
behind are fitted on all systems but the one that is tested. Linear scaling, the reference, knows samples alone.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

import numpy as np

from foretell.bench.figures import Figure, relative_errors
from foretell.bench.overlap import exposed_seconds, slowest_of
from foretell.bench.rows import Row, Say, number, read_rows
from foretell.cost.collectives import collective_seconds
from foretell.hardware import Cluster, Node, device, host, link, recognise
from foretell.program import Collective, Group
from foretell.units import Bytes, BytesPerSecond, Seconds

SOURCE = "mlperf_training"
_COLUMNS = ("round", "org", "benchmark", "accelerator", "acc_per_node", "num_acc", "global_batch_size", "step_time_s",
            "host_network")  # fmt: skip
_GRADIENTS: Bytes = 2 * 25_557_032  # ResNet-50 in fp16, as submitters send them
_WINDOW = 0.5  # gradients go out during the backward pass of all but the stem
_FIXED_TRIED = tuple(tenths * 1e-4 for tenths in range(0, 101, 5))  # seconds
_SPREAD_TRIED = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)  # standard deviation of a device's step, to its mean
_PORTS = re.compile(r"(\d+)\s*x\b.*?(\d+)\s*gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Submission:
    device: str | None  # None: not in the catalogue, and its all-reduce is taken as hidden
    devices: int
    node_size: int
    port: BytesPerSecond | None  # a node's way out, where the submission names it
    batch: float  # a device
    step: Seconds


@dataclass(frozen=True, slots=True)
class _Pair:
    system: str  # round, submitter, accelerator
    known: _Submission
    wanted: _Submission


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    say(f"pairing {SOURCE}")
    pairs, unknown = _pairs(read_rows(data, SOURCE, _COLUMNS))
    systems = np.array([pair.system for pair in pairs])
    if len(set(systems)) < 2:
        return [Figure(source=SOURCE, measure="ResNet, mean error", value=None, note="too few pairs of submissions")]
    guesses = list(product(_FIXED_TRIED, _SPREAD_TRIED))
    tried = np.array([_off(pairs, *guess) for guess in guesses])
    errors = np.zeros(len(pairs))
    for system in set(systems):
        best = int(tried[:, systems != system].mean(axis=1).argmin())
        errors[systems == system] = tried[best, systems == system]
    fixed, spread = guesses[int(tried.mean(axis=1).argmin())]
    steps = [pair.wanted.step for pair in pairs]
    linear = relative_errors([p.known.step * p.wanted.batch / p.known.batch for p in pairs], steps)
    named = ", ".join(f"{name or 'unnamed'} {count}" for name, count in sorted(unknown.items()))
    note = f"the bar is half of linear scaling's; fixed part {fixed * 1e3:.1f} ms, spread {spread:.0%}"
    if named:
        note += f"; without an all-reduce, as not in the catalogue: {named}"
    return [
        Figure(
            source=SOURCE, measure="ResNet, step time from another submission, mean error", value=float(errors.mean()),
            bar=float(linear.mean()) / 2, rows=len(pairs),
            note=note,
        ),
        Figure(source=SOURCE, measure="linear scaling: the same", value=float(linear.mean()), rows=len(pairs)),
    ]  # fmt: skip


def _pairs(rows: Iterable[Row]) -> tuple[list[_Pair], Mapping[str, int]]:
    """Ordered pairs of one submitter, round and accelerator that differ in size, and rows of devices we do not know."""
    systems: dict[str, set[_Submission]] = defaultdict(set)
    unknown: dict[str, int] = defaultdict(int)
    for row in rows:
        devices, batch, step = (number(row, c) for c in ("num_acc", "global_batch_size", "step_time_s"))
        if row["benchmark"] != "resnet" or not devices or not batch or not step:
            continue
        known = recognise(row["accelerator"])
        if known is None:
            unknown[row["accelerator"]] += 1
        node_size = int(number(row, "acc_per_node") or (known.node_size if known else 1))
        made = _Submission(
            known.name if known else None, int(devices), node_size, _port(row["host_network"]), batch / devices, step
        )
        systems[" ".join((row["round"], row["org"], row["accelerator"]))].add(made)
    return list(_ordered(systems)), unknown


def _ordered(systems: Mapping[str, set[_Submission]]) -> Iterator[_Pair]:
    for system, submissions in systems.items():
        by_size = sorted(submissions, key=lambda s: (s.devices, s.batch, s.step))
        yield from (_Pair(system, a, b) for a, b in permutations(by_size, 2) if a.devices != b.devices)


def _port(network: str) -> BytesPerSecond | None:
    """What `Management: 1x Ethernet 40Gb/s, Compute: 8x ConnectX-6 IB HDR 200Gb/s` gives a node's collectives."""
    parts = [p for p in re.split(r"[,+]", network) if not re.search("management|storage|ethernet", p, re.IGNORECASE)]
    rates = [int(match[1]) * int(match[2]) * 1e9 / 8 for part in parts if (match := _PORTS.search(part))]
    return max(rates, default=None)


def _off(pairs: Iterable[_Pair], fixed: Seconds, spread: float) -> np.ndarray:
    pairs = list(pairs)
    return relative_errors([_predict(pair, fixed, spread) for pair in pairs], [pair.wanted.step for pair in pairs])


def _predict(pair: _Pair, fixed: Seconds, spread: float) -> Seconds:
    a, b = pair.known, pair.wanted
    low, high = 0.0, a.step / a.batch  # a sample takes what makes the known submission come out right
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if _step(a, middle, fixed, spread) < a.step else (low, middle)
    return _step(b, low, fixed, spread)


def _step(submission: _Submission, sample: Seconds, fixed: Seconds, spread: float) -> Seconds:
    compute = (fixed + sample * submission.batch) * (1 + spread * slowest_of(submission.devices))
    return compute + exposed_seconds(compute, _all_reduce(submission), _GRADIENTS, _WINDOW)


@functools.cache
def _all_reduce(submission: _Submission) -> Seconds:
    if submission.device is None:
        return 0.0
    made, devices = device(submission.device), submission.devices
    full, rest = divmod(devices, submission.node_size)
    sizes = [submission.node_size] * full + [rest] * (rest > 0)
    usual = host(made.host)
    nodes = tuple(
        Node(device=made, count=size, host=usual, inside=link(made.inside), port=submission.port) for size in sizes
    )
    whole = Collective(
        kind="all-reduce", nbytes=_GRADIENTS, group=Group(size=devices), name="gradients", starts_after=0, waited_for_by=1
    )  # fmt: skip
    return collective_seconds(whole, Cluster(nodes=nodes, between=link(made.between)))
