"""Memory and crashes of `llm_h100_sweep`: rules of its trainer, and trees for what they miss.

Trees are fitted on four fifths of the plans and tested on the last, each fifth once, as the reference for crashes is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from foretell.bench import nanotron
from foretell.bench.figures import Figure, relative_errors
from foretell.bench.nanotron import Llama
from foretell.bench.rows import share
from foretell.hardware import Device
from foretell.units import Bytes
from foretell.workload import Plan

_FOLDS = 5
_ENOUGH = 100  # rows to grow trees on; with fewer the rules stand alone
_TREES: Final[Mapping[str, Any]] = {
    "num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 4, "verbosity": -1, "num_threads": 1, "seed": 0,
    "deterministic": True,
}  # fmt: skip
_ROUNDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A row: what the rules say a plan holds, and what became of it."""

    key: str
    features: tuple[float, ...]
    of_first: Bytes  # the stage that reports
    impossible: bool
    called: bool  # a crash, by the rules alone
    measured: Bytes | None  # None: crashed


def held(
    key: str, model: Llama, plan: Plan, micro_batch: int, tokens: int, device: Device, measured: Bytes | None
) -> Held:
    layout = nanotron.stages(model, plan.pp)
    if layout is None or plan.tp > model.heads:
        return Held(key=key, features=(), of_first=0, impossible=True, called=True, measured=measured)
    needed = nanotron.memory(model, layout, plan, micro_batch, tokens)
    micro_steps = plan.grad_accumulation or 1
    scales = (
        micro_batch,
        plan.tp,
        plan.pp,
        plan.dp,
        micro_steps,
        model.width,
        micro_batch / plan.tp,
        needed[0],
        max(needed),
    )
    features = (*(math.log2(scale) for scale in scales), float(plan.zero), float(min(plan.pp, micro_steps)))
    called = not nanotron.fits(needed, device)
    return Held(key=key, features=features, of_first=needed[0], impossible=False, called=called, measured=measured)


def memory_figures(source: str, rows: Sequence[Held]) -> list[Figure]:
    ran = [row for row in rows if row.measured and not row.impossible]
    if not ran:
        return [Figure(source=source, measure="memory", value=None, bar=0.08, note="no row that ran")]
    measured = [float(row.measured or 0) for row in ran]
    by_rules = relative_errors([row.of_first for row in ran], measured)
    errors = relative_errors(_corrected(ran).tolist(), measured)
    calls = np.array([row.called for row in rows])
    crashed = np.array([row.measured is None for row in rows])
    right = _calls(rows) == crashed
    return [
        Figure(source=source, measure="memory, mean error", value=float(errors.mean()), bar=0.08, rows=len(errors),
               note=f"by its trainer's rules alone {by_rules.mean():.1%}"),
        Figure(source=source, measure="crashed or not, called right", value=float(right.mean()), bar=0.95, at_least=True,
               rows=len(right), note=f"by its trainer's rules alone {(calls == crashed).mean():.1%}"),
    ]  # fmt: skip


def _corrected(ran: Sequence[Held]) -> np.ndarray:
    rules = np.array([float(row.of_first) for row in ran])
    off = np.log(np.array([float(row.measured or 0) for row in ran]) / rules)
    corrected: np.ndarray = rules * np.exp(_out_of_fold(ran, off, "l1", np.zeros(len(ran))))
    return corrected


def _calls(rows: Sequence[Held]) -> np.ndarray:
    """Whether each row is called a crash; what cannot run is one whatever trees say."""
    calls = np.array([row.called for row in rows], dtype=float)
    possible = np.array([not row.impossible for row in rows])
    told = [row for row in rows if not row.impossible]
    crashed = np.array([row.measured is None for row in told], dtype=float)
    calls[possible] = _out_of_fold(told, crashed, "binary", calls[possible])
    called: np.ndarray = calls > 0.5
    return called


def _out_of_fold(rows: Sequence[Held], targets: np.ndarray, objective: str, otherwise: np.ndarray) -> np.ndarray:
    """What trees say of each fifth of the plans that were grown on the others."""
    import lightgbm

    folds = np.array([int(share(row.key) * _FOLDS) for row in rows])
    features, found = np.array([row.features for row in rows]), otherwise.copy()
    for fold in range(_FOLDS):
        known, test = folds != fold, folds == fold
        if known.sum() >= _ENOUGH and test.any():
            trees = lightgbm.train(
                {**_TREES, "objective": objective}, lightgbm.Dataset(features[known], targets[known]), _ROUNDS
            )
            found[test] = trees.predict(features[test])
    return found
