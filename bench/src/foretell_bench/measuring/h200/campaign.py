"""Measures the H200 dataset on a machine with a slow host where nothing can be installed: points in, record files out.

    foretell bench measure points steps   --out FOLDER [--seconds 540]   the steps of points.py
    foretell bench measure points repeats --out FOLDER                   a tenth of them, on another occasion
    foretell bench measure points later   --out FOLDER                   those of families that had too few
    foretell bench measure points kinds-blind kinds kinds-operators --out FOLDER    the kinds that were predicted worst
    foretell bench measure points classics five --out FOLDER             the batch sweeps of sweeps.py
    foretell bench measure points FILE    --out FOLDER [--plain]         a campaign file, as `foretell design` writes it

Building and recording a step takes the host far longer than timing it takes the device. So workers prepare a round of
points side by side, and then each takes its times alone while the others wait. Points of one architecture go to one worker,
which has its kernels loaded. Import the files with `foretell store import`; --done names what is measured already.
"""

from __future__ import annotations

import collections
import gzip
import importlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter

import torch

from foretell.campaign.jobs import Campaign
from foretell.campaign.worker import failure
from foretell.capture.explain import explain
from foretell.errors import ForetellError
from foretell.measure.instrument import SECONDS, MeasuredStep, Measurement, Prepared, measure
from foretell.measure.record import Point, Record
from foretell.sources import named as zoo
from foretell.store.lines import RecordFile
from foretell_bench import bundles, generated_operators
from foretell_bench.checkout import ROOT
from foretell_bench.measuring.h200.kinds import operators as kinds_operators
from foretell_bench.measuring.h200.kinds import points as kinds
from foretell_bench.measuring.h200.points import LATER, REPEATS, STEPS
from foretell_bench.measuring.h200.sweeps import SWEEPS, Sweep

OPERATORS_AT_ONCE: Final = 16  # tiny points share a round
_PACKED_FILES: Final = 6
LIGHT_SECONDS: Final = 0.15  # of repetitions
BUNDLES: Final = (bundles.SOURCE, generated_operators.SOURCE, kinds_operators.SOURCE)  # of many operators already
_OUT_OF_MEMORY: Final = (torch.OutOfMemoryError, MemoryError)


def reason_of(error: BaseException) -> str:
    """Without the folder that the project lies in, as others shall read it."""
    return explain(error).replace(f"{ROOT}/", "")


def points_named(what: str) -> list[Point]:
    named = {"steps": STEPS, "repeats": REPEATS, "later": LATER} | kinds.LISTS
    return list(named[what]) if what in named else list(Campaign.load(what).points)


def shown(record: Record) -> str:
    step = record.step
    if step.outcome != "ok":
        return f"{step.outcome}: {step.error[-300:]}"
    unattributed = (step.unattributed_seconds or 0) / (step.kernel_seconds or 1)
    times = [1e3 * t if t else 0.0 for t in (step.step_seconds, step.device_seconds, step.host_seconds)]
    return "step {:9.3f} device {:9.3f} host {:9.3f} ms".format(*times) + (
        f" {step.bound} {step.kernels} kernels, {unattributed:.2%} unattributed {'; '.join(step.marks)}"
    )


# A worker prepares what it is given, takes its times when it is its turn, then writes the records.


class Task(NamedTuple):
    """Points that one worker prepares in one round: of different batches alone, where there are several steps."""

    points: list[Point]
    how: Literal["ops", "light", "alone"] = "ops"


def serve(link: Connection, file: RecordFile, device: str) -> None:
    while True:
        task: Task = link.recv()
        if task.how == "alone":
            link.send(("written", [_measured_alone(point, device, file) for point in task.points]))
            continue
        light = task.how == "light"
        began = time.monotonic()
        prepared: list[Prepared] = []
        crowded: list[Point] = []  # found no room next to the others, and are prepared once it is their turn
        for point in task.points:
            found = _prepared(point, device, light, prepared[-1] if prepared else None)
            if isinstance(found, Prepared):
                prepared.append(found)
            elif found.step.outcome == "out-of-memory":
                crowded.append(point)
            else:
                file.append([found])
        link.send(("prepared", time.monotonic() - began))
        companions = link.recv()
        began = time.monotonic()
        taken = [_taken(one, companions, light, file) for one in prepared]
        prepared.clear()
        for point in crowded:
            torch.cuda.empty_cache() if device != "cpu" else None
            found = _prepared(point, device, light, None)
            if isinstance(found, Prepared):
                taken.append(_taken(found, companions, light, file))
            else:
                file.append([found])
        torch.cuda.empty_cache() if device != "cpu" else None
        link.send(("taken", time.monotonic() - began))
        lines, again = [], []
        for one in taken:
            if one is None:
                continue
            record = one.record()
            if any(mark.startswith("recorded alone") for mark in record.step.marks):
                again.append(record.step.point)  # its ops were recorded in company: their times are not to be had so
                continue
            file.append([record])
            lines.append(f"{record.step.source} {record.step.settings} {shown(record)}")
        link.send(("written", (lines, again)))


def _taken(one: Prepared, companions: frozenset[int], light: bool, file: RecordFile) -> MeasuredStep | None:
    one.measurement.machine.companions = companions
    try:
        return one.take(LIGHT_SECONDS if light else SECONDS)
    except _OUT_OF_MEMORY as error:
        file.append([one.measurement.out_of_memory(error)])
        return None
    finally:
        del one.step  # frees the device's memory


def _measured_alone(point: Point, device: str, file: RecordFile) -> str:
    try:
        record = measure(point, device=device)
    except (Exception, SystemExit) as error:
        record = failure(point, "error", reason_of(error), {})
    file.append([record])
    return f"{point}: {shown(record)}"


def _prepared(point: Point, device: str, light: bool, like: Prepared | None) -> Prepared | Record:
    try:
        wanted = Measurement(point, device)
        wanted.machine.companions = frozenset({os.getppid()})  # not alone
    except (Exception, SystemExit) as error:
        return failure(point, "error", str(error) if isinstance(error, ForetellError) else reason_of(error), {})
    try:
        same = like is not None and like.measurement.point.but_batch == point.but_batch
        return wanted.prepare(like if same else None, light=light)
    except _OUT_OF_MEMORY as error:
        torch.cuda.empty_cache() if device != "cpu" else None
        return wanted.out_of_memory(error)
    except (Exception, SystemExit) as error:
        return failure(point, "error", reason_of(error), wanted.machine.provenance())


@dataclass
class Worker:
    """The parent's side of a worker: its queue of tasks, what it does now, and the process."""

    number: int
    file: RecordFile
    device: str
    work: collections.deque[Task] = field(default_factory=collections.deque)
    now: list[Point] = field(default_factory=list)
    process: Any = None
    link: Any = None

    def start(self) -> None:
        self.link, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")  # the libraries are loaded, the device is not touched
        self.process = context.Process(target=serve, args=(theirs, self.file, self.device), daemon=False)
        self.process.start()
        theirs.close()

    def say(self, what: Any) -> None:
        self.link.send(what)

    def hear(self, seconds: float) -> tuple[str, Any]:
        try:
            if self.link.poll(max(0.0, seconds)):
                heard: tuple[str, Any] = self.link.recv()
                return heard
            why = ("time-limit", f"it was not ready after {seconds:.0f} s")
        except EOFError:
            why = ("error", "the measuring process ended")
        for point in self.now:
            self.file.append([failure(point, *why, {})])
        print(f"      worker {self.number}: {why} {self.now[0]}", flush=True)
        self.process.kill()
        self.process.join()
        self.start()
        return "restarted", why[1]


def rounds(workers: list[Worker], limit: float, until: float) -> list[Point]:
    """Work off all workers' tasks, round by round; what has to be measured again, alone."""
    begun, began = 0, time.monotonic()
    again: list[Point] = []
    while time.monotonic() < until:
        busy = [h for h in workers if h.work]
        if not busy:
            break
        start = time.monotonic()
        for h in busy:
            task = h.work.popleft()
            h.now = task.points
            h.say(task)
        deadline = time.monotonic() + limit
        answers = {h.number: h.hear(deadline - time.monotonic()) for h in busy}
        ready = [h for h in busy if answers[h.number][0] == "prepared"]
        prepared = time.monotonic()
        pids = frozenset(h.process.pid for h in workers) | {os.getpid()}
        for h in ready:
            h.say(pids)
            answers[h.number] = h.hear(limit)
        taken = time.monotonic()
        for h in ready:
            if answers[h.number][0] == "taken" and (written := h.hear(limit))[0] == "written":
                lines, keys = written[1]
                again += [point for point in h.now if point.key in keys]
                for line in lines:
                    print("     ", line, flush=True)
        begun += sum(len(h.now) for h in busy)
        print(f"{time.monotonic() - began:5.0f} s: {begun} points; {prepared - start:.1f} s prepared {len(busy)}, "
              f"{taken - prepared:.1f} taken, {time.monotonic() - taken:.1f} written", flush=True)  # fmt: skip
    return again


def share_out(points: list[Point], workers: list[Worker], *, plain: bool = False) -> None:
    """Give points of one source to one worker, sources in their order to the worker with the least to do."""
    by_source: dict[str, list[Point]] = {}
    for point in points:
        by_source.setdefault(point.source, []).append(point)
    for own in by_source.values():
        size = OPERATORS_AT_ONCE if own[0].kind == "operators" and own[0].source not in BUNDLES else 1
        least = min(workers, key=lambda h: len(h.work))
        for i in range(0, len(own), size):
            if own[0].kind == "operators":  # they need no architecture's kernels: any worker will do
                least = min(workers, key=lambda h: len(h.work))
            least.work.append(Task(own[i : i + size], "light" if plain else "ops"))


def share_out_sweep(sweep: Sweep, workers: list[Worker]) -> None:
    """Give parts of one source to as many workers as the sweep names, so that most of its kernels are loaded."""
    by_source: dict[str, list[list[Point]]] = {}
    for part in sweep.parts:
        by_source.setdefault(part[0].source, []).append(part)
    for parts in by_source.values():
        nearest = sorted(workers, key=lambda h: len(h.work))[: sweep.workers]
        for i, part in enumerate(parts):
            nearest[i % len(nearest)].work.append(Task(part, "light" if sweep.light else "ops"))


def pack(path: Path, to: Path) -> None:
    (to / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How many workers measure where, for how long, and what they leave out."""

    done: frozenset[str] = frozenset()  # keys of points that are measured already
    seconds: float = 540.0  # no round begins after so long
    limit: float = 40.0  # seconds that preparing a round may take
    workers: int = 14
    device: str = "cuda"
    plain: bool = False  # the time and peaks of steps alone: no trace was ever taken in the process that times them


def run(what: Sequence[str], out: Path, options: Options) -> None:
    """Measure what is named, one after the other as far as the time goes, and leave packed record files."""
    until = time.monotonic() + options.seconds
    raw = out / "raw"
    raw.mkdir(parents=True)
    workers = [Worker(n, RecordFile(raw / f"{n}.jsonl"), options.device) for n in range(options.workers)]
    for name in ("timm/resnet18", "torchvision/resnet18", "hf/bert-base", "hf/llama-small"):
        zoo.workload_function(*name.split("/"))()  # loads what every worker needs, slow from a cold disk
    importlib.import_module("transformers.models.llama.modeling_llama")
    for worker in workers:
        worker.start()
    for name in what:
        if name in SWEEPS:
            share_out_sweep(SWEEPS[name], workers)
        else:
            wanted = [p for p in points_named(name) if p.key not in options.done or name == "repeats"]
            share_out(wanted, workers, plain=options.plain)
        for point in rounds(workers, options.limit, until):
            if time.monotonic() < until:
                workers[0].now = [point]
                workers[0].say(Task([point], "alone"))
                print("alone", *workers[0].hear(options.limit)[1], flush=True)
    for worker in workers:
        worker.process.kill()
    pack_all(raw, out)


def pack_all(raw: Path, out: Path) -> None:
    """Merge the files of all workers to a few, and compress these side by side."""
    merged = [raw / f"part-{i}.jsonl" for i in range(_PACKED_FILES)]
    for i, path in enumerate(sorted(raw.glob("*.jsonl"))):
        with merged[i % _PACKED_FILES].open("ab") as file:
            file.write(path.read_bytes())
        path.unlink()
    with ProcessPoolExecutor() as pool:
        list(pool.map(pack, [m for m in merged if m.exists()], [out] * _PACKED_FILES))
    for path in raw.glob("*.jsonl"):
        path.unlink()
    raw.rmdir()
