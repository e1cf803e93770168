"""The residual model of a profile: what its numbers leave of log(measured ÷ predicted), as a Gaussian process.

How far steps must lie apart to be strangers, how much the smooth part explains and how much is noise come from the steps
themselves: the most likely of a few, with weak priors, so that a few steps explain little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.profile import KINDS, Residuals

Floats = npt.NDArray[np.float64]

# By how much two steps differ in a number, for them to be half strangers.
UNITS: Final[Mapping[str, float]] = {
    **dict.fromkeys(KINDS, 0.25), "backward": 0.3, "channels last": 0.25, "half": 1.0, "intensity": 2.0, "kernel": 2.0,
    "narrow": 1.5, "host": 2.0, "communication": 2.0, "samples": 3.0, "ranks": 3.0,
}  # fmt: skip
_LENGTHS: Final = (1.0, 2.0, 4.0)
_USUAL_LENGTH: Final = 2.0
_EXPLAINED: Final = (0.05, 0.1, 0.2, 0.4)
_NOISES: Final = (0.03, 0.06, 0.12, 0.25)
_USUAL: Final = np.log([0.12, 0.08])  # of what is explained, and of noise, before anything was seen
_UNSURE: Final = 1.5  # e-folds of either


def near(described: Sequence[Mapping[str, float]], length: float = _USUAL_LENGTH) -> Floats:
    """How alike steps are, from 0 to 1."""
    return _near(_places(described) / length)


def fit_residuals(described: Sequence[Mapping[str, float]], errors: Floats, share: float = 1.0) -> Residuals:
    """From steps and the logarithms of measured over predicted seconds; only a share of what it finds is applied."""
    places = _places(described)
    likely: tuple[float, float, Floats] | None = None
    for length in _LENGTHS:
        alike = _near(places / length)
        for explained, noise in product(_EXPLAINED, _NOISES):
            covariance = explained**2 * alike + noise**2 * np.eye(len(errors))
            solved = np.linalg.solve(covariance, errors)
            far = (np.log([explained, noise]) - _USUAL) / _UNSURE
            unlikely = float(np.linalg.slogdet(covariance)[1] + errors @ solved + far @ far)
            if likely is None or unlikely < likely[0]:
                likely = unlikely, length, np.asarray(explained**2 * solved, dtype=np.float64)
    assert likely is not None
    _, length, weights = likely
    return Residuals(
        columns=tuple(UNITS), scales=tuple(unit * length for unit in UNITS.values()), weights=tuple((share * weights).tolist()),
        points=tuple(map(tuple, (places / length).tolist())),
    )  # fmt: skip


def _places(described: Sequence[Mapping[str, float]]) -> Floats:
    return np.array([[values[name] / unit for name, unit in UNITS.items()] for values in described])


def _near(places: Floats) -> Floats:
    """Matérn's kernel of 3/2 between all of them."""
    apart = np.sqrt(3 * ((places[:, None] - places[None]) ** 2).sum(-1))
    return np.asarray((1 + apart) * np.exp(-apart), dtype=np.float64)
