"""Published jobs with their forecasts → what trainers of each kind add to a step, and how far a new one may be from that.

A document's jobs of one kind of trainer are one unit, with its middle job. Units differ from what is usual for their kind, and
kinds from each other; how much of either there is follows from the units, and is never taken for sure: of a kind with few
documents the others say something too, and a kind without any is what all together say. How far documents of a kind lie apart
is itself known from few of them, so a new one may be as much farther off as Student's factor says.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.forecasting.uncertainty.jobs import Overhead
from foretell.learn.uncertainty.few_units import students_factor
from foretell.trainers import KINDS, Kind

Floats = npt.NDArray[np.float64]
Trainers = tuple[dict[Kind, Overhead], Overhead]  # by kind, and one that is not known
# Standard deviations, as logarithms, that are thought possible: of documents within a kind, and of kinds.
_OF_SOURCES: Final = tuple(np.geomspace(0.02, 0.4, 13).tolist())
_OF_KINDS: Final = tuple(np.geomspace(0.1, 0.4, 7).tolist())  # they are told apart because they differ
_WITHIN: Final = 0.1  # of jobs of one document around its middle one, where it has too few to say
_ENOUGH: Final = 4  # jobs that say it
_ANYWHERE: Final = 1.0  # of what trainers add at all, before anything is known


class Unit(NamedTuple):
    """One document's jobs of one kind of trainer: their middle error, as a logarithm, and how far that is uncertain."""

    source: str
    kind: Kind
    middle: float
    noise: float


def units_of(errors: Iterable[tuple[str, Kind, float]]) -> list[Unit]:
    """From the errors of single jobs."""
    grouped: dict[tuple[str, Kind], list[float]] = defaultdict(list)
    for source, kind, error in errors:
        grouped[source, kind].append(error)
    made = []
    for (source, kind), values in sorted(grouped.items()):
        within = max(float(np.std(values)), _WITHIN / 2 if len(values) >= _ENOUGH else _WITHIN)
        made.append(Unit(source, kind, float(np.median(values)), within / math.sqrt(len(values))))
    return made


def fit_trainers(units: Iterable[Unit]) -> Trainers:
    """Of each kind, and of a trainer of which nothing is known: any kind that has units, each as likely.

    Who runs Megatron may run it as a recipe says: of that kind the recipes' documents say something too.
    """
    known = list(units)
    fitted, unknown = _fitted(known)
    anybody, _ = _fitted([unit._replace(kind="tuned") if unit.kind == "recipe" else unit for unit in known])
    return fitted | {"tuned": anybody["tuned"]}, unknown


def _fitted(known: list[Unit]) -> Trainers:
    weights, means, variances = [], [], []
    for of_sources in _OF_SOURCES:
        for of_kinds in _OF_KINDS:
            evidence, mean, variance = _given(known, of_sources, of_kinds)
            weights.append(evidence)
            means.append(mean)
            variances.append(variance)
    share = np.exp(np.array(weights) - max(weights))
    mean, variance = _mixed(share / share.sum(), np.array(means), np.array(variances))
    counts = Counter(unit.kind for unit in known)
    variance *= [students_factor(counts[kind]) ** 2 for kind in KINDS]
    fitted = {kind: _overhead(m, v) for kind, m, v in zip(KINDS, mean.tolist(), variance.tolist(), strict=True)}
    seen = np.array([counts[kind] > 0 for kind in KINDS])
    likely = np.where(seen, 1.0, 0.0) if seen.any() else np.ones(len(KINDS))
    middle, wide = _mixed(likely / likely.sum(), mean[:, None], variance[:, None])
    of_any = np.where(likely > 0, variance + (mean - middle[0]) ** 2, 0.0)  # it may be of the kind that is known least
    return fitted, _overhead(float(middle[0]), max(float(wide[0]), float(of_any.max())))


def _given(units: list[Unit], of_sources: float, of_kinds: float) -> tuple[float, Floats, Floats]:
    """With these deviations: the logarithm of how likely the units are, and mean and variance of a new unit of each kind."""
    member = np.array([[float(unit.kind == kind) for kind in KINDS] for unit in units])
    kinds = np.eye(len(KINDS)) * of_kinds**2 + _ANYWHERE**2  # what all have in common, and what each has
    noise = np.diag([unit.noise**2 + of_sources**2 for unit in units])
    between = member @ kinds @ member.T + noise
    middle = np.array([unit.middle for unit in units])
    solved = np.linalg.solve(between, np.column_stack((middle, member @ kinds)))
    evidence = -0.5 * (float(middle @ solved[:, 0]) + float(np.linalg.slogdet(between)[1]))
    mean = kinds @ member.T @ solved[:, 0]
    left = np.diag(kinds - kinds @ member.T @ solved[:, 1:])
    return evidence, mean, left + of_sources**2


def _mixed(share: Floats, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of one of several, each as likely as its share."""
    mean = share @ means
    return mean, share @ (variances + (means - mean) ** 2)


def _overhead(mean: float, variance: float) -> Overhead:
    return Overhead(added=round(mean, 4), spread=round(math.sqrt(max(variance, 0.0)), 4))
