"""Variants of the published systems on the same folds and seeds: what each of their parts is worth, with intervals.

Groups (architectures) are left out fold by fold; what is random takes every seed. Kept in a file fit by fit, so that a run
goes on where it was stopped, and the interval of a ratio is over folds and seeds.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from foretell.errors import ForetellError
from foretell.learn.workers import each
from foretell.methods import DNNAbacus, PredictDDL, ScaleDL
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Method
from foretell.methods.scaledl.layers import LayerSettings
from foretell.methods.scaledl.network import NetworkSettings
from foretell_bench.graphs import Say, quiet
from foretell_bench.methods.nearest import NearestNetwork
from foretell_bench.methods.plainer import Additive, FlopLinear
from foretell_bench.research.ghn.hypernetwork import PICTURES

FOLDS: Final = 5
_LEARNED: Final = (STEP_TIME, DEVICE_TIME)  # what a fit is given; step time is what it predicts
Maker = Callable[[int, str], Method]  # of a seed, and where networks are trained


def _scaledl(**network: Any) -> Maker:
    return lambda seed, on: ScaleDL(
        layers=LayerSettings(seed=seed), network=NetworkSettings(**network, seed=seed, trains_on=on)
    )


def _predictddl(**options: Any) -> Maker:
    return lambda seed, on: PredictDDL(**options)


VARIANTS: Final[Mapping[str, Maker]] = {
    "ScaleDL": _scaledl(),
    "ScaleDL, messages cut": _scaledl(messages=False),
    "ScaleDL, sum of layers": _scaledl(rounds=0),
    "ScaleDL, whole-graph network": _scaledl(sees_times=False),
    "additive": lambda seed, on: Additive(),
    "FLOP-linear": lambda seed, on: FlopLinear(),
    "PredictDDL": _predictddl(),
    "PredictDDL, embedding only": _predictddl(reads="embedding"),
    "PredictDDL, embedding only, random weights": _predictddl(reads="embedding", trained=False),
    "PredictDDL, embedding only, sum pooling": _predictddl(reads="embedding", pooling="sum"),
    "PredictDDL, embedding only, log-count pooling": _predictddl(reads="embedding", pooling="log-count"),
    "PredictDDL, embedding only, hypernetwork of pictures": _predictddl(reads="embedding", weights=PICTURES),
    "PredictDDL, hypernetwork of pictures": _predictddl(weights=PICTURES),
    "PredictDDL, random weights": _predictddl(trained=False),
    "PredictDDL, no embedding": _predictddl(reads="work"),
    "PredictDDL, all data pooled": _predictddl(pooled=True),
    "nearest network": lambda seed, on: NearestNetwork(),
    "DNNAbacus": lambda seed, on: DNNAbacus(seed=seed),
    "DNNAbacus, not tuned": lambda seed, on: DNNAbacus(seed=seed, tuned=False),
}
OF_LAYERS: Final = tuple(name for name in VARIANTS if name.startswith("ScaleDL") or name in ("additive", "FLOP-linear"))
_SEEDED: Final = ("ScaleDL", "DNNAbacus")  # names begin so; the others are the same for every seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The rows of a source, the fold of each, and where networks are trained."""

    source: str
    examples: Sequence[Example]
    folds: Sequence[int]
    on: str


class Task(NamedTuple):
    variant: str
    fold: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One variant, fold and seed: the mean error of step time over the rows left out."""

    source: str
    variant: str
    fold: int
    seed: int
    rows: int
    answered: int
    mean: float | None
    seconds: float
    why: str = ""

    @property
    def key(self) -> str:
        return f"{self.source} | {self.variant} | {self.fold} | {self.seed}"


def folds(examples: Sequence[Example], count: int = FOLDS, *, rows: bool = False) -> list[int]:
    """The fold of each row; an architecture is in one, dealt out in the order of names, so that siblings part.

    With `rows`, every fold has some batches of each architecture.
    """
    if rows:
        order = sorted(range(len(examples)), key=lambda i: (examples[i].query.architecture, examples[i].query.batch))
        drawn = np.random.default_rng(0).permutation(len(order))
        place = {i: int(drawn[k]) % count for k, i in enumerate(order)}
        return [place[i] for i in range(len(examples))]
    names = sorted({e.query.architecture for e in examples})
    by_name = {name: i % min(count, len(names)) for i, name in enumerate(names)}
    return [by_name[e.query.architecture] for e in examples]


def run(
    source: str, examples: Sequence[Example], save: Path, *, only: Sequence[str] = (), seeds: int = 5, on: str = "cpu",
    say: Say = quiet, rows: bool = False, workers: int = 1,
) -> None:  # fmt: skip
    """Every variant that the file does not have yet; with `rows`, some batches of each architecture are left out."""
    there = read(save)
    examples = [replace(e, measured={t: v for t, v in e.measured.items() if t in _LEARNED}) for e in examples]
    data = Data(source=source, examples=examples, folds=folds(examples, rows=rows), on=on)
    tested = sorted({f for e, f in zip(examples, data.folds, strict=True) if STEP_TIME in e.measured})
    names = only or list(VARIANTS)
    # Seed by seed, so that a run broken off has the same seeds of all.
    tasks = [Task(name, fold, seed) for seed in range(seeds) for name in names for fold in tested
             if not seed or name.startswith(_SEEDED)]  # fmt: skip
    tasks = [task for task in tasks if f"{source} | {task.variant} | {task.fold} | {task.seed}" not in there]
    for _, found in each(fit, data, tasks, workers):
        there[found.key] = asdict(found)
        save.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in there.items()) + "\n}\n")
        error = "no answer" if found.mean is None else f"{found.mean:.1%}"
        say(f"{source}, {found.variant}, fold {found.fold}, seed {found.seed}: {error}, {found.seconds:.0f} s")


def fit(data: Data, task: Task) -> Fit:
    torch.set_num_threads(1)
    placed = list(zip(data.examples, data.folds, strict=True))
    tested = [e for e, fold in placed if fold == task.fold and STEP_TIME in e.measured]
    made = VARIANTS[task.variant](task.seed, data.on)
    about: dict[str, Any] = {"source": data.source, **task._asdict(), "rows": len(tested)}
    began = time.process_time()
    try:
        answers = made.fit([e for e, fold in placed if fold != task.fold]).predict([e.query for e in tested])
    except ForetellError as error:
        return Fit(**about, answered=0, mean=None, seconds=time.process_time() - began, why=str(error)[:300])
    off = [
        abs(answer.values[STEP_TIME] / e.measured[STEP_TIME] - 1)
        for answer, e in zip(answers, tested, strict=True)
        if STEP_TIME in answer.values
    ]
    seconds = time.process_time() - began
    return Fit(**about, answered=len(off), mean=float(np.mean(off)) if off else None, seconds=seconds)


def read(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Source, variant, mean error, nine tenths of folds and seeds, how much higher than the first of its kind, fits."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for fit in found.values():
        if fit["mean"] is not None:
            groups[fit["source"], fit["variant"]].append(fit)
    rows: list[tuple[str, ...]] = []
    for (source, variant), fits in sorted(groups.items()):
        errors = [fit["mean"] for fit in fits]
        whole = {(f["fold"], f["seed"]): f["mean"] for f in groups.get((source, variant.partition(",")[0]), [])}
        ratios = [
            f["mean"] / of for f in fits if (of := whole.get((f["fold"], f["seed"])) or whole.get((f["fold"], 0)))
        ]
        low, high = nine_tenths(errors)
        times = f"{fmean(ratios):.2f} ({' to '.join(f'{r:.2f}' for r in nine_tenths(ratios))})" if ratios else ""
        rows.append((source, variant, f"{fmean(errors):.1%}", f"{low:.1%} to {high:.1%}", times, str(len(fits))))
    return rows


def nine_tenths(values: Sequence[float]) -> tuple[float, float]:
    """Between which nine tenths of them lie."""
    if len(values) < 2:
        return values[0], values[0]
    low, *_, high = quantiles(values, n=20, method="inclusive")
    return low, high
