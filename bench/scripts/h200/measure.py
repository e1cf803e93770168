"""Measures the H200 dataset on a machine with a slow host where nothing can be installed: points in, record files out.

    python bench/scripts/h200/measure.py steps   --out FOLDER [--seconds 540]   the steps of points.py
    python bench/scripts/h200/measure.py repeats --out FOLDER                   a tenth of them, on another occasion
    python bench/scripts/h200/measure.py later   --out FOLDER                   those of families that had too few
    python bench/scripts/h200/measure.py classics five --out FOLDER             the batch sweeps of sweeps.py
    python bench/scripts/h200/measure.py FILE    --out FOLDER                   a campaign file, as `foretell design` writes it

Building and recording a step takes the host far longer than timing it takes the device. So hands prepare a round of
points side by side, and then each takes its times alone while the others wait. Points of one architecture go to one hand,
which has its kernels loaded. Take the files in with `foretell store import`; --done says what is measured already.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import importlib
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "src")]
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter

import torch
from foretell_bench import bundles, generated_operators
from points import LATER, REPEATS, STEPS
from sweeps import SWEEPS, Sweep

from foretell.campaign.jobs import Campaign
from foretell.campaign.worker import failure
from foretell.capture.explain import explain
from foretell.errors import ForetellError
from foretell.measure.instrument import SECONDS, Asked, Prepared, Taken, measure
from foretell.measure.record import Point, Record
from foretell.sources import named as zoo
from foretell.store.lines import RecordFile

OPERATORS_AT_ONCE = 16  # tiny points share a round
LIGHT_SECONDS = 0.15  # of repetitions
ROOT = Path(__file__).resolve().parents[3]
BUNDLES = (bundles.SOURCE, generated_operators.SOURCE)  # of many operators already
_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)


def reason_of(error: BaseException) -> str:
    """Without the folder that the project lies in, as others shall read it."""
    return explain(error).replace(f"{ROOT}/", "")


def asked_for(what: str) -> list[Point]:
    named = {"steps": STEPS, "repeats": REPEATS, "later": LATER}
    return list(named[what]) if what in named else list(Campaign.load(what).points)


def shown(record: Record) -> str:
    step = record.step
    if step.outcome != "ok":
        return f"{step.outcome}: {step.error[-300:]}"
    lost = (step.unattributed_seconds or 0) / (step.kernel_seconds or 1)
    times = [1e3 * t if t else 0.0 for t in (step.step_seconds, step.device_seconds, step.host_seconds)]
    return "step {:9.3f} device {:9.3f} host {:9.3f} ms".format(*times) + (
        f" {step.bound} {step.kernels} kernels, {lost:.2%} unattributed {'; '.join(step.marks)}"
    )


# A hand: prepares what it is given, takes its times when it is its turn, then writes the records.


class Task(NamedTuple):
    """Points that one hand prepares in one round: of different batches alone, where there are several steps."""

    points: list[Point]
    how: Literal["ops", "light", "alone"] = "ops"


def hand(link: Connection, file: RecordFile, device: str) -> None:
    while True:
        task: Task = link.recv()
        if task.how == "alone":
            link.send(("written", [_measured_alone(point, device, file) for point in task.points]))
            continue
        light = task.how == "light"
        began = time.monotonic()
        prepared: list[Prepared] = []
        crowded: list[Point] = []  # found no room beside the others, and are prepared once it is their turn
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


def _taken(one: Prepared, companions: frozenset[int], light: bool, file: RecordFile) -> Taken | None:
    one.asked.machine.companions = companions
    try:
        return one.take(LIGHT_SECONDS if light else SECONDS)
    except _OUT_OF_MEMORY as error:
        file.append([one.asked.out_of_memory(error)])
        return None
    finally:
        one.step = None


def _measured_alone(point: Point, device: str, file: RecordFile) -> str:
    try:
        record = measure(point, device=device)
    except (Exception, SystemExit) as error:
        record = failure(point, "error", reason_of(error), {})
    file.append([record])
    return f"{point}: {shown(record)}"


def _prepared(point: Point, device: str, light: bool, like: Prepared | None) -> Prepared | Record:
    try:
        asked = Asked(point, device)
        asked.machine.companions = frozenset({os.getppid()})  # not alone
    except (Exception, SystemExit) as error:
        return failure(point, "error", str(error) if isinstance(error, ForetellError) else reason_of(error), {})
    try:
        same = like is not None and like.asked.point.but_batch == point.but_batch
        return asked.prepare(like if same else None, light=light)
    except _OUT_OF_MEMORY as error:
        torch.cuda.empty_cache() if device != "cpu" else None
        return asked.out_of_memory(error)
    except (Exception, SystemExit) as error:
        return failure(point, "error", reason_of(error), asked.machine.provenance())


@dataclass
class Hand:
    """The parent's side of a hand."""

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
        self.process = context.Process(target=hand, args=(theirs, self.file, self.device), daemon=False)
        self.process.start()
        theirs.close()

    def say(self, what: Any) -> None:
        self.link.send(what)

    def hear(self, seconds: float) -> tuple[str, Any]:
        try:
            if self.link.poll(max(0.0, seconds)):
                return self.link.recv()
            why = ("time-limit", f"it was not ready after {seconds:.0f} s")
        except EOFError:
            why = ("error", "the measuring process ended")
        for point in self.now:
            self.file.append([failure(point, *why, {})])
        print(f"      hand {self.number}: {why} {self.now[0]}", flush=True)
        self.process.kill()
        self.process.join()
        self.start()
        return "lost", why[1]


def rounds(hands: list[Hand], limit: float, until: float) -> list[Point]:
    """Work off all hands' work, round by round; what has to be measured again, alone."""
    begun, began = 0, time.monotonic()
    again: list[Point] = []
    while time.monotonic() < until:
        busy = [h for h in hands if h.work]
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
        pids = frozenset(h.process.pid for h in hands) | {os.getpid()}
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


def share_out(points: list[Point], hands: list[Hand]) -> None:
    """Points of one source to one hand, sources in their order to the hand with the least to do."""
    by_source: dict[str, list[Point]] = {}
    for point in points:
        by_source.setdefault(point.source, []).append(point)
    for mine in by_source.values():
        size = OPERATORS_AT_ONCE if mine[0].kind == "operators" and mine[0].source not in BUNDLES else 1
        least = min(hands, key=lambda h: len(h.work))
        for i in range(0, len(mine), size):
            if mine[0].kind == "operators":  # they need no architecture's kernels: spread them evenly
                least = min(hands, key=lambda h: len(h.work))
            least.work.append(Task(mine[i : i + size]))


def share_out_sweep(sweep: Sweep, hands: list[Hand]) -> None:
    """Parts of one source to as many hands as the sweep says, so that most of its kernels are loaded."""
    by_source: dict[str, list[list[Point]]] = {}
    for part in sweep.parts:
        by_source.setdefault(part[0].source, []).append(part)
    for parts in by_source.values():
        mine = sorted(hands, key=lambda h: len(h.work))[: sweep.hands]
        for i, part in enumerate(parts):
            mine[i % len(mine)].work.append(Task(part, "light" if sweep.light else "ops"))


def pack(path: Path, to: Path) -> None:
    (to / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--done", type=Path, help="a file with the keys of points that are measured already")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no round after this long")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds that preparing a round may take")
    parser.add_argument("--hands", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    began = time.monotonic()
    done = set(options.done.read_text().split()) if options.done else set()
    raw = options.out / "raw"
    raw.mkdir(parents=True)
    hands = [Hand(n, RecordFile(raw / f"{n}.jsonl"), options.device) for n in range(options.hands)]
    for name in ("timm/resnet18", "torchvision/resnet18", "hf/bert-base", "hf/llama-small"):
        zoo.workload_function(*name.split("/"))()  # loads what every hand needs, slow from a cold disk
    importlib.import_module("transformers.models.llama.modeling_llama")
    for h in hands:
        h.start()
    for what in options.what:  # one after the other, as far as the time goes
        if what in SWEEPS:
            share_out_sweep(SWEEPS[what], hands)
        else:
            share_out([p for p in asked_for(what) if p.key not in done or what == "repeats"], hands)
        for point in rounds(hands, options.limit, began + options.seconds):
            if time.monotonic() < began + options.seconds:
                hands[0].now = [point]
                hands[0].say(Task([point], "alone"))
                print("alone", *hands[0].hear(options.limit)[1], flush=True)
    for h in hands:
        h.process.kill()
    packed = sorted(raw.glob("*.jsonl"))
    merged = [raw / f"part-{i}.jsonl" for i in range(6)]
    for i, path in enumerate(packed):
        with merged[i % 6].open("ab") as file:
            file.write(path.read_bytes())
        path.unlink()
    with ProcessPoolExecutor() as pool:
        list(pool.map(pack, [m for m in merged if m.exists()], [options.out] * 6))
    for path in raw.glob("*.jsonl"):
        path.unlink()
    raw.rmdir()


if __name__ == "__main__":
    main()
