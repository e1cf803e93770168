"""`ddp_step_times`: data-parallel steps on placements nobody measured, from single replicas and other placements.

Compute comes from the single-replica rows. What the network of these clusters really gives, and how uneven a job's
batches are, is calibrated on half of the placements; the other half is the test. Ernest is fitted on the same half.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from foretell.cost.collectives import collective_seconds
from foretell.hardware import Cluster, Link, Node, device, fabric, host
from foretell.program import Collective, Group
from foretell.units import Bytes, Seconds
from foretell_bench.sources.overlap import exposed_seconds, last_bucket, slowest_of
from foretell_bench.sources.rows import Say, is_in_half, number, read_rows
from foretell_bench.tables.figures import Figure, relative_errors

SOURCE = "ddp_step_times"
_COLUMNS = (
    "app",
    "cluster",
    "gpu",
    "placement",
    "num_nodes",
    "num_replicas",
    "local_bsz",
    "step_time_s",
    "sync_time_s",
)

# fp32 gradients of the architectures the source names. The sizes of the last two are not given; theirs are typical,
# and the calibrated rate of the network absorbs a wrong one.
_PARAMETERS = {
    "cifar10": 11.2e6, "imagenet": 25.6e6, "bert": 109.5e6, "yolov3": 61.9e6, "deepspeech2": 40e6, "ncf": 5e6,
}  # fmt: skip
_DEVICES = {"aws": "t4", "rtx": "rtx-2080-ti"}


@dataclass(frozen=True, slots=True)
class _Step:
    counts: tuple[int, ...]  # replicas on each node, most first
    batch: float
    alone: Seconds  # of one replica
    step: Seconds
    sync: Seconds

    @property
    def replicas(self) -> int:
        return sum(self.counts)

    @property
    def key(self) -> str:
        return "-".join(map(str, self.counts))


@dataclass(frozen=True, slots=True)
class _Calibration:
    """What single replicas cannot say, of one job on one cluster."""

    inside: float  # bytes/s
    port: float  # bytes/s a node
    latency: Seconds
    compute: float  # of a replica among others, to one alone
    straggle: float  # standard deviation of a replica's compute, to its mean
    window: float  # the part of compute in which gradients go out

    def steps(self, job: _Job, steps: Sequence[_Step]) -> list[tuple[Seconds, Seconds]]:
        """Step and sync time of each; placements that recur are priced once."""
        placements = {step.counts for step in steps}
        talking = {counts: _all_reduce(job, counts, self.inside, self.port, self.latency) for counts in placements}
        last = last_bucket(job.gradients)
        found = []
        for step in steps:
            compute = step.alone * self.compute * (1 + self.straggle * slowest_of(step.replicas))
            exposed = exposed_seconds(compute, talking[step.counts], last, self.window)
            found.append((compute + exposed, exposed))
        return found


@dataclass(frozen=True, slots=True)
class _Job:
    app: str
    device: str
    gradients: Bytes


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    say(f"calibrating on {SOURCE}")
    step_errors, sync_errors, ernest_errors = [], [], []
    unknown = 0
    for job, steps in _jobs(data).items():
        known = [s for s in steps if is_in_half(s.key)]
        test = [s for s in steps if not is_in_half(s.key)]
        if len(known) < len(_START) or not test:
            unknown += len(steps)
            continue
        fitted = _calibrate(job, known)
        predicted = fitted.steps(job, test)
        step_errors.append(relative_errors([p[0] for p in predicted], [s.step for s in test]))
        sync_errors.append(relative_errors([p[1] for p in predicted], [s.sync for s in test]))
        ernest_errors.append(relative_errors(_ernest(known, test), [s.step for s in test]))
    if not step_errors:
        return [
            Figure(source=SOURCE, measure="step time", value=None, bar=0.10, note="too few placements to calibrate on")
        ]
    step, sync, ernest = (np.concatenate(e) for e in (step_errors, sync_errors, ernest_errors))
    left_out = f"{unknown} rows of jobs with too few placements left out" if unknown else ""
    rows, same = len(step), "unseen placements"
    return [
        Figure(source=SOURCE, measure=f"step time, {same}, mean error", value=float(step.mean()), bar=0.10, rows=rows,
               note=left_out),
        Figure(source=SOURCE, measure=f"sync time, {same}, median error", value=float(np.median(sync)), bar=0.20, rows=rows),
        Figure(source=SOURCE, measure=f"Ernest: step time, {same}, mean error", value=float(ernest.mean()), rows=rows,
               note="fitted on the same half"),
    ]  # fmt: skip


def _jobs(data: Path) -> dict[_Job, list[_Step]]:
    """Steps of several replicas by job, with what one replica takes at the same batch."""
    alone: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    several = []
    for row in read_rows(data, SOURCE, _COLUMNS):
        batch, step, sync = (number(row, column) for column in ("local_bsz", "step_time_s", "sync_time_s"))
        if (
            batch is None
            or step is None
            or sync is None
            or row["app"] not in _PARAMETERS
            or row["cluster"] not in _DEVICES
        ):
            continue
        if int(row["num_replicas"]) == 1:
            alone[row["app"], row["cluster"], batch].append(step)
        else:
            several.append((row, batch, step, sync))
    jobs: dict[_Job, list[_Step]] = defaultdict(list)
    for row, batch, step, sync in several:
        if singles := alone.get((row["app"], row["cluster"], batch)):
            job = _Job(row["app"], _DEVICES[row["cluster"]], round(4 * _PARAMETERS[row["app"]]))
            jobs[job].append(_Step(_counts(row), batch, median(singles), step, sync))
    return jobs


def _counts(row: Mapping[str, str]) -> tuple[int, ...]:
    """`44` is 4 + 4 replicas; without a placement they are spread evenly."""
    placement = number(dict(row), "placement")
    if placement is not None:
        return tuple(sorted((int(digit) for digit in str(int(placement))), reverse=True))
    nodes, replicas = int(row["num_nodes"]), int(row["num_replicas"])
    return tuple(replicas // nodes + (i < replicas % nodes) for i in range(nodes))


def _all_reduce(job: _Job, counts: tuple[int, ...], inside: float, port: float, latency: Seconds) -> Seconds:
    made = device(job.device)
    bus = Link(
        name="inside", title="", bandwidth=inside, latency=latency, kind="inside", source="calibrated", fabric="pcie"
    )
    wire = Link(
        name="between", title="", bandwidth=port, latency=latency, kind="between", source="calibrated", fabric="tcp"
    )
    nodes = tuple(Node(device=made, count=n, host=_host(made.host), inside=bus, port=port) for n in counts)
    whole = Collective(
        kind="all-reduce", nbytes=job.gradients, group=Group(size=sum(counts)), name="gradients", starts_after=0, waited_for_by=1
    )  # fmt: skip
    return collective_seconds(whole, Cluster(nodes=nodes, between=wire), lambda way: _fabric(way.fabric))


_host, _fabric = functools.cache(host), functools.cache(fabric)  # a fit asks thousands of times

# inside, port (log bytes/s), latency (log s), compute, straggle, window: where the fit starts, and its bounds.
_START = (21.0, 20.5, -9.0, 0.95, 0.05, 0.4)
_LOW = (17.0, 17.0, -14.0, 0.6, 0.0, 0.0)
_HIGH = (25.0, 25.0, -5.0, 1.3, 2.0, 0.9)


def _calibrate(job: _Job, steps: Sequence[_Step]) -> _Calibration:
    from scipy.optimize import least_squares

    seen: dict[tuple[str, float], list[_Step]] = defaultdict(list)
    for step in steps:
        seen[step.key, step.batch].append(step)
    typical = [
        (same[0], median(s.step for s in same), max(median(s.sync for s in same), 1e-4)) for same in seen.values()
    ]

    def off(values: np.ndarray) -> np.ndarray:
        tried = _calibration(values)
        found = np.array(tried.steps(job, [t[0] for t in typical]))
        steps_off = np.log(found[:, 0] / [t[1] for t in typical])
        syncs_off = np.log(found[:, 1] / [t[2] for t in typical])
        return np.concatenate([steps_off, 0.3 * syncs_off])

    found = least_squares(off, _START, bounds=(_LOW, _HIGH), loss="soft_l1", f_scale=0.1, max_nfev=60)
    return _calibration(found.x)


def _calibration(values: np.ndarray) -> _Calibration:
    inside, port, latency = np.exp(values[:3]).tolist()
    return _Calibration(inside, port, latency, *values[3:].tolist())


def _ernest(known: Sequence[_Step], test: Sequence[_Step]) -> list[float]:
    """Non-negative least squares on 1, data a machine, log machines, machines (Venkataraman et al., NSDI 2016)."""
    from scipy.optimize import nnls

    def features(steps: Sequence[_Step]) -> np.ndarray:
        return np.array([[1.0, s.batch, np.log(s.replicas), s.replicas] for s in steps])

    weights, _ = nnls(features(known), np.array([s.step for s in known]))
    return (features(test) @ weights).tolist()  # type: ignore[no-any-return]
