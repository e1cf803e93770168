"""Memory and crashes of `llm_h100_sweep`: rules of its trainer, and trees for what they miss.

Plans fall into fifths by a hash, and each fifth has trees that were grown on the public rows of the other four, shipped
in `trainers/nanotron_trees.json.gz`: so no row is judged by trees that saw it, whichever rows a file holds.
`bench/scripts/nanotron_trees.py` grows them.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.hardware import Device
from foretell.plan import Plan
from foretell.units import Bytes
from foretell_bench.sources import nanotron
from foretell_bench.sources.nanotron import Llama
from foretell_bench.sources.rows import share
from foretell_bench.tables.figures import Figure, relative_errors

_FOLDS = 5
_SHIPPED = Path(__file__).parent / "trainers" / "nanotron_trees.json.gz"
_TREES: Final[Mapping[str, Any]] = {
    "num_leaves": 15, "learning_rate": 0.1, "min_data_in_leaf": 4, "verbosity": -1, "num_threads": 1, "seed": 0,
    "deterministic": True,
}  # fmt: skip
_ROUNDS = 80
Trees = Mapping[str, Sequence[str]]  # what is judged → a model of LightGBM for each fifth


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
    corrected: np.ndarray = rules * np.exp(_judged(ran, shipped()["memory"]))
    return corrected


def _calls(rows: Sequence[Held]) -> np.ndarray:
    """Whether each row is called a crash; what cannot run is one whatever trees say."""
    calls = np.ones(len(rows), dtype=bool)
    possible = np.array([not row.impossible for row in rows])
    calls[possible] = _judged([row for row in rows if not row.impossible], shipped()["crash"]) > 0.5
    return calls


def _judged(rows: Sequence[Held], trees: Sequence[str]) -> np.ndarray:
    """What the trees say of each row that did not see its fifth."""
    import lightgbm

    folds, found = _folds(rows), np.zeros(len(rows))
    features = np.array([row.features for row in rows])
    for fold in set(folds.tolist()):
        found[folds == fold] = lightgbm.Booster(model_str=trees[fold]).predict(features[folds == fold])
    return found


def _folds(rows: Sequence[Held]) -> np.ndarray:
    return np.array([int(share(row.key) * _FOLDS) for row in rows])


@functools.cache
def shipped() -> Trees:
    read: Trees = json.loads(gzip.decompress(_SHIPPED.read_bytes()))
    return read


def ship(trees: Trees) -> None:
    _SHIPPED.write_bytes(gzip.compress(json.dumps(trees).encode(), mtime=0))


def grow(rows: Sequence[Held]) -> Trees:
    """Trees for what the rules miss of memory, and for crashes; those of a fifth leave its plans out."""
    told = [row for row in rows if not row.impossible]
    ran = [row for row in told if row.measured]
    off = np.log([float(row.measured or 0) / row.of_first for row in ran])
    crashed = np.array([float(row.measured is None) for row in told])
    return {"memory": _grown(ran, off, "l1"), "crash": _grown(told, crashed, "binary")}


def _grown(rows: Sequence[Held], targets: np.ndarray, objective: str) -> list[str]:
    import lightgbm

    folds, features = _folds(rows), np.array([row.features for row in rows])
    found = []
    for fold in range(_FOLDS):
        known = lightgbm.Dataset(features[folds != fold], targets[folds != fold])
        found.append(lightgbm.train({**_TREES, "objective": objective}, known, _ROUNDS).model_to_string())
    return found
