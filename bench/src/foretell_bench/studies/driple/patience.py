"""Driple trained as its release trains, until a thousand epochs bring nothing better: learning curves, and what is beside it.

All seeds of a setting, and all settings, are fitted side by side on a GPU (`stacked`). Beside them, on the same rows: the median
of the training rows, and a ridge over three totals of the same graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from foretell.methods.driple.method import RELEASED, Driple, DripleSettings, Fitted, parted, setting_of
from foretell.methods.protocol import Example
from foretell_bench.studies.driple.fits import (
    SCRATCH,
    WAYS,
    Data,
    Rows,
    Values,
    error_of,
    errors,
    load,
    save,
    scales,
    split,
)
from foretell_bench.studies.driple.stacked import Given, Outcome, fit_all

Say = Callable[[str], None]
Results = dict[str, Any]
BATCH: Final = 64
_DENSE: Final = 100  # epochs that are kept each; later ones every tenth
_RIDGE: Final = 1.0


def run(
    rows: Rows, data: Data, path: Path, results: Results, *, seeds: int, seconds: float, on: str, say: Say,
    settings: DripleSettings = RELEASED, keep: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """From scratch, then tailored in each way; fits that have ended are not fitted again, others go on, and no stack is begun when
    time is up."""
    chosen = replace(settings, batch=BATCH, trains_on=on)
    end = time.monotonic() + seconds
    every = [(setting, seed) for setting in sorted(rows) for seed in range(seeds)]
    for way in (SCRATCH, *WAYS):
        wanted = [at for at in every if way == SCRATCH or at[0] != data.source]
        there = results.get(way, {})
        if all(there.get(_key(*at), {}).get("ended") for at in wanted) or time.monotonic() > end:
            continue
        say(f"{way}: {len(wanted)} fits")
        given = [_given(rows, data, path, at, way) for at in wanted]
        found = fit_all(given, chosen, seconds=end - time.monotonic(), say=say, kept=_going(path, way))
        for (setting, seed), one, made in zip(wanted, given, found, strict=True):
            own = results.setdefault(way, {})
            own[_key(setting, seed)] = _result(one, made, rows[setting], seed, data, chosen)
            if way == SCRATCH and setting == data.source:
                save(made.fitted, _base(path, seed))
        keep()


def _key(setting: str, seed: int) -> str:
    return f"{setting} | {seed}"


def _base(path: Path, seed: int) -> Path:
    folder = path.parent / f"{path.stem}-bases"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{seed}.safetensors"


def _going(path: Path, way: str) -> Path:
    """What a stack that had to stop goes on from."""
    return _base(path, 0).with_name(f"{way.replace(', ', '-').replace(' ', '-')}.going")


def _given(rows: Rows, data: Data, path: Path, at: tuple[str, int], way: str) -> Given:
    setting, seed = at
    train, test = split(rows[setting], seed)
    if way == SCRATCH:
        return Given(train=train, test=test, seed=seed)
    return Given(train=train, test=test, seed=seed, known=load(_base(path, seed)), tune=WAYS[way])


def _result(
    one: Given, made: Outcome, rows: Sequence[Example], seed: int, data: Data, settings: DripleSettings
) -> Results:
    train, test = split(rows, seed)
    scale = scales(train, data.targets)
    method = Driple(settings)
    method.fitted_ = {setting_of(test[0].query): made.fitted}
    predicted = [p.values for p in method.predict([e.query for e in test])]
    rivals = {
        "after Driple": predicted,
        "median of training": constant(train, test, scale),
        "ridge": ridge(train, test, scale),
    }
    found = {name: errors(values, test, scale) for name, values in rivals.items()}
    return {
        "rows": len(train), "test": len(test), "epochs": len(made.curve) - 1, "best": made.best_epoch, "ended": made.ended,
        "error": {name: round(error_of(by), 4) for name, by in found.items()}, "curve": thinned(made.curve),
        "errors": {name: {t: round(v["off"], 4) for t, v in by.items()} for name, by in found.items()},
        "validated": _validated(train, made.fitted, data, settings),
    }  # fmt: skip


def _validated(train: Sequence[Example], fitted: Fitted, data: Data, settings: DripleSettings) -> dict[str, float]:
    """Mean squares of the rivals on what a fit is stopped by: lines beside its curve."""
    seen, left_out = parted(train, settings.validated)
    labels, scale = Driple(settings).labels_of(left_out, fitted), scales(seen, data.targets)
    found = {}
    for name, rival in (("ridge", ridge), ("median of training", constant)):
        table = [[v.get(t, np.nan) for t in fitted.targets] for v in rival(seen, left_out, scale)]
        found[name] = float(f"{np.nanmean((np.array(table) / fitted.largest - labels) ** 2):.4g}")
    return found


def thinned(curve: Sequence[float]) -> list[list[float]]:
    """Epoch and error of validation."""
    return [[i, float(f"{e:.4g}")] for i, e in enumerate(curve) if i <= _DENSE or i % 10 == 0 or i == len(curve) - 1]


# Beside it.


def constant(train: Sequence[Example], test: Sequence[Example], scale: Mapping[str, float]) -> list[Values]:
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    return [middle] * len(test)


def ridge(train: Sequence[Example], test: Sequence[Example], scale: Mapping[str, float]) -> list[Values]:
    """Logarithms of a target, over those of three totals of the graph: ops, bytes that they write, batch."""
    known, wanted = (np.array([_totals(e) for e in rows]) for rows in (train, test))
    middle, spread = known.mean(0), np.maximum(known.std(0), 1e-9)
    known, wanted = ((table - middle) / spread for table in (known, wanted))
    answers: list[dict[str, float]] = [{} for _ in test]
    for target, largest in scale.items():
        have = [i for i, e in enumerate(train) if target in e.measured]
        logs = np.log([max(train[i].measured[target], 1e-6 * largest) for i in have])
        table = known[have]
        slopes = np.linalg.solve(table.T @ table + _RIDGE * np.eye(3), table.T @ (logs - logs.mean()))
        for answer, log in zip(answers, wanted @ slopes + logs.mean(), strict=True):
            answer[target] = float(np.exp(log))
    return list(answers)


def _totals(example: Example) -> list[float]:
    graph = example.query.graph
    assert graph is not None
    written = sum(x.nbytes for op in graph.ops for x in op.signature.outputs)
    return [float(np.log(v)) for v in (len(graph.ops), max(written, 1), example.query.batch)]
