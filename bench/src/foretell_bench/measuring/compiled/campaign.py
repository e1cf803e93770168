"""Steps eager and compiled, timed plainly, with every kernel of the compiled one and the schedule that it came from.

Compiling takes a host far longer than timing takes the device: workers compile a round of points side by side, then each
takes its times alone while the others wait.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")

import torch
from torch.profiler import ProfilerActivity

from foretell.measure.build import LossWatch, build_step
from foretell.measure.timing import clock_of, time_steps, warm_up
from foretell.measure.traces import Traces, events, kernel_trace
from foretell.sources import named as zoo
from foretell.sources.resolve import load_workload
from foretell_bench.measuring.compiled.points import key, points

SECONDS = 0.25
_SHOWN = ("aten::", "triton", "## Call", "Optimizer.", "Torch-Compiled", "CompiledFunction", "Memcpy", "Memset", "_")


class Compiled:
    """One point: eager first, then compiled, both in one process."""

    def __init__(self, point: dict[str, Any], device: str) -> None:
        self.point, self.device = point, torch.device(device)
        self.clock = clock_of(self.device)
        self.row: dict[str, Any] = dict(point)
        from foretell_bench.measuring.compiled.scheduled import Scheduled  # touches CUDA, which no fork survives

        self.scheduled = Scheduled()

    def prepare(self) -> None:
        torch._dynamo.reset()
        workload = LossWatch(load_workload(self.point["source"], self.point["settings"])).workload
        self.step = build_step(workload, self.device)
        warm_up(self.step, self.clock)
        self.row["parameters"] = sum(p.numel() for p in self.step.model.parameters())
        self.eager_peaks = self._peaks()
        mode = self.point.get("mode") or "default"
        forward = self.step.model.forward
        began = time.monotonic()
        with self.scheduled.watching():
            self.compiled_forward = torch.compile(forward, mode=None if mode == "default" else mode)
            self.eager_forward = forward
            self.step.model.forward = self.compiled_forward
            for _ in range(3):
                self.step.run()
                self.clock.wait()
        self.row["compile_seconds"] = time.monotonic() - began
        counters = torch._dynamo.utils.counters
        self.row["graph_breaks"] = {str(k)[:200]: v for k, v in counters["graph_break"].items()}
        self.row["dynamo"] = dict(counters["stats"])
        self.row["torch"] = torch.__version__

    def _peaks(self) -> list[int]:
        if self.device.type != "cuda":
            return []
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.step.run()
        torch.cuda.synchronize()
        return [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]

    def take(self) -> None:
        model = self.step.model
        compiled = time_steps(self.step, self.clock, SECONDS)
        self.row["compiled"] = compiled.columns
        self.row["compiled_peaks"] = self._peaks()
        self.row["eager_peaks"] = self.eager_peaks
        model.forward = self.eager_forward
        self.row["eager"] = time_steps(self.step, self.clock, SECONDS).columns
        model.forward = self.compiled_forward
        self.clock.wait()
        if self.device.type == "cuda":
            for _ in range(2):
                self.step.run()
            self.clock.wait()
            self.row["owners"] = _until_seen(lambda: _owners(self._traced()))
            self.row |= _summed("", _until_seen(lambda: self._plain(3)))
            model.forward = self.eager_forward
            self.step.run()
            self.row |= _summed("eager_", _until_seen(lambda: self._plain(2)))

    def _traced(self) -> Any:
        with kernel_trace(ProfilerActivity.CPU, ProfilerActivity.CUDA, leaves=False) as profiler:
            self.step.run()
            torch.cuda.synchronize()
        return profiler

    def _plain(self, repetitions: int) -> Any:
        """Steps with the kernels alone traced, each after a wait."""
        with kernel_trace(ProfilerActivity.CUDA, leaves=False) as profiler:
            for _ in range(repetitions):
                torch.cuda.synchronize()
                self.step.run()
            torch.cuda.synchronize()
        return Traces(profiler, repetitions, False).read()

    def finish(self) -> dict[str, Any]:
        self.row["graphs"] = self.scheduled.graphs
        return self.row


def _until_seen(look: Any) -> Any:
    """A trace that begins while another is leaving sees nothing."""
    for _ in range(3):
        if found := look():
            return found
        time.sleep(0.3)
    return []


def _summed(prefix: str, steps: Any) -> dict[str, Any]:
    if not steps:
        return {f"{prefix}busy": []}
    found = {f"{prefix}busy": [s.busy_seconds() for s in steps], f"{prefix}host": [s.host_seconds for s in steps]}
    return {**found, f"{prefix}kernels": _medians(steps)}


def _medians(steps: Any) -> list[Any]:
    counts = {len(s.kernels) for s in steps}
    if len(counts) != 1:
        return [[k.name, k.seconds] for k in steps[-1].kernels]
    return [
        [ks[0].name, statistics.median(k.seconds for k in ks)] for ks in zip(*(s.kernels for s in steps), strict=True)
    ]


def _owners(profiler: Any) -> list[Any]:
    """Each kernel in launch order, with the ranges of the host that it was launched in, outermost first."""
    on_host = torch._C._autograd.DeviceType.CPU
    launches: dict[int, tuple[int, int]] = {}
    ranges: dict[int, list[tuple[int, int, str]]] = {}
    ran = []
    for event in events(profiler):
        name, begin, end = event.name(), event.start_ns(), event.start_ns() + event.duration_ns()
        if event.device_type() == on_host:
            if name.startswith("cu"):
                launches[event.correlation_id()] = (begin, event.device_resource_id())
            elif name.startswith(_SHOWN):
                ranges.setdefault(event.device_resource_id(), []).append((begin, end, name))
        elif not event.is_user_annotation():
            ran.append((event.correlation_id(), name, end - begin))
    for own in ranges.values():
        own.sort(key=lambda r: (r[0], -r[1]))
    found = []
    for correlation, name, length in sorted(ran):
        at, thread = launches.get(correlation, (0, 0))
        found.append([name, length, _around(at, ranges.get(thread, []), ranges)])
    return found


def _around(at: int, own: list[tuple[int, int, str]], everywhere: dict[int, list[tuple[int, int, str]]]) -> list[str]:
    inside = [name for begin, end, name in own if begin <= at <= end]
    if not inside:  # the thread is named differently by runtime and ranges
        inside = [n for each in everywhere.values() for begin, end, n in each if begin <= at <= end]
    return inside[:6]


def serve(link: Any, path: Path, device: str) -> None:
    """One point; its process ends with it, so that no tracer is left in one that times a step."""
    point = link.recv()
    one = Compiled(point, device)
    began = time.monotonic()
    try:
        one.prepare()
        link.send(("prepared", time.monotonic() - began))
        link.recv()
        one.take()
        link.send(("taken", None))
        row = one.finish()
    except BaseException as error:
        reason = f"{type(error).__name__}: {str(error)[:2000]}"
        _append(path, {**point, "error": reason, "graphs": one.scheduled.graphs})
        link.send(("failed", reason[:300]))
        return
    _append(path, row)
    line = {k: row.get(k) for k in ("source", "settings", "mode", "compile_seconds")}
    line |= {
        "eager": row["eager"]["step_seconds"],
        "compiled": row["compiled"]["step_seconds"],
        "busy": row.get("busy"),
    }
    link.send(("written", f"{line} {len(row.get('kernels', ()))} kernels"))


def _append(path: Path, row: dict[str, Any]) -> None:
    with gzip.open(path, "at", compresslevel=6) as file:
        file.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")


def _merge(out: Path, files: int = 7) -> None:
    """Into a few: packed files one after the other are one packed file."""
    for number, path in enumerate(sorted(out.glob("compiled-*.gz"))):
        with (out / f"all-{number % files}.jsonl.gz").open("ab") as file:
            file.write(path.read_bytes())
        path.unlink()


class Worker:
    """A process that compiles one point, takes its times when it is its turn, and ends."""

    def __init__(self, number: int, out: Path, device: str) -> None:
        self.path, self.device = out / f"compiled-{number}.jsonl.gz", device
        self.start()

    def start(self) -> None:
        self.link, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")  # the libraries are loaded, the device is not touched
        self.process = context.Process(target=serve, args=(theirs, self.path, self.device))
        self.process.start()
        theirs.close()

    def restart(self) -> None:
        self.process.kill()
        self.process.join()
        self.start()

    def hear(self, until: float) -> tuple[str, Any]:
        try:
            if self.link.poll(max(0.0, until - time.monotonic())):
                heard: tuple[str, Any] = self.link.recv()
                return heard
            return "failed", "too long"
        except EOFError:
            return "failed", "the process ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    done: frozenset[str] = frozenset()  # keys of points that are measured already
    seconds: float = 585.0  # no round begins that could end after so long
    limit: float = 120.0  # seconds that compiling a round may take
    workers: int = 14
    device: str = "cuda"


def run(out: Path, options: Options) -> None:
    """Measure what is not done, round by round, until the time is up; files of rows are left in `out`."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("timm/resnet18", "torchvision/resnet18", "hf/bert-base", "hf/llama-small"):
        zoo.workload_function(*name.split("/"))()  # loads what every worker needs, slow from a cold disk
    crew = [Worker(n, out, options.device) for n in range(options.workers)]
    queue = [point for point in points() if key(point) not in options.done]
    while queue and time.monotonic() - began < options.seconds - options.limit:
        now = [(worker, queue.pop(0)) for worker in crew if queue]
        _round(now, options.limit)
        print(f"{time.monotonic() - began:.0f} s; {len(queue)} left", flush=True)
    for worker in crew:
        worker.process.kill()
    _merge(out)


def _round(now: list[tuple[Worker, Any]], limit: float) -> None:
    """All compile side by side; then each takes its times while the others wait."""
    for worker, point in now:
        worker.link.send(point)
    until = time.monotonic() + limit
    ready = [(worker, point) for worker, point in now if _heard(worker, "prepared", until, point)]
    taken = []
    for worker, point in ready:
        worker.link.send("take")
        if _heard(worker, "taken", time.monotonic() + 60, point):
            taken.append((worker, point))
    for worker, point in taken:
        _heard(worker, "written", time.monotonic() + 60, point)
    for worker, _ in now:
        worker.restart()


def _heard(worker: Worker, wanted: str, until: float, point: Any) -> bool:
    what, more = worker.hear(until)
    if what != "prepared":
        print(what, more if what == "written" else (point, more), flush=True)
    return what == wanted
