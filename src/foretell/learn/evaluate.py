"""How far off models are on what they have not seen: splits by architecture, family or device, never by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretell.cost.operators import OperatorModels
from foretell.learn.dataset import Measured, OpTable, joined
from foretell.learn.operators import ROUNDS, fit_operators
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of predictions against measurements, as fractions of what was measured."""

    mean: float
    median: float
    p90: float
    bias: float
    rank: float  # Spearman's correlation
    count: int

    @classmethod
    def of(cls, predicted: Floats, measured: Floats) -> Errors:
        relative = predicted / measured - 1
        off = np.abs(relative)
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, measured)]
        correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(off) > 2 else float("nan")
        return cls(mean=float(off.mean()), median=float(np.median(off)), p90=float(np.quantile(off, 0.9)),
                   bias=float(relative.mean()), rank=correlation, count=len(off))  # fmt: skip

    def __str__(self) -> str:
        return f"mean {self.mean:.1%}, median {self.median:.1%}, p90 {self.p90:.1%}, n {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Steps and what was predicted for each while its group was held out."""

    steps: npt.NDArray[np.int64]  # index into the measured steps
    groups: Sequence[str]
    measured: Floats
    predicted: Floats

    def errors(self, group: str | None = None) -> Errors:
        chosen = np.array([group is None or g == group for g in self.groups])
        return Errors.of(self.predicted[chosen], self.measured[chosen])


def leave_groups_out(
    measured: Measured, group_of: Mapping[int, str], *, beside: Sequence[OpTable] = (), folds: int | None = None,
    seed: int = 0, rounds: int = ROUNDS, progress: Callable[[str], None] = lambda text: None,
) -> Held:  # fmt: skip
    """Device time of every step, predicted by models that saw no step of its group; `beside` is always seen."""
    ops = measured.ops
    groups = sorted(set(group_of.values()))
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    fold_of = {groups[g]: i % (folds or len(groups)) for i, g in enumerate(shuffled)}
    held = np.array([fold_of[group_of[s]] if s in group_of else -1 for s in ops.step])
    totals: dict[int, Seconds] = {}
    for fold in sorted(set(held) - {-1}):
        progress(f"fold {fold + 1} of {len(set(fold_of.values()))}")
        seen = joined([ops.where(held != fold), *beside])
        models = fit_operators(seen, seed=seed, rounds=rounds)
        totals |= step_seconds(models, ops.where(held == fold))
    steps = np.array(sorted(totals))
    return Held(
        steps=steps, groups=[group_of[s] for s in steps], predicted=np.array([totals[s] for s in steps]),
        measured=np.array([measured.steps[s].device_seconds for s in steps], dtype=np.float64),
    )  # fmt: skip


def step_seconds(models: OperatorModels, ops: OpTable) -> dict[int, Seconds]:
    """Device time of each step whose ops are in the table, op by op."""
    each = models.seconds(ops.names, ops.descriptions) * ops.count
    return {int(step): float(each[ops.step == step].sum()) for step in np.unique(ops.step) if step >= 0}
