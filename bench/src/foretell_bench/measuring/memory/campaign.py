"""Measures the memory of real training steps on a CUDA device: peaks, what each op takes inside itself, and limits.

    foretell bench memory measure steps  --out FOLDER [--jobs 4]   peaks and op temporaries of every configuration
    foretell bench memory measure unseen --out FOLDER [--jobs 4]   the same for architectures kept apart for testing
    foretell bench memory measure limits --out FOLDER              the largest batch that runs, by bisection
    foretell bench memory measure probes --out FOLDER              context size and which attention kernel is chosen

Each configuration runs in a process of its own, forked from a parent that has imported the libraries but not touched
the device. Results are JSON lines, appended as they come: a run that is stopped continues where it was.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch.utils import _pytree as pytree

from foretell.capture.recorder import Recorder
from foretell.capture.step import Step, prepare_model
from foretell.capture.trace import record
from foretell.sources.resolve import load_workload
from foretell.workload import Workload
from foretell_bench.measuring.memory.attention import ATTENTION
from foretell_bench.measuring.memory.configurations import LIMITS, STEPS, UNSEEN, Configuration, key

DEVICE: Final = "cuda"
Part = Literal["steps", "unseen", "limits", "probes"]
Task = Callable[[Configuration], dict[str, Any]]


class MemoryWatch:
    """Runs ops on the device and notes how far memory rises inside each."""

    def __init__(self) -> None:
        self.inside: list[tuple[int, int, int]] = []  # before, highest, after

    def rewrite(self, func: Any, args: Any, kwargs: Any) -> None:
        return None

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.namespace == "profiler":  # not recorded as an op
            return func(*args, **kwargs)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = func(*args, **kwargs)
        stats = torch.cuda.memory_stats()
        self.inside.append((before, stats["allocated_bytes.all.peak"], stats["allocated_bytes.all.current"]))
        return out


def make_step(workload: Workload) -> Step:
    on = workload.arithmetic.tf32 == "products"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    with torch.device(DEVICE):
        model = prepare_model(workload, workload.model())
        batch = workload.batch()
    model = model.to(DEVICE)
    batch = pytree.tree_map(lambda v: v.to(DEVICE) if isinstance(v, torch.Tensor) else v, batch)
    step = Step.of(workload, model, batch, DEVICE)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return step


def measure_step(configuration: Configuration, folder: Path, timed: bool) -> dict[str, Any]:
    workload = load_workload(configuration["source"], configuration["settings"])
    step = make_step(workload)
    built = torch.cuda.memory_allocated()
    reserved = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        step.run()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    result: dict[str, Any] = {
        "built": built, "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": max(reserved),
        "reserved_after_step": reserved, "resting": torch.cuda.memory_allocated(),
    }  # fmt: skip
    free, total = torch.cuda.mem_get_info()
    result |= {"used_outside": total - free - torch.cuda.memory_reserved(), "total": total}
    if timed:
        result |= time_steps(step)
    leave(configuration, folder, result)  # recording may fail or take too long; the peaks are known
    watch = MemoryWatch()
    recorder = Recorder(watch)
    with recorder:
        graph = record(step, recorder)
    inside = watch.inside[-len(graph.ops) :]
    graph.save(folder / f"{key(configuration)}.graph")
    (folder / f"{key(configuration)}.inside.json").write_text(json.dumps(inside))
    return result


def time_steps(step: Step) -> dict[str, float]:
    for _ in range(2):
        step.run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wall, host = [], []
    for _ in range(7):
        torch.cuda.synchronize()
        started = time.perf_counter()
        begin.record()
        step.run()
        end.record()
        host.append(time.perf_counter() - started)
        torch.cuda.synchronize()
        wall.append(time.perf_counter() - started)
    wall.sort()
    host.sort()
    return {"step_seconds": wall[3], "step_low": wall[1], "step_high": wall[5], "issue_seconds": host[3]}


def find_limit(configuration: Configuration) -> dict[str, Any]:
    """Grow the batch until the device is full, then bisect between the last that ran and the first that did not."""
    tries: list[dict[str, Any]] = []

    def runs(batch: int) -> bool:
        known = next((t for t in tries if t["batch"] == batch), None)
        if known:
            return bool(known["ok"])
        ok, peak, step = True, {}, None
        try:
            step = make_step(load_workload(configuration["source"], configuration["settings"] | {"batch": str(batch)}))
            for _ in range(2):
                step.run()
            torch.cuda.synchronize()
            peak = {
                "peak_allocated": torch.cuda.max_memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
            }
        except torch.OutOfMemoryError:
            ok = False
        del step
        gc.collect()
        torch.cuda.empty_cache()
        tries.append({"batch": batch, "ok": ok, **peak})
        return ok

    low, high, batch = 0, 0, configuration["start"]
    total = torch.cuda.mem_get_info()[1]
    while not high and len(tries) < 8:  # grow towards the batch at which the measured peak would fill the device
        if runs(batch):
            low = batch
            filled = tries[-1]["peak_reserved"] / total
            batch = max(int(batch * (1.02 / filled if filled > 0.4 else 0.9 / filled)), int(batch * 1.04) + 1)
        else:
            high = batch
    while high - low > max(1, low * 0.015) and len(tries) < 14:
        middle = (low + high) // 2 if low else high // 2
        if middle < 1:
            break
        low, high = (middle, high) if runs(middle) else (low, middle)
    free, total = torch.cuda.mem_get_info()
    return {"limit": low, "tries": tries, "used_outside": total - free - torch.cuda.memory_reserved(), "total": total}


def probe(_: Configuration) -> dict[str, Any]:
    torch.zeros(1, device=DEVICE)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    bare = total - free - torch.cuda.memory_reserved()
    allocated = torch.cuda.memory_allocated()
    a = torch.randn(512, 512, device=DEVICE, dtype=torch.bfloat16)
    a @ a
    forward_workspace = torch.cuda.memory_allocated() - allocated - 2**19
    free = torch.cuda.mem_get_info()[0]
    choices = []
    for shape in ATTENTION:
        q, k, v, mask, causal, gqa = shape.tensors(DEVICE)
        choice = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal, scale=None, enable_gqa=gqa)
        choices.append([*shape.facts(), int(choice)])
    props = torch.cuda.get_device_properties(0)
    return {
        "bare_context": bare, "with_cublas": total - free - torch.cuda.memory_reserved(), "cublas_workspace": forward_workspace,
        "total": total, "attention": choices, "device": props.name, "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "multiprocessors": props.multi_processor_count, "l2": props.L2_cache_size,
        "gpu_total": props.total_memory,
    }  # fmt: skip


def leave(configuration: Configuration, folder: Path, result: dict[str, Any]) -> None:
    (folder / f".{key(configuration)}.json").write_text(json.dumps(result))


def in_child(task: Task, configuration: Configuration, folder: Path) -> None:
    """Run one task and leave its result, or how it failed, in the folder."""
    try:
        result = task(configuration)
    except torch.OutOfMemoryError as error:
        result = {"error": "out of memory", "text": str(error)[:300]}
    except Exception as error:
        import traceback

        result = {"error": type(error).__name__, "text": (str(error) + traceback.format_exc()[-1500:])[:2500]}
    leave(configuration, folder, result)
    os._exit(0)  # a CUDA context closes slowly; nothing is left to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many run side by side, how long new work is started, and how long one may take, in seconds."""

    jobs: int = 1
    seconds: float = 540.0
    each: float = 90.0


def work(part: Part, folder: Path, timed: bool) -> tuple[list[Configuration], Task]:
    """The configurations of a part, and what is done with each."""
    match part:
        case "limits":
            return LIMITS, find_limit
        case "probes":
            return [{"source": "probe", "settings": {}}], probe
        case _:
            return STEPS if part == "steps" else UNSEEN, partial(measure_step, folder=folder, timed=timed)


def run(part: Part, folder: Path, limits: Limits, only: str = "") -> None:
    """Measure what is not in the folder yet, of configurations whose key contains `only`."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / f"{part}.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {row["key"] for row in rows if "error" not in row}
    for library in ("timm", "transformers"):  # every child needs them; import once
        importlib.import_module(library)
    configurations, task = work(part, folder, limits.jobs == 1)
    waiting = [c for c in configurations if key(c) not in done and only in key(c)]
    running: dict[BaseProcess, tuple[Configuration, float]] = {}
    started = time.time()
    context = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < limits.jobs and time.time() - started < limits.seconds:
            configuration = waiting.pop(0)
            process = context.Process(target=in_child, args=(task, configuration, folder))
            process.start()
            running[process] = (configuration, time.time())
        if not running:
            break
        time.sleep(0.05)
        for child, (configuration, begun) in list(running.items()):
            late = time.time() - begun > limits.each
            if not child.is_alive() or late:
                child.kill()
                del running[child]
                row = finished(configuration, folder, begun, late)
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{time.time() - started:6.0f} s  {shown(row)}", flush=True)
    print(f"{len(waiting)} left", flush=True)


def finished(configuration: Configuration, folder: Path, begun: float, late: bool) -> dict[str, Any]:
    """The row of a child that has ended: what it left, or why it left nothing."""
    part = folder / f".{key(configuration)}.json"
    result = json.loads(part.read_text()) if part.exists() else {"error": "late" if late else "crashed"}
    part.unlink(missing_ok=True)
    return {"key": key(configuration), **configuration, "seconds": round(time.time() - begun, 1), **result}


def shown(row: dict[str, Any]) -> str:
    result = row.get("error") or row.get("peak_allocated", row.get("limit", ""))
    return f"{row['seconds']:5.1f}  {row['key']:70} {result} {row.get('text', '')[-300:]}"
