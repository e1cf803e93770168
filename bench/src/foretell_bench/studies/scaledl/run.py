"""The study of ScaleDL on the H200 dataset: with additive models, its ablations, and Foretell on the same folds.

Architectures are left out whole, in the eight folds that `foretell bench accuracy --split architecture` uses; with the
batch split, the largest batch of every architecture; if wanted, whole families too. Settings of both are chosen once,
seven variants each, on a fifth of the architectures that fold 0 trains on, and logged; fold 0 itself is not looked at
before. Foretell's forecasts are those of its settings as shipped, whatever its seven show. What measuring costs is what
it took. Parts of the method are removed in fold 0 and the batch split alone, messages with every seed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from foretell.supervisor import end_with_parent
from foretell_bench.rounding import short
from foretell_bench.studies.scaledl.fits import (
    CUT,
    FORETELL,
    LAYERS,
    NETWORKS,
    PARTS,
    WHOLE,
    Data,
    fold,
    load,
    points,
    share,
    try_foretell,
    try_layers,
    try_network,
    without,
)
from foretell_bench.studies.scaledl.report import Done, report

BUDGETS: Final = (30.0, 60.0, 120.0)  # seconds of measuring
DRAWS: Final = 3  # of random, at each budget
DESIGN_FOLDS: Final = (0, 1, 2)
ABLATED: Final[tuple[int | str, ...]] = (0, "batch")  # what is left out where parts of the method are


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    store: Path
    forecasts: Mapping[str, Path | None]  # split → what `foretell bench accuracy --save` wrote
    predictions: Path | None = None  # where they are kept: what is there is not fitted again
    families: bool = False  # leave out whole families too
    seeds: int = 1  # of the method with its messages and without
    workers: int = 2
    on: str = "cpu"  # where networks are trained
    say: Callable[[str], None]


class Tasks:
    """What was tried, chosen and predicted, written to a file as it comes; what is there is not done again."""

    def __init__(self, pool: ProcessPoolExecutor, done: Done, options: Options) -> None:
        self._pool, self._options, self._began = pool, options, time.monotonic()
        self.done = done

    def start(self, wanted: Mapping[str, tuple[Any, ...]]) -> dict[Future[Any], str]:
        return {self._pool.submit(*call): name for name, call in wanted.items() if name not in self.done}

    def finish(self, started: Mapping[Future[Any], str]) -> None:
        for task in as_completed(started):
            self.done[started[task]] = task.result()
            self._options.say(f"{time.monotonic() - self._began:6.0f} s  {started[task]}")
            if self._options.predictions:
                self._options.predictions.write_text(json.dumps(self.done))


def run(options: Options) -> dict[str, Any]:
    """The results, as the file of them has it."""
    data = load(options.store)
    done = fit_all(data, options)
    known = {split: read_predictions(path) for split, path in options.forecasts.items()}
    made: dict[str, Any] = short(report(data, done, known))
    return made


def fit_all(data: Data, options: Options) -> Done:
    path = options.predictions
    done: Done = json.loads(path.read_text()) if path and path.exists() else {}
    tried = all(f"foretell: {name}" in done for name in FORETELL)
    share(data, None if tried else _measured(options.store))
    # Forked workers inherit the data; the parent never touches the accelerator, so they can.
    with ProcessPoolExecutor(options.workers, mp_context=get_context("fork"), initializer=_begin) as pool:
        tasks = Tasks(pool, done, options)
        trees = tasks.start({f"foretell: {name}": (try_foretell, name) for name in FORETELL})  # the longest
        tasks.finish(tasks.start({f"layers: {name}": (try_layers, name) for name in LAYERS}))
        layers = min(LAYERS, key=lambda name: done[f"layers: {name}"][1])
        tasks.finish(tasks.start({f"network: {name}": (try_network, name, layers, options.on) for name in NETWORKS}))
        network = min(NETWORKS, key=lambda name: sum(done[f"network: {name}"][1:3]))
        done["chosen"] = {"layers": layers, "network": network}
        done.setdefault("on", options.on)
        tasks.finish(tasks.start(folds_and_parts(data, options, (layers, network, options.on))) | trees)
    return done


def folds_and_parts(data: Data, options: Options, chosen: tuple[str, str, str]) -> dict[str, tuple[Any, ...]]:
    """Tasks by name, with the settings that were chosen."""
    kinds = sorted(set(data.families), key=lambda f: -data.families.count(f)) if options.families else []
    left_out: list[int | str] = [*sorted(set(data.folds)), "batch", *kinds]
    parts = [(part, 0) for part in PARTS if part != WHOLE]
    parts += [(part, seed) for seed in range(1, options.seeds) for part in (WHOLE, CUT)]
    draws = [("d-optimal", 0), *(("random", seed) for seed in range(DRAWS))]
    wanted: dict[str, tuple[Any, ...]] = {f"fold: {which}": (fold, which, *chosen) for which in left_out}
    wanted |= {f"without: {which}, {part}, seed {seed}": (without, which, part, seed, *chosen)
               for which in ABLATED for part, seed in parts}  # fmt: skip
    return wanted | {f"points: {which}, {budget:.0f} s, {by} {seed}": (points, which, budget, by, seed, *chosen)
                     for which in DESIGN_FOLDS for budget in BUDGETS for by, seed in draws}  # fmt: skip


def _measured(store: Path) -> Any:
    from foretell.learn.dataset import load as load_measured
    from foretell.store.store import Store

    return load_measured(Store(store))


def _begin() -> None:
    import torch

    end_with_parent()
    torch.set_num_threads(1)


def read_predictions(path: Path | None) -> dict[str, tuple[float, float]]:
    """Record → device and step seconds, from what `foretell bench accuracy --save` wrote."""
    if path is None:
        return {}
    from foretell.learn.uncertainty.left_out import read_steps

    return {s.record: (s.device_predicted, s.step_predicted) for s in read_steps(path)}
