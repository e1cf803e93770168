"""One script in a process of its own, followed from update to update; without a script, what its host does in a step."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

_WARM_STEPS, _MEASURED_STEPS = map(int, os.environ.get("FORETELL_BENCH_STEPS", "8,20").split(","))
# Trackers and pictures, which a script imports and no step needs.
_TRACKERS: Final = (
    "torch.utils.tensorboard", "tensorboardX", "tensorboard_logger", "matplotlib", "matplotlib.pyplot", "progress", "progress.bar",
    "wandb", "torchinfo", "thop",
)  # fmt: skip


def run_one(answer: Path, script: str, arguments: list[str]) -> None:
    """In a process of its own: the script, followed from update to update."""
    import runpy

    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from foretell_bench.studies.scripts.small_data import accept_made_files

    _stand_in_for_trackers()
    accept_made_files()
    loading = _follow_loaders()
    known: list[object] = []
    updates: list[int] = []
    waited: list[float] = []

    def after_update(optimizer: object, args: object, kwargs: object) -> None:
        if not any(optimizer is other for other in known):
            known.append(optimizer)
        which = next(i for i, other in enumerate(known) if other is optimizer)
        updates.append(which)
        steps = updates.count(len(known) - 1)  # a step ends with the last of them
        if which != len(known) - 1 or steps not in (_WARM_STEPS, _WARM_STEPS + _MEASURED_STEPS):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        waited.append(time.perf_counter())
        if steps == _WARM_STEPS + _MEASURED_STEPS:
            answer.write_text(json.dumps(facts((waited[-1] - waited[-2]) / _MEASURED_STEPS)))
            os._exit(0)
        loading.clear()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def facts(step: float) -> dict[str, object]:
        on = torch.cuda.is_available()
        return {
            "step": step,
            "loading": sum(loading) / _MEASURED_STEPS,
            "allocated": torch.cuda.max_memory_allocated() if on else 0,
            "reserved": torch.cuda.max_memory_reserved() if on else 0,
            "device": torch.cuda.get_device_name() if on else "cpu",
            "torch": torch.__version__,
        }

    register_optimizer_step_post_hook(after_update)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def _stand_in_for_trackers() -> None:
    import importlib
    from unittest.mock import MagicMock

    for name in _TRACKERS:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = MagicMock()


def _follow_loaders() -> list[float]:
    """Seconds in which the script waited for its data loaders, call by call."""
    from torch.utils.data import dataloader

    spent: list[float] = []
    take = dataloader._BaseDataLoaderIter.__next__

    def following(self: Any) -> Any:
        started = time.perf_counter()
        try:
            return take(self)
        finally:
            spent.append(time.perf_counter() - started)

    vars(dataloader)["_BaseDataLoaderIter"].__next__ = following
    return spent


def measure_host(answer: Path) -> None:
    """Seconds of what scripts do on the host in a step, one process alone."""
    import torch

    small, large = 2**10, 2**22
    makers: dict[str, Callable[[int], object]] = {
        "randn": lambda n: torch.randn(n), "rand": lambda n: torch.rand(n), "randint": lambda n: torch.randint(1000, (n,)),
        "randperm": lambda n: torch.randperm(n), "bernoulli": lambda n: torch.empty(n).bernoulli_(0.5),
        "zeros": lambda n: torch.zeros(n), "full": lambda n: torch.full((n,), 0.5),
    }  # fmt: skip
    found: dict[str, float] = {}
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        for name, make in makers.items():
            for n in (small, large):
                found[f"{name} {n} {threads}"] = seconds_of(partial(make, n))
        for n in (small, large):
            x = torch.ones(n)
            rows = [torch.ones(n // 32) for _ in range(32)]
            found[f"clone {n} {threads}"] = seconds_of(x.clone)
            found[f"stack {n} {threads}"] = seconds_of(partial(torch.stack, rows))
            found[f"mul {n} {threads}"] = seconds_of(partial(torch.mul, x, 2.0))
            found[f"bf16 {n} {threads}"] = seconds_of(x.bfloat16)
            if torch.cuda.is_available():
                found[f"to device {n} {threads}"] = seconds_of(x.cuda)
                found[f"pinned to device {n} {threads}"] = seconds_of(x.pin_memory().cuda)
    answer.write_text(json.dumps(found))


def seconds_of(work: Callable[[], object]) -> float:
    """The median of some runs, after a first."""
    work()
    taken = []
    for _ in range(15):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


if __name__ == "__main__":
    if sys.argv[2:]:
        run_one(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    else:
        measure_host(Path(sys.argv[1]))
