"""`mlperf_training`, ResNet: from one submission of a system to another of its sizes and batches.

How a device's compute grows with its batch is what Foretell forecasts for ResNet-50 there; the known submission says how
many times longer its software takes. Gradients hide behind the backward pass, all but those of the first stage. How far
the slowest of many nodes lies behind is fitted on all systems but the one that is tested. Linear scaling, the reference,
knows samples alone.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from foretell.cost.collectives import collective_seconds
from foretell.forecasting.assemble import forecast
from foretell.graph import Graph
from foretell.graph.rescale import extend
from foretell.hardware import Cluster, Node, device, host, link, recognise
from foretell.program import Collective, Group
from foretell.units import Bytes, BytesPerSecond, Seconds
from foretell_bench.sources.overlap import exposed_seconds, slowest_of
from foretell_bench.sources.rows import Row, Say, number, read_rows
from foretell_bench.tables.figures import Figure, relative_errors

SOURCE = "mlperf_training"
_COLUMNS = ("round", "org", "benchmark", "accelerator", "acc_per_node", "num_acc", "global_batch_size", "step_time_s",
            "host_network")  # fmt: skip
_GRADIENTS: Bytes = 2 * 25_557_032  # ResNet-50 in fp16, as submitters send them
_LAST: Bytes = 2 * 225_344  # of them, those of stem and first stage, which the end of the backward pass makes
_WINDOW = 0.5  # gradients go out during the backward pass of all but the stem
_SPREAD_TRIED = tuple(percent / 100 for percent in range(16))  # standard deviation of a node's step, to its mean
_LIKE_THIS = "a100-80g-sxm"  # accelerators that are not in the catalogue are taken to fill as one of their years does
_TWO_BATCHES = (32, 64)
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
    compute = _Compute(say)
    tried = np.array([_off(pairs, compute, spread) for spread in _SPREAD_TRIED])
    errors = np.zeros(len(pairs))
    for system in set(systems):
        best = int(tried[:, systems != system].mean(axis=1).argmin())
        errors[systems == system] = tried[best, systems == system]
    spread = _SPREAD_TRIED[int(tried.mean(axis=1).argmin())]
    steps = [pair.wanted.step for pair in pairs]
    linear = relative_errors([p.known.step * p.wanted.batch / p.known.batch for p in pairs], steps)
    named = ", ".join(f"{name or 'unnamed'} {count}" for name, count in sorted(unknown.items()))
    note = f"the bar is half of linear scaling's; nodes spread by {spread:.0%}"
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


class _Compute:
    """Device time of a ResNet-50 step by device and batch: two captures serve every batch."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._known: dict[tuple[str, int], Seconds] = {}

    def __call__(self, submission: _Submission) -> Seconds:
        key = (submission.device or _LIKE_THIS, max(round(submission.batch), 1))
        if key not in self._known:
            self._say(f"{SOURCE}: ResNet-50 with batch {key[1]} on {key[0]}")
            graph = extend(*self._two, sizes=_TWO_BATCHES, to=key[1])
            self._known[key] = forecast(graph, on=key[0]).device_time.seconds
        return self._known[key]

    @functools.cached_property
    def _two(self) -> tuple[Graph, Graph]:
        from foretell.capture import capture  # loads torch

        settings = {"precision": "amp-fp16", "channels_last": "true", "optimizer": "sgd"}
        first, second = (capture("torchvision/resnet50", {**settings, "batch": str(size)}) for size in _TWO_BATCHES)
        return first, second


def _off(pairs: Iterable[_Pair], compute: Callable[[_Submission], Seconds], spread: float) -> np.ndarray:
    pairs = list(pairs)
    return relative_errors([_predict(pair, compute, spread) for pair in pairs], [pair.wanted.step for pair in pairs])


def _predict(pair: _Pair, compute: Callable[[_Submission], Seconds], spread: float) -> Seconds:
    a, b = pair.known, pair.wanted
    low, high = 0.0, a.step / compute(a)  # its software takes as many times longer as make the known one come out right
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if _step(a, middle * compute(a), spread) < a.step else (low, middle)
    return _step(b, low * compute(b), spread)


def _step(submission: _Submission, compute: Seconds, spread: float) -> Seconds:
    """Devices of a node share its host and its cooling, so it is nodes that differ."""
    paced = compute * (1 + spread * slowest_of(-(-submission.devices // submission.node_size)))
    return paced + exposed_seconds(paced, _all_reduce(submission), _LAST / _GRADIENTS, _WINDOW)


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
