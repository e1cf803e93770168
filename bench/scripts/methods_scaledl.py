"""After ScaleDL on the H200 dataset: beside additive models, its ablations, and Foretell on the same folds.

    foretell bench accuracy --data bench/data/h200 --split architecture --save architecture.json  # and --split batch
    python bench/scripts/methods_scaledl.py [STORE] --foretell architecture.json --foretell-batch batch.json --said said.json
    python bench/scripts/methods_scaledl.py --show

Architectures are left out whole, in the eight folds that `foretell bench accuracy --split architecture` uses; with the
batch split, the largest batch of every architecture; with --families, whole families too. Settings of both are chosen
once, seven variants each, on a fifth of the architectures that fold 0 trains on, and logged; fold 0 itself is not looked
at before. Foretell's forecasts are those of its settings as shipped, whatever its seven say. What measuring costs is what
it took. Parts of the method are taken away in fold 0 and the batch split alone, messages with every
seed. What is in the file of --said is not
fitted again. Writes results/scaledl.json and, from it alone, the chart of bench/notes/methods/scaledl.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1] / "src")]

from foretell_bench.rounding import short
from scaledl_fits import (
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
from scaledl_report import Done, chart, report, show

from foretell.supervisor import end_with_parent

HERE = Path(__file__).parents[1]
BUDGETS = (30.0, 60.0, 120.0)  # seconds of measuring
DRAWS = 3  # of random, at each budget
DESIGN_FOLDS = (0, 1, 2)
ABLATED: tuple[int | str, ...] = (0, "batch")  # what is left out where parts of the method are


class Tasks:
    """What was tried, chosen and predicted, written to a file as it comes; what is there is not done again."""

    def __init__(self, pool: ProcessPoolExecutor, done: Done, keep: Path | None) -> None:
        self._pool, self._keep, self._began = pool, keep, time.monotonic()
        self.done = done

    def start(self, wanted: dict[str, tuple[Any, ...]]) -> dict[Future[Any], str]:
        return {self._pool.submit(*call): name for name, call in wanted.items() if name not in self.done}

    def finish(self, started: dict[Future[Any], str]) -> None:
        for task in as_completed(started):
            self.done[started[task]] = task.result()
            print(f"{time.monotonic() - self._began:6.0f} s  {started[task]}", flush=True)
            if self._keep:
                self._keep.write_text(json.dumps(self.done))


def experiment(data: Data, store: Path, workers: int, on: str, families: bool, keep: Path | None, seeds: int) -> Done:
    done: Done = json.loads(keep.read_text()) if keep and keep.exists() else {}
    share(data, None if all(f"foretell: {name}" in done for name in FORETELL) else _measured(store))
    # Forked workers inherit the data; the parent never touches the accelerator, so they can.
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_begin) as pool:
        tasks = Tasks(pool, done, keep)
        trees = tasks.start({f"foretell: {name}": (try_foretell, name) for name in FORETELL})  # the longest
        tasks.finish(tasks.start({f"layers: {name}": (try_layers, name) for name in LAYERS}))
        layers = min(LAYERS, key=lambda name: done[f"layers: {name}"][1])
        tasks.finish(tasks.start({f"network: {name}": (try_network, name, layers, on) for name in NETWORKS}))
        network = min(NETWORKS, key=lambda name: sum(done[f"network: {name}"][1:3]))
        chosen = (layers, network, on)
        done["chosen"] = {"layers": layers, "network": network}
        done.setdefault("on", on)
        folds: list[int | str] = [*sorted(set(data.folds)), "batch"]
        kinds = sorted(set(data.families), key=lambda f: -data.families.count(f)) if families else []
        parts = [(part, 0) for part in PARTS if part != WHOLE]
        parts += [(part, seed) for seed in range(1, seeds) for part in (WHOLE, CUT)]
        draws = [("d-optimal", 0), *(("random", seed) for seed in range(DRAWS))]
        rest: dict[str, tuple[Any, ...]] = {f"fold: {which}": (fold, which, *chosen) for which in (*folds, *kinds)}
        rest |= {f"without: {which}, {part}, seed {seed}": (without, which, part, seed, *chosen)
                 for which in ABLATED for part, seed in parts}  # fmt: skip
        rest |= {f"points: {which}, {budget:.0f} s, {by} {seed}": (points, which, budget, by, seed, *chosen)
                 for which in DESIGN_FOLDS for budget in BUDGETS for by, seed in draws}  # fmt: skip
        tasks.finish(tasks.start(rest) | trees)
    return done


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", type=Path, default=HERE / "data" / "h200")
    parser.add_argument("--foretell", type=Path, help="what Foretell predicted, architectures left out")
    parser.add_argument("--foretell-batch", type=Path, help="what Foretell predicted, largest batches left out")
    parser.add_argument(
        "--foretell-family", type=Path, default=HERE / "results" / "accuracy.json", help="… families left out"
    )
    parser.add_argument("--said", type=Path, help="where predictions are kept: what is there is not fitted again")
    parser.add_argument("--families", action="store_true", help="leave out whole families too")
    parser.add_argument("--seeds", type=int, default=1, help="of the method with its messages and without")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--on", default="cpu", help="where networks are trained: cpu or cuda")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scaledl.json")
    parser.add_argument("--show", action="store_true", help="show and draw results that are there, and stop")
    options = parser.parse_args()
    picture = HERE.parent / "docs" / "accuracy" / "methods" / "scaledl.svg"
    if options.show:
        made = json.loads(options.out.read_text())
    else:
        data = load(options.store)
        done = experiment(
            data, options.store, options.workers, options.on, options.families, options.said, options.seeds
        )
        files = {
            "architecture": options.foretell,
            "batch": options.foretell_batch,
            "family": options.foretell_family,
        }
        made = short(report(data, done, {split: read_predictions(path) for split, path in files.items()}))
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    show(made)
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(chart(made), encoding="utf-8")


if __name__ == "__main__":
    main()
