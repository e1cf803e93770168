"""What `foretell.watch` costs a training loop on this machine's CPU: the time inside it, and whole loops beside it.

Blocks of watched steps take turns with blocks of plain ones. A busy machine moves the ratio of the two by more than what
is measured, so the time spent inside is also counted directly: in the loop's own thread, and in the one that writes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any, Final

import torch

import foretell
from foretell.watching.keeping import Keeper
from foretell.watching.stopwatch import Window

BLOCK: Final = 50  # steps
_FEWEST_BLOCKS: Final = 2  # of each kind: fewer have no spread
_writing = [0.0]


def workload(width: int) -> foretell.Workload:
    return foretell.Workload(
        name="perceptron",
        model=lambda: torch.nn.Sequential(
            *(torch.nn.Linear(width, width) for _ in range(8)), torch.nn.Linear(width, 10)
        ),
        batch=lambda: {"x": torch.randn(64, width), "y": torch.randint(10, (64,))},
        loss=lambda model, b: torch.nn.functional.cross_entropy(model(b["x"]), b["y"]),
        optimizer=lambda params: torch.optim.AdamW(params),
    )


def count_writing() -> None:
    """CPU seconds of the thread that writes."""
    append = Keeper._append

    def counted(self: Keeper, window: Window, columns: dict[str, Any]) -> None:
        began = time.thread_time()
        append(self, window, columns)
        _writing[0] += time.thread_time() - began

    Keeper._append = counted  # type: ignore[method-assign]


def run(seconds: float = 120.0, every: float = 60.0, width: int = 512) -> None:
    torch.set_num_threads(1)
    count_writing()
    work = workload(width)
    model, batch = work.model(), work.batch()
    assert work.optimizer is not None
    optimizer = work.optimizer(model.parameters())
    blocks: dict[bool, list[float]] = {True: [], False: []}
    inside = {True: 0.0, False: 0.0}
    with tempfile.TemporaryDirectory() as folder:
        watch = foretell.watch(work, on="cpu", every=every / 2, store=folder)  # half of the steps are watched
        watch.step()  # what happens once
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or len(blocks[False]) < _FEWEST_BLOCKS:
            watched = len(blocks[True]) == len(blocks[False])
            watch.pause()
            start = time.process_time()
            for _ in range(BLOCK):
                work.loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                before = time.thread_time()  # not what other processes take meanwhile
                if watched:
                    watch.step()
                inside[watched] += time.thread_time() - before
            blocks[watched].append(time.process_time() - start)
        watch.close()
        rows = len(list(foretell.Store(folder).steps()))
    per_step = {kind: inside[kind] / len(blocks[kind]) / BLOCK for kind in inside}
    plain, extra = statistics.median(blocks[False]) / BLOCK, per_step[True] - per_step[False]  # less the clock itself
    window = _writing[0] / rows
    print(f"a plain step: {plain * 1e3:.2f} ms; inside watch.step(): {extra * 1e6:.1f} us a step")
    print(f"{rows} windows written, {window * 1e3:.1f} ms of processor each, beside the loop")
    print(f"share of the loop: {extra / plain + window / every:.3%} ({extra / plain:.3%} + {window / every:.3%})")
    ratios = [watched / alone - 1 for watched, alone in zip(blocks[True], blocks[False], strict=False)]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"a watched block over the plain one after it: {statistics.mean(ratios):+.2%}, give or take {spread:.2%}")
