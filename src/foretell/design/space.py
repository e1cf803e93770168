"""What is known of a linear model of log(time) once some points are measured: its information matrix, by family.

A point's ops are rows φ of the model, one model per family of operators. What rows say of the model is its information
matrix M = I + Σ φφᵀ: I for the prior, in which each standardised direction may matter, and φφᵀ for every distinct op that
was measured. An op counts once, however often it is measured: what a model does not know of it is its form, not the
clock's noise. It counts by the square root of the time it should take, as it does in the fit, for a forecast adds up
seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.design.information import FLOOR, OpSet, Row, features
from foretell.hardware import Device

_FARTHEST: Final = 4.0  # deviations; one odd shape is not to outweigh a hundred usual ones
_NARROWEST: Final = 0.5  # the deviation of a column that hardly varies

Array = npt.NDArray[np.float64]
Rows = Mapping[int, npt.NDArray[np.int64]]  # family → rows of it


class Space:
    """φ of every op, standardised, family by family."""

    def __init__(self, op_sets: Sequence[OpSet], known: Sequence[OpSet], device: Device) -> None:
        self.families: list[str] = []
        self.names: list[tuple[str, ...]] = []  # of the columns, by family
        self.phi: list[Array] = []  # weighted rows, by family
        place: dict[str, tuple[int, int]] = {}
        by_family: dict[str, dict[str, Row]] = {}
        for ops in (*op_sets, *known):
            for row in ops.rows:
                by_family.setdefault(row.family, {}).setdefault(row.key, row)
        for number, (family, rows) in enumerate(by_family.items()):
            names, values = _table([features(row, device) for row in rows.values()])
            weights = np.array([(row.seconds(device) / FLOOR) ** 0.25 for row in rows.values()])
            self.families.append(family)
            self.names.append(names)
            self.phi.append(standardised(values) * weights[:, None])
            place |= {key: (number, i) for i, key in enumerate(rows)}
        self.rows = [self._rows(ops, place) for ops in op_sets]
        self.known = self._rows(OpSet(tuple(r for ops in known for r in ops.rows), 0), place)

    def information(self) -> float:
        """Of all candidates together, beyond what is known."""
        total = 0.0
        for family, phi in enumerate(self.phi):
            prior, known = np.eye(phi.shape[1]), phi[self.known.get(family, np.array([], dtype=np.int64))]
            total += float(np.linalg.slogdet(prior + phi.T @ phi)[1] - np.linalg.slogdet(prior + known.T @ known)[1])
        return total

    @staticmethod
    def _rows(ops: OpSet, place: Mapping[str, tuple[int, int]]) -> Rows:
        found: dict[int, set[int]] = {}
        for row in ops.rows:
            family, i = place[row.key]
            found.setdefault(family, set()).add(i)
        return {family: np.array(sorted(those)) for family, those in found.items()}


def _table(described: Sequence[Mapping[str, float]]) -> tuple[tuple[str, ...], Array]:
    """Ops of a family may be described differently, as a product and a plain one are: what one lacks is zero."""
    names = tuple(dict.fromkeys(name for values in described for name in values))
    return names, np.array([[values.get(name, 0.0) for name in names] for values in described])


def standardised(values: Array) -> Array:
    """Columns with mean 0 and deviation 1; the first, which is one everywhere, stays."""
    rest = values[:, 1:]
    scaled = (rest - rest.mean(axis=0)) / np.maximum(rest.std(axis=0), _NARROWEST)
    return np.hstack([values[:, :1], np.clip(scaled, -_FARTHEST, _FARTHEST)])


class State:
    """M of every family and its inverse, as candidates come and go."""

    def __init__(self, space: Space, method: str) -> None:
        self.space = space
        self.matrix: list[Array] = [np.eye(phi.shape[1]) for phi in space.phi]
        self.variance: list[Array] = [matrix.copy() for matrix in self.matrix]
        self.count = [np.zeros(len(phi), dtype=np.int64) for phi in space.phi]  # of those measured that have the op
        self._gain = _log_det_gain if method != "a-optimal" else _trace_gain
        self._change(space.known, 1)

    def gain(self, candidate: int) -> float:
        return sum(self.gains(candidate).values())

    def gains(self, candidate: int) -> dict[int, float]:
        """By family."""
        new = self.new(candidate).items()
        return {family: self._gain(phi, self.matrix[family], self.variance[family]) for family, phi in new}

    def new(self, candidate: int) -> dict[int, Array]:
        """The rows that nothing measured has, by family."""
        rows = self.space.rows[candidate].items()
        return {f: self.space.phi[f][new] for f, those in rows if len(new := those[self.count[f][those] == 0])}

    def add(self, candidate: int) -> None:
        self._change(self.space.rows[candidate], 1)

    def remove(self, candidate: int) -> None:
        self._change(self.space.rows[candidate], -1)

    def _change(self, rows: Rows, by: int) -> None:
        for family, those in rows.items():
            changed = those[self.count[family][those] == (0 if by > 0 else 1)]
            self.count[family][those] += by
            if len(changed):
                phi = self.space.phi[family][changed]
                # Anew: a step brings more rows than a family has columns, and taking rows out by Woodbury's formula
                # loses all digits where they are most of what is known.
                self.matrix[family] = self.matrix[family] + by * phi.T @ phi
                self.variance[family] = np.asarray(np.linalg.inv(self.matrix[family]), dtype=np.float64)


def _log_det_gain(phi: Array, matrix: Array, variance: Array) -> float:
    """log det(M + φᵀφ) − log det M, by the determinant lemma on the smaller side; for one row log(1 + φᵀM⁻¹φ)."""
    if len(phi) <= len(matrix):
        return float(np.linalg.slogdet(np.eye(len(phi)) + phi @ variance @ phi.T)[1])
    return float(np.linalg.slogdet(matrix + phi.T @ phi)[1] + np.linalg.slogdet(variance)[1])


def _trace_gain(phi: Array, matrix: Array, variance: Array) -> float:
    """trace M⁻¹ − trace (M + φᵀφ)⁻¹, by Woodbury's formula for a few rows; for one it is Sherman and Morrison's."""
    if len(phi) <= len(matrix):
        across = variance @ phi.T
        return float(np.sum(across * np.linalg.solve(np.eye(len(phi)) + phi @ across, across.T).T))
    return float(np.trace(variance) - np.trace(np.linalg.inv(matrix + phi.T @ phi)))
