"""After Driple on the project's own measurements: error by target on unseen architectures, and what transfer saves.

    python bench/scripts/methods_driple.py [--data box] [--only SETTING] [--seeds 5] [--workers 2]
    python bench/scripts/methods_driple.py --as-released --on cuda --workers 10 --seconds 500
    python bench/scripts/methods_driple.py --forecasts                         # Foretell and the median, on the same rows
    python bench/scripts/methods_driple.py --show [--picture bench/notes/methods/driple.svg]
    python bench/scripts/methods_driple.py --h200 60

Each seed leaves another architecture of each family out of every setting, fits each setting from scratch with all, half
and a quarter of the other architectures, and tailors the network of the source setting to it, with the release's frozen
groups and without. A fit stops on architectures left out for validation; those it is asked about in the end play no part.
Equal is an error of validation, the median of five epochs in a row, within 5 % of the least that training from scratch has.
A fit that never gets there counts as no saving at all. How to train is chosen before, on architectures of the source that
no seed leaves out of its own training, and logged; --as-released takes 100 groups, 50 rounds and the release's labels
instead, which asks for a GPU. Results are kept after every fit, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from driple_fits import (
    DATA,
    HERE,
    SCRATCH,
    SEEDS,
    SHARES,
    TRIED,
    WAYS,
    Fit,
    Rows,
    by_setting,
    fit_one,
    h200,
    others,
    tune,
    warm,
)
from driple_report import picture, show, times_less
from foretell_bench.rounding import short

from foretell.methods.driple.method import RELEASED, Driple, DripleSettings

RESULTS: Final = HERE / "results"
JUDGED: Final = "on validation, sustained, fit by fit"  # results that were judged otherwise are begun anew
POLLED: Final = 0.05  # seconds between looks at who is done
BASE: Final = ("all", SCRATCH)  # of the source: what is tailored


def wanted(settings: list[str], source: str, seeds: int, only: str) -> list[Fit]:
    """The source first, then what is compared with all rows, then with fewer."""
    found = [Fit(setting=source, seed=seed, share="all", way=SCRATCH) for seed in range(seeds)]
    targets = [s for s in settings if s != source and only in s]
    for share, way, seed, setting in product(SHARES, (SCRATCH, *WAYS), range(seeds), targets):
        found.append(Fit(setting=setting, seed=seed, share=share, way=way))
    return found


class Study:
    """Fits that are there, and the networks that others are tailored from."""

    def __init__(self, path: Path, results: dict[str, Any], source: str) -> None:
        self.path, self.results, self.source = path, results, source
        self.bases = path.parent / f"{path.stem}-bases"

    def has(self, task: Fit) -> bool:
        fits = self.results["settings"].get(task.setting, {}).get(str(task.seed), {}).get("fits", {})
        there = task.way in fits.get(task.share, ())
        return there and (task.setting != self.source or self.base(task.seed) is not None)

    def base(self, seed: int) -> Driple | None:
        path = self.bases / f"{seed}.pickle"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def is_ready(self, task: Fit) -> bool:
        return task.way == SCRATCH or (self.bases / f"{task.seed}.pickle").exists()

    def add(self, task: Fit, found: dict[str, Any], made: Driple) -> None:
        one = self.results["settings"].setdefault(task.setting, {}).setdefault(str(task.seed), {"fits": {}})
        one["fits"].setdefault(task.share, {})[task.way] = found
        if task.setting == self.source and (task.share, task.way) == BASE:
            self.bases.mkdir(parents=True, exist_ok=True)
            (self.bases / f"{task.seed}.pickle").write_bytes(pickle.dumps(made))
        self.keep()

    def keep(self) -> None:
        self.results["times less"] = times_less(self.results["settings"], self.source)
        text = json.dumps(short(self.results), separators=(",", ":")) + "\n"
        (fresh := self.path.with_suffix(".new")).write_text(text)
        fresh.replace(self.path)


# In processes.

_rows: Rows = {}
_data: str = ""


def _begin(data: str, chosen: DripleSettings) -> None:
    global _data
    _data = data
    _rows.update(by_setting(DATA[data].read()))
    warm([e for rows in _rows.values() for e in rows], chosen)


def _fit(task: Fit, chosen: DripleSettings, base: Driple | None) -> tuple[dict[str, Any], Driple]:
    return fit_one(task, _rows, DATA[_data], chosen, base)


def run(study: Study, tasks: list[Fit], chosen: DripleSettings, data: str, workers: int, seconds: float) -> None:
    """Everything that is not there yet; none is begun after so many seconds, and none is waited for."""
    end = time.monotonic() + seconds
    if workers == 1:
        _begin(data, chosen)
        for task in tasks:
            if time.monotonic() < end:
                study.add(task, *_fit(task, chosen, study.base(task.seed)))
                print(f"{task}", flush=True)
        return
    with get_context("spawn").Pool(workers, _begin, (data, chosen)) as pool:
        running: dict[Fit, Any] = {}
        while (tasks or running) and time.monotonic() < end:
            for task in [t for t in tasks if study.is_ready(t)][: workers - len(running)]:
                tasks.remove(task)
                running[task] = pool.apply_async(_fit, (task, chosen, study.base(task.seed)))
            for task, answer in _done(running):
                study.add(task, *answer)
                one = answer[0]
                print(f"{end - time.monotonic():5.0f} s left  {task.setting} seed {task.seed} {task.share} {task.way}: "
                      f"{one['curve'][-1][0]} epochs, {one['seconds']:.0f} s, error {one['error']:.3f}", flush=True)  # fmt: skip
            time.sleep(POLLED)
        pool.terminate()


def _done(running: dict[Fit, Any]) -> Iterator[tuple[Fit, Any]]:
    for task in [t for t, answer in running.items() if answer.ready()]:
        try:
            yield task, running.pop(task).get()
        except Exception as error:  # others go on
            print(f"{task}: {error!r}", flush=True)


def compare(study: Study, seeds: int, data: str) -> None:
    """Foretell and the median of training on the rows that every seed leaves out."""
    for setting, rows in by_setting(DATA[data].read()).items():
        for seed in range(seeds):
            one = study.results["settings"].get(setting, {}).get(str(seed))
            if one is not None and "others" not in one:
                one["others"] = others(rows, seed, DATA[data])
                study.keep()
                print(f"others: {setting} seed {seed}", flush=True)


def chosen_settings(options: argparse.Namespace, results: dict[str, Any], keep: Callable[[], None]) -> DripleSettings:
    own = {name: getattr(options, name) for name in ("batch", "patience", "epochs", "labels") if getattr(options, name)}
    if options.as_released:
        return replace(RELEASED, trains_on=options.on, **own)
    if "tuning" not in results:
        data = DATA[options.data]
        results["tuning"] = tune(by_setting(data.read())[data.source], data.targets)
        keep()
    return replace(
        TRIED[results["tuning"]["chosen"]], trains_on=options.on, **own
    )  # until patience, whatever its length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=tuple(DATA), default="box")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="a part of a setting's name")
    parser.add_argument("--workers", type=int, default=1, help="processes, a fit each")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no fit after these, and end")
    parser.add_argument(
        "--forecasts", action="store_true", help="the median and Foretell on the rows of the fits there are"
    )
    parser.add_argument("--h200", type=int, default=0, help="rows of the H200 store, instead")
    parser.add_argument("--show", action="store_true", help="what is there, nothing computed")
    parser.add_argument("--as-released", action="store_true", help="100 groups, 50 rounds, until patience; on a GPU")
    parser.add_argument("--on", default="cpu", help="where networks are trained: cpu or cuda")
    parser.add_argument("--batch", type=int, help="graphs in an update")
    parser.add_argument("--patience", type=int, help="epochs without a better validation error")
    parser.add_argument("--epochs", type=int, help="at most")
    parser.add_argument("--labels", choices=("largest", "log"))
    parser.add_argument(
        "--out", type=Path, help="bench/results/driple.json unless named; of box-gpu, driple-box-gpu.json"
    )
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    path = options.out or RESULTS / ("driple.json" if options.data == "box" else f"driple-{options.data}.json")
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"settings": {}}
    if results.get("judged") != JUDGED:
        results = {"judged": JUDGED, "settings": {}}
    study = Study(path, results, DATA[options.data].source)
    if options.forecasts:
        compare(study, options.seeds, options.data)
    elif not options.show:
        chosen = chosen_settings(options, results, study.keep)
        results["settings of training"] = asdict(chosen)
        if options.h200:
            results["h200"] = h200(options.h200, chosen)
        else:
            settings = [*by_setting(DATA[options.data].read())]
            tasks = [t for t in wanted(settings, study.source, options.seeds, options.only) if not study.has(t)]
            run(study, tasks, chosen, options.data, options.workers, options.seconds)
        study.keep()
    show(results, study.source)
    if options.picture:
        picture(results, study.source, options.picture)


if __name__ == "__main__":
    main()
