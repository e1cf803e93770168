"""The study of Driple on the project's own measurements: error by target on unseen architectures, and what transfer saves.

Each seed leaves another architecture of each family out of every setting, fits each setting from scratch with all, half
and a quarter of the other architectures, and tailors the network of the source setting to it, with the release's frozen
groups and without. A fit stops on architectures left out for validation; those it predicts in the end play no part.
Equal is an error of validation, the median of five epochs in a row, within 5 % of the least that training from scratch has.
A fit that never gets there counts as no saving at all. How to train is chosen before, on architectures of the source that
no seed leaves out of its own training, and logged; as released, it has 100 groups, 50 rounds and the release's labels
instead, which needs a GPU. Results are kept after every fit, and what is there is not computed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from foretell.methods.driple.method import RELEASED, DripleSettings, Fitted
from foretell_bench.rounding import short
from foretell_bench.studies.driple.fits import (
    SCRATCH,
    SEEDS,
    SHARES,
    TRIED,
    WAYS,
    Fit,
    Rows,
    by_setting,
    data_of,
    fit_one,
    h200,
    load,
    others,
    save,
    tune,
    warm,
)
from foretell_bench.studies.driple.report import times_less

JUDGED: Final = "on validation, sustained, fit by fit"  # results that were judged otherwise are begun anew
POLL_SECONDS: Final = 0.05  # between looks at who is done
BASE: Final = ("all", SCRATCH)  # of the source: what is tailored
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data: str = "box"
    stores: Path
    only: str = ""  # a part of a setting's name
    seeds: int = SEEDS
    workers: int = 1  # processes, a fit each
    seconds: float = 1e9  # begin no fit after these, and end
    as_released: bool = False
    on: str = "cpu"  # where networks are trained
    training: Mapping[str, Any]  # settings unlike the chosen ones
    say: Say


class Study:
    """Fits that are there, and the networks that others are tailored from."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if self.results.get("judged") != JUDGED:
            self.results = {"judged": JUDGED, "settings": {}}

    def base_file(self, seed: int) -> Path:
        return self.path.parent / f"{self.path.stem}-bases" / f"{seed}.safetensors"

    def has(self, task: Fit) -> bool:
        fits = self.results["settings"].get(task.setting, {}).get(str(task.seed), {}).get("fits", {})
        there = task.way in fits.get(task.share, ())
        return there and (task.setting != self.source or self.base_file(task.seed).exists())

    def base(self, task: Fit) -> Fitted | None:
        """What a fit is tailored from."""
        return None if task.way == SCRATCH else load(self.base_file(task.seed))

    def is_ready(self, task: Fit) -> bool:
        return task.way == SCRATCH or self.base_file(task.seed).exists()

    def add(self, task: Fit, found: dict[str, Any], made: Fitted) -> None:
        one = self.results["settings"].setdefault(task.setting, {}).setdefault(str(task.seed), {"fits": {}})
        one["fits"].setdefault(task.share, {})[task.way] = found
        if task.setting == self.source and (task.share, task.way) == BASE:
            self.base_file(task.seed).parent.mkdir(parents=True, exist_ok=True)
            save(made, self.base_file(task.seed))
        self.keep()

    def keep(self) -> None:
        self.results["times less"] = times_less(self.results["settings"], self.source)
        text = json.dumps(short(self.results), separators=(",", ":")) + "\n"
        (fresh := self.path.with_suffix(".new")).write_text(text)
        fresh.replace(self.path)


def run(study: Study, options: Options) -> None:
    """Every fit that is not there yet."""
    chosen = chosen_settings(study, options)
    study.results["settings of training"] = asdict(chosen)
    settings = [*by_setting(data_of(options.data, options.stores).read())]
    tasks = [t for t in wanted(settings, study.source, options) if not study.has(t)]
    if options.workers == 1:
        _run_here(study, tasks, chosen, options)
    else:
        _run_pool(study, tasks, chosen, options)
    study.keep()


def wanted(settings: Sequence[str], source: str, options: Options) -> list[Fit]:
    """The source first, then what is compared with all rows, then with fewer."""
    seeds = range(options.seeds)
    found = [Fit(setting=source, seed=seed, share="all", way=SCRATCH) for seed in seeds]
    targets = [s for s in settings if s != source and options.only in s]
    for share, way, seed, setting in product(SHARES, (SCRATCH, *WAYS), seeds, targets):
        found.append(Fit(setting=setting, seed=seed, share=share, way=way))
    return found


def chosen_settings(study: Study, options: Options) -> DripleSettings:
    if options.as_released:
        return replace(RELEASED, trains_on=options.on, **options.training)
    if "tuning" not in study.results:
        data = data_of(options.data, options.stores)
        study.results["tuning"] = tune(by_setting(data.read())[data.source], data.targets, options.say)
        study.keep()
    chosen = TRIED[study.results["tuning"]["chosen"]]  # until patience, whatever its length
    return replace(chosen, trains_on=options.on, **options.training)


# In processes.

_rows: Rows = {}
_data: tuple[str, Path] | None = None


def _begin(name: str, stores: Path, chosen: DripleSettings) -> None:
    import torch

    torch.set_num_threads(1)
    global _data
    _data = (name, stores)
    _rows.update(by_setting(data_of(name, stores).read()))
    warm([e for rows in _rows.values() for e in rows], chosen)


def _fit(task: Fit, chosen: DripleSettings, base: Fitted | None) -> tuple[dict[str, Any], Fitted]:
    assert _data is not None
    return fit_one(task, _rows, data_of(*_data), chosen, base)


def _run_here(study: Study, tasks: Sequence[Fit], chosen: DripleSettings, options: Options) -> None:
    end = time.monotonic() + options.seconds
    _begin(options.data, options.stores, chosen)
    for task in tasks:
        if time.monotonic() < end:
            study.add(task, *_fit(task, chosen, study.base(task)))
            options.say(f"{task}")


def _run_pool(study: Study, tasks: list[Fit], chosen: DripleSettings, options: Options) -> None:
    """None is begun after the end, and none is waited for."""
    end = time.monotonic() + options.seconds
    with get_context("spawn").Pool(options.workers, _begin, (options.data, options.stores, chosen)) as pool:
        running: dict[Fit, Any] = {}
        while (tasks or running) and time.monotonic() < end:
            for task in [t for t in tasks if study.is_ready(t)][: options.workers - len(running)]:
                tasks.remove(task)
                running[task] = pool.apply_async(_fit, (task, chosen, study.base(task)))
            for task, (found, made) in _done(running, options.say):
                study.add(task, found, made)
                options.say(f"{end - time.monotonic():5.0f} s left  {task.setting} seed {task.seed} {task.share} {task.way}: "
                            f"{found['curve'][-1][0]} epochs, {found['seconds']:.0f} s, error {found['error']:.3f}")  # fmt: skip
            time.sleep(POLL_SECONDS)
        pool.terminate()


def _done(running: dict[Fit, Any], say: Say) -> Iterator[tuple[Fit, Any]]:
    for task in [t for t, answer in running.items() if answer.ready()]:
        try:
            yield task, running.pop(task).get()
        except Exception as error:  # others go on
            say(f"{task}: {error!r}")


# The same rows, otherwise.


def compare(study: Study, options: Options) -> None:
    """Foretell and the median of training on the rows that every seed leaves out."""
    data = data_of(options.data, options.stores)
    for setting, rows in by_setting(data.read()).items():
        for seed in range(options.seeds):
            one = study.results["settings"].get(setting, {}).get(str(seed))
            if one is not None and "others" not in one:
                one["others"] = others(rows, seed, data)
                study.keep()
                options.say(f"others: {setting} seed {seed}")


def fit_h200(study: Study, options: Options, rows: int) -> None:
    """So many rows of the H200 store, instead."""
    study.results["h200"] = h200(options.stores / "h200", rows, chosen_settings(study, options))
    study.keep()
