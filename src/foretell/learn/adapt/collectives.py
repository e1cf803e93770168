"""Times of collectives → the links of a profile: what makes communication fit one cluster.

A few factors on what the catalog says, found by Gauss and Newton on the logarithms of predicted over measured, each held
near 1 by a prior as far as the times do not say otherwise. How many of them are worth fitting, times left out in turn say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.collectives import collective_seconds
from foretell.errors import InputError, check_choice
from foretell.hardware import Cluster
from foretell.measure.record import StepRow
from foretell.profile import AS_LISTED, CROWDED, Card, Links, Profile, Purpose
from foretell.program import COLLECTIVES, Collective, Group
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]

# One standard deviation of each number before anything was measured: of logarithms, and of the exponent of crowding.
_WIDTHS: Final = {"bandwidth": 1.0, "latency": 0.7, "neighbours": 0.7, "crowding": 0.3}
_FORMS: Final = ((), ("bandwidth",), ("bandwidth", "latency"), tuple(_WIDTHS))
_NOISE: Final = 0.2  # by which times scatter however well links fit; further ones count less
_ROUNDS: Final = 20
_FAR: Final = 5.0  # a factor stays within e^5 of 1
_ALMOST: Final = 0.03  # of the smallest error: a simpler form that is so near is taken
_FOLDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A collective that was measured, on nodes as its ranks lay there."""

    collective: Collective
    cluster: Cluster
    seconds: Seconds

    def predicted(self, links: Links = AS_LISTED) -> Seconds:
        return collective_seconds(self.collective, self.cluster, links=links)


def timed(rows: Iterable[StepRow], cluster: Cluster) -> list[Timed]:
    """Of the rows, the collectives: measured on `cluster`, or on some of its nodes or devices."""
    return [_timed(row, cluster) for row in rows if row.kind == "collective" and row.step_seconds]


def _timed(row: StepRow, cluster: Cluster) -> Timed:
    try:
        settings = {name: int(value) for name, value in json.loads(row.settings).items()}
        group = Group(size=settings["ranks"], stride=settings["stride"], count=settings["groups"])
        laid, nbytes = _like(cluster, row.cluster), settings["bytes"]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"a collective has bytes, ranks, stride and groups as its settings, got {row.settings}."
        ) from None
    check_choice("a collective's kind", row.source, COLLECTIVES, InputError)
    if min(nbytes, group.size, group.stride, group.count) < 1 or group.size * group.count > laid.devices:
        raise InputError(f"a collective of {row.settings} does not fit on {row.cluster}.")
    return Timed(collective=collective(row.source, nbytes, group), cluster=laid, seconds=row.step_seconds or 0.0)


def collective(kind: str, nbytes: int, group: Group) -> Collective:
    """One by itself, of no step."""
    return Collective(kind=kind, nbytes=nbytes, group=group, name=kind, starts_after=0, waited_for_by=0)


def fit_collectives(times: Sequence[Timed], *, name: str, cluster: str = "", sources: Sequence[str] = ()) -> Profile:
    """A profile whose links make these times come out, with its errors on those that were left out in turn."""
    if not times:
        raise InputError(
            "links are fitted on times of collectives, and there are none. Measure some under torchrun: "
            "foretell measure --collectives"
        )
    missed = {form: _missed(form, times) for form in _FORMS}
    least = min(missed.values())
    best = next(form for form, error in missed.items() if error <= least * (1 + _ALMOST))
    card = Card(
        rows=len(times), rows_left_out=len(times), sources=tuple(sources), form=f"links: {', '.join(best) or 'nothing'}",
        error_before=missed[()], error_after=missed[best],
    )  # fmt: skip
    return Profile(name=name, links=fit_links(times, best), purpose=Purpose(cluster=cluster), card=card)


def fit_links(times: Sequence[Timed], form: Sequence[str] = tuple(_WIDTHS)) -> Links:
    """The most likely links, where these of their numbers may differ from the catalog's."""
    numbers, pull = np.zeros(len(form)), np.array([_NOISE / _WIDTHS[name] for name in form])
    if not len(form) or not times:
        return AS_LISTED
    high = np.array([CROWDED if name == "crowding" else _FAR for name in form])
    low = -high
    best = np.inf, numbers
    for _ in range(_ROUNDS):
        errors = _errors(times, _links(form, numbers))
        loss = float((np.sqrt(1 + (errors / _NOISE) ** 2) - 1).sum() * 2 * _NOISE**2 + ((pull * numbers) ** 2).sum())
        best = min(best, (loss, numbers), key=lambda each: each[0])
        slopes = np.stack([(_errors(times, _links(form, numbers + step)) - errors) / 1e-3 for step in _steps(form)], 1)
        counts = (1 + (errors / _NOISE) ** 2) ** -0.5
        matrix = (slopes * counts[:, None]).T @ slopes + np.diag(pull**2)
        way = _solved(matrix, -(slopes * counts[:, None]).T @ errors - pull**2 * numbers, numbers, low, high)
        numbers = np.clip(numbers + np.clip(way, -1.0, 1.0), low, high)
        if np.abs(way).max() < 1e-3:
            break
    return _links(form, best[1])


def _solved(matrix: Floats, right: Floats, numbers: Floats, low: Floats, high: Floats) -> Floats:
    """The step of Gauss and Newton, without the numbers that it would take further beyond their bounds."""
    free = np.ones(len(numbers), dtype=bool)
    while free.any():
        way = np.zeros(len(numbers))
        way[free] = np.linalg.solve(matrix[np.ix_(free, free)], right[free])
        stuck = free & (((numbers <= low) & (way < 0)) | ((numbers >= high) & (way > 0)))
        if not stuck.any():
            return way
        free &= ~stuck
    return np.zeros(len(numbers))


def mean_error(times: Sequence[Timed], links: Links = AS_LISTED) -> float:
    return float(np.abs(np.expm1(_errors(times, links))).mean())


def _steps(form: Sequence[str]) -> Floats:
    return 1e-3 * np.eye(len(form))


def _errors(times: Sequence[Timed], links: Links) -> Floats:
    return np.log([each.predicted(links) / each.seconds for each in times])


def _links(form: Sequence[str], numbers: Floats) -> Links:
    values = dict(zip(form, numbers.tolist(), strict=True))
    return Links(**{name: value if name == "crowding" else float(np.exp(value)) for name, value in values.items()})


def _missed(form: Sequence[str], times: Sequence[Timed]) -> float:
    """Mean relative error of times that were left out."""
    fold = np.random.default_rng(0).permutation(len(times)) % min(_FOLDS, len(times))
    missed = []
    for out in range(fold.max() + 1):
        rest = [each for each, of in zip(times, fold, strict=True) if of != out]
        links = fit_links(rest, form)
        left_out = [each for each, of in zip(times, fold, strict=True) if of == out]
        missed += [abs(each.predicted(links) / each.seconds - 1) for each in left_out]
    return float(np.mean(missed))


def _like(cluster: Cluster, laid: str) -> Cluster:
    """Nodes of the cluster, with as many devices each as a measurement had."""
    counts = [node.count for node in Cluster.parse(laid).nodes]
    if len(counts) > 1 and cluster.between is None:
        raise InputError(
            f"collectives were measured on {laid}, more nodes than {cluster} has. Name the cluster they ran on."
        )
    made = {count: replace(cluster.nodes[0], count=count) for count in set(counts)}  # equal nodes are one object
    return replace(cluster, nodes=tuple(made[count] for count in counts))
