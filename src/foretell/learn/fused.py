"""Measured kernels of a compiler → models of their times, and of the errors to expect where a family was not seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import describe
from foretell.cost.operator_errors import OperatorErrors
from foretell.cost.operators import OperatorModels
from foretell.graph import Signature
from foretell.hardware import Device
from foretell.learn.dataset import OpTable
from foretell.learn.operators import fit_operators
from foretell.learn.uncertainty.operators import fit_operator_errors
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Timed = tuple[Signature, Seconds]
_TREES: Final[Mapping[str, Any]] = MappingProxyType({"num_leaves": 31})
_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedFit:
    models: OperatorModels
    errors: OperatorErrors
    unseen: Floats  # of each row, log(predicted ÷ measured) with its group left out
    rows: OpTable


def table_of(steps: Iterable[Sequence[Timed]], device: Device) -> OpTable:
    """A row for each different kernel of each step: its mean time and how often it runs."""
    signatures: list[Signature] = []
    columns: list[tuple[Seconds, int, int, float]] = []
    for index, kernels in enumerate(steps):
        sums: dict[Signature, tuple[Seconds, int]] = {}
        for signature, seconds in kernels:
            total, times = sums.get(signature, (0.0, 0))
            sums[signature] = (total + seconds, times + 1)
        whole = sum(total for total, _ in sums.values()) or 1.0
        signatures += sums
        columns += [(total / times, times, index, total / whole) for total, times in sums.values()]
    mean, count, step, share = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    return OpTable(
        signatures=signatures,
        descriptions=[describe(s, device, tf32=False) for s in signatures],
        seconds=mean,
        count=count.astype(np.int64),
        step=step.astype(np.int64),
        share=share,
    )


def fit_fused(rows: OpTable, group_of: Sequence[str], *, seed: int = 0) -> FusedFit:
    """`group_of` a step says with which others it is left out, to see what errors are where none of them was seen."""
    groups = np.array([group_of[step] for step in rows.step.tolist()])
    unseen = np.zeros(len(rows))
    for group in sorted(set(groups.tolist())):
        own = groups == group
        left_out = rows.where(own)
        predicted = fit_kernels(rows.where(~own), seed).seconds(left_out.names, left_out.descriptions)
        unseen[own] = np.log(predicted / left_out.seconds)
    errors = fit_operator_errors(rows, -unseen, seed)
    return FusedFit(models=fit_kernels(rows, seed), errors=errors, unseen=unseen, rows=rows)


def fit_kernels(rows: OpTable, seed: int = 0) -> OperatorModels:
    return fit_operators(rows, seed=seed, rounds=_ROUNDS, trees=_TREES)
