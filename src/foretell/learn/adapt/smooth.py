"""What the numbers of a profile leave of log(measured ÷ predicted), as a Gaussian process: of steps, and of single ops.

How far points must lie apart to be strangers, how much the smooth part explains, how steep a plane below it is and how much
is noise come from the points themselves: the most likely of a few, with weak priors, so that a few points explain little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.profile import KINDS, Residuals

Floats = npt.NDArray[np.float64]
_UNSURE: Final = 1.5  # e-folds of each part of a prior


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is thought before anything was seen, and what is tried."""

    units: Mapping[str, float]  # by how much two points differ in a number, for them to be half strangers
    explained: tuple[float, ...]
    noises: tuple[float, ...]
    steep: tuple[float, ...]  # of the plane, in a unit of each number; () is none
    usual: tuple[float, ...]  # of what is explained, of noise and of steepness
    leaning: tuple[float, ...] = ()  # or of the plane, as shares of what is explained; 0 is none
    lengths: tuple[float, ...] = (1.0, 2.0, 4.0)
    sharper: str = ""  # a number whose unit may be smaller,
    times: tuple[float, ...] = (1.0,)  # by these
    farthest: float = 2.0  # e-folds


OF_STEPS: Final = Prior(
    units={
        **dict.fromkeys(KINDS, 0.25), "backward": 0.3, "channels last": 0.25, "half": 1.0, "intensity": 2.0, "kernel": 2.0,
        "narrow": 1.5, "host": 2.0, "communication": 2.0, "samples": 3.0, "ranks": 3.0,
        "nodes": 2.0, "device": 4.0,
    },
    explained=(0.05, 0.1, 0.2, 0.4), noises=(0.03, 0.06, 0.12, 0.25), steep=(), usual=(0.12, 0.08), leaning=(0.0, 0.2, 0.5, 1.0),
    sharper="ranks", times=(1.0, 4.0, 16.0),  # one rank more may be the one beyond a bridge, a socket or a node
)  # fmt: skip
OF_OPS: Final = Prior(
    units={"seconds": 3.0, "flops": 3.0, "traffic": 3.0, "last": 1.5, "channels": 1.5, "narrow": 1.5},
    explained=(0.2, 0.5, 1.0), noises=(0.1, 0.2, 0.4), steep=(0.01, 0.03, 0.1), usual=(0.4, 0.2, 0.1), farthest=4.0,
)  # fmt: skip
_USUAL_LENGTH: Final = 2.0
_USUAL_LEANING: Final = 0.5


def near(described: Sequence[Mapping[str, float]], length: float = _USUAL_LENGTH) -> Floats:
    """How alike steps are, from 0 to 1."""
    return _near(_places(described, OF_STEPS) / length)


def fit_residuals(
    described: Sequence[Mapping[str, float]], errors: Floats, share: float = 1.0, like: Residuals | None = None
) -> Residuals:
    """Of steps, from the logarithms of measured over predicted seconds; only a share of what it finds is applied.

    Points are strangers as far apart as in `like`, which was found on nearly the same steps.
    """
    return _fit(described, errors, OF_STEPS, 0.0, share, scales=None if like is None else like.scales)


def fit_smooth(
    described: Sequence[Mapping[str, float]], errors: Floats, networks: Sequence[str], mean: float, prior: Prior
) -> Residuals:
    """Around a mean; ops of one network are off together."""
    names = np.array(networks)
    return _fit(described, errors - mean, prior, mean, 1.0, names[:, None] == names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """How unlikely errors are under one trial, and they solved for."""

    tried: tuple[float, ...]  # of what is explained, noise and steepness, to what is usual
    explained: float
    steep: float  # of the plane, in a unit of each number
    unlikely: float
    weights: Floats


def _fit(
    described: Sequence[Mapping[str, float]], errors: Floats, prior: Prior, mean: float, share: float,
    together: npt.NDArray[np.bool_] | None = None, scales: Sequence[float] | None = None,
) -> Residuals:  # fmt: skip
    places = _places(described, prior)
    middle = places.mean(0)
    apart = places - middle
    best: tuple[float, Floats, _Solved] | None = None
    for times, stretched in _stretches(prior, scales):
        for solved in _solved(_near(places / stretched), apart @ apart.T, errors, prior, together):
            far = np.log(np.array([*solved.tried, times])) / _UNSURE
            if best is None or solved.unlikely + far @ far < best[0]:
                best = float(solved.unlikely + far @ far), stretched, solved
    assert best is not None
    _, stretched, found = best
    weights, slopes = found.explained**2 * found.weights, found.steep**2 * found.weights @ apart
    has_plane = bool(prior.steep) or found.steep > 0
    return Residuals(
        columns=tuple(prior.units), scales=tuple((np.array([*prior.units.values()]) * stretched).tolist()),
        points=tuple(map(tuple, (places / stretched).tolist())), weights=tuple((share * weights).tolist()),
        slopes=tuple((share * stretched * slopes).tolist()) if has_plane else (),
        offset=share * (mean - float(slopes @ middle)), low=-prior.farthest, high=prior.farthest,
    )  # fmt: skip


def _stretches(prior: Prior, scales: Sequence[float] | None) -> Iterator[tuple[float, Floats]]:
    """How far apart points are strangers, in units of the prior, and how much sharper one number is."""
    if scales is not None:
        yield 1.0, np.array(scales) / np.array([*prior.units.values()])
        return
    for times, length in product(prior.times, prior.lengths):
        yield times, np.array([length / (times if name == prior.sharper else 1.0) for name in prior.units])


def _solved(
    alike: Floats, along: Floats, errors: Floats, prior: Prior, together: npt.NDArray[np.bool_] | None
) -> Iterator[_Solved]:
    """For each trial of what is explained, of noise and of steepness. Where noise is of each alone and a plane leans by a share
    of what is explained, trials of one share have the same directions, which are found once."""
    if together is None and not prior.steep:
        for leaning in prior.leaning or (0.0,):
            yield from _by_directions(alike + leaning**2 * along, leaning, errors, prior)
        return
    alone = np.eye(len(errors)) if together is None else np.eye(len(errors)) + together
    for explained, noise, steep in product(prior.explained, prior.noises, prior.steep or (0.0,)):
        covariance = explained**2 * alike + noise**2 * alone + steep**2 * along
        weights = np.asarray(np.linalg.solve(covariance, errors), dtype=np.float64)
        unlikely = float(np.linalg.slogdet(covariance)[1] + errors @ weights)
        tried = tuple(a / b for a, b in zip((explained, noise, steep), prior.usual, strict=False))
        yield _Solved(tried=tried, explained=explained, steep=steep, unlikely=unlikely, weights=weights)


def _by_directions(alike: Floats, leaning: float, errors: Floats, prior: Prior) -> Iterator[_Solved]:
    values, directions = np.linalg.eigh(alike)
    values, turned = np.maximum(values, 0.0), directions.T @ errors
    leans = (leaning / _USUAL_LEANING,) if leaning else ()
    for explained, noise in product(prior.explained, prior.noises):
        spread = explained**2 * values + noise**2
        yield _Solved(
            tried=(explained / prior.usual[0], noise / prior.usual[1], *leans), explained=explained, steep=explained * leaning,
            unlikely=float(np.log(spread).sum() + (turned**2 / spread).sum()), weights=directions @ (turned / spread),
        )  # fmt: skip


def _places(described: Sequence[Mapping[str, float]], prior: Prior) -> Floats:
    return np.array([[values[name] / unit for name, unit in prior.units.items()] for values in described])


def _near(places: Floats) -> Floats:
    """Matérn's kernel of 3/2 between all of them."""
    apart = np.sqrt(3 * ((places[:, None] - places[None]) ** 2).sum(-1))
    return np.asarray((1 + apart) * np.exp(-apart), dtype=np.float64)
