"""A step eager and compiled, timed plainly, with every kernel of the compiled one and the schedule that it came from."""

from __future__ import annotations

import gc
import os
import statistics
import time
from typing import Any, Final

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")

import torch
from torch.profiler import ProfilerActivity

from foretell.measure.build import LossWatch, build_step
from foretell.measure.timing import clock_of, time_steps, warm_up
from foretell.measure.traces import Traces, kernel_trace
from foretell.sources.resolve import load_workload

_SECONDS: Final = 0.25  # of plain repetitions, each way
_TRACED: Final = {"": 3, "eager_": 2}  # steps, compiled and eager


class CompiledStep:
    """One point: eager first, then compiled, both in one process."""

    def __init__(self, point: dict[str, Any], device: str) -> None:
        self.point, self.device = point, torch.device(device)
        self.clock = clock_of(self.device)
        self.row: dict[str, Any] = dict(point)
        from foretell_bench.measuring.compiled.scheduled import Scheduled  # touches CUDA, which no fork survives

        self.scheduled = Scheduled()

    def prepare(self) -> None:
        """Build the step and compile it: all that takes a host long, and needs no quiet device."""
        torch._dynamo.reset()
        workload = LossWatch(load_workload(self.point["source"], self.point["settings"])).workload
        self.step = build_step(workload, self.device)
        warm_up(self.step, self.clock)
        self.row["parameters"] = sum(p.numel() for p in self.step.model.parameters())
        self.eager_peaks = self._peaks()
        mode = self.point["mode"]
        self.eager_forward = self.step.model.forward
        began = time.monotonic()
        with self.scheduled.watching():
            self.compiled_forward = torch.compile(self.eager_forward, mode=None if mode == "default" else mode)
            self.step.model.forward = self.compiled_forward
            for _ in range(3):
                self.step.run()
                self.clock.wait()
        self.row["compile_seconds"] = time.monotonic() - began
        counters = torch._dynamo.utils.counters
        self.row["graph_breaks"] = {str(k)[:200]: v for k, v in counters["graph_break"].items()}
        self.row["dynamo"] = dict(counters["stats"])
        self.row["torch"] = torch.__version__
        gc.collect()
        gc.freeze()  # or what the compiler left is looked through again before each timing

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
        """Times, peaks and kernels: while nothing else runs."""
        model = self.step.model
        self.row["compiled"] = time_steps(self.step, self.clock, _SECONDS).columns
        self.row["compiled_peaks"] = self._peaks()
        self.row["eager_peaks"] = self.eager_peaks
        model.forward = self.eager_forward
        self.row["eager"] = time_steps(self.step, self.clock, _SECONDS).columns
        if self.device.type == "cuda":
            self._trace()

    def _trace(self) -> None:
        for _ in range(3):  # a trace may see nothing
            steps = self._traced()
            if len(steps) > _TRACED["eager_"]:
                compiled, eager = steps[: -_TRACED["eager_"]], steps[-_TRACED["eager_"] :]
                self.row |= {**_summed("", compiled), **_summed("eager_", eager)}
                return
            time.sleep(0.2)
        raise RuntimeError("no trace saw the kernels of the step")

    def _traced(self) -> Any:
        """Steps with the kernels alone traced, each after a wait; compiled ones first."""
        model = self.step.model
        ways = {"": self.compiled_forward, "eager_": self.eager_forward}
        model.forward = self.compiled_forward
        self.step.run()
        with kernel_trace(ProfilerActivity.CUDA, leaves=False) as profiler:
            for way, repetitions in _TRACED.items():
                model.forward = ways[way]
                for _ in range(repetitions):
                    torch.cuda.synchronize()
                    self.step.run()
            torch.cuda.synchronize()
        return Traces(profiler, sum(_TRACED.values()), False).read()

    def finish(self) -> dict[str, Any]:
        self.row["graphs"] = self.scheduled.graphs
        return self.row


def _summed(prefix: str, steps: Any) -> dict[str, Any]:
    found = {f"{prefix}busy": [s.busy_seconds() for s in steps], f"{prefix}host": [s.host_seconds for s in steps]}
    return {**found, f"{prefix}kernels": _medians(steps)}


def _medians(steps: Any) -> list[Any]:
    if len({len(s.kernels) for s in steps}) != 1:
        return [[k.name, k.seconds] for k in steps[-1].kernels]
    return [
        [ks[0].name, statistics.median(k.seconds for k in ks)] for ks in zip(*(s.kernels for s in steps), strict=True)
    ]
