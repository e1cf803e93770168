"""Which steps to measure: those that together say most about the numbers of a profile and about its residual model.

What is not known of a step's log seconds is Gaussian, with the prior of the numbers through their slopes and that of the
smooth part. A D-optimal choice makes the determinant of the chosen steps' covariance large; taken one after another, each
is the step that is least known once those before it are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError
from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.form import Form
from foretell.learn.adapt.numbers import NOISE, slopes
from foretell.learn.adapt.smooth import near
from foretell.learn.adapt.steps import Prepared, Step, is_repeated
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]

FORM: Final = Form(levels=("device", "host", "communication", "fixed", "links", "kinds", "precisions", "families"))
_SMOOTH: Final = 0.1  # one standard deviation of what a residual model explains


def choose_steps(
    candidates: Sequence[Step | Prepared | ProfileResponse], count: int, *, costs: Sequence[Seconds] | None = None,
    budget: Seconds | None = None, known: Sequence[ProfileResponse] = (), model: str | CostModel = DEFAULT,
) -> list[int]:  # fmt: skip
    """Positions of `count` candidates, the most telling first; with costs, as many as a budget has room for.

    `known` are steps that were measured before.
    """
    if count < 0:
        raise InputError(f"the number of steps to choose must be 0 or more, got {count}.")
    covariance = _covariance([*(_response(c, model) for c in candidates), *known])
    for place in range(len(candidates), len(covariance)):
        covariance = _once_known(covariance, place)
    covariance = covariance[: len(candidates), : len(candidates)]
    prices = np.ones(len(candidates)) if costs is None else np.maximum(np.asarray(costs, dtype=float), 1e-9)
    left = float("inf") if budget is None else budget
    chosen: list[int] = []
    free = np.ones(len(candidates), dtype=bool)
    while len(chosen) < count and (possible := free & (prices <= left)).any():
        gains = np.log1p(np.diag(covariance).clip(0.0) / NOISE**2) / prices**0.5  # a dear one must tell more
        best = int(np.argmax(np.where(possible, gains, -np.inf)))
        chosen.append(best)
        free[best] = False
        left -= prices[best] if costs is not None else 0.0
        covariance = _once_known(covariance, best)
    return chosen


def _once_known(covariance: Floats, place: int) -> Floats:
    """What is not known of all steps once one of them was measured."""
    share = covariance[:, place] / (covariance[place, place] + NOISE**2)
    return covariance - np.outer(share, covariance[place])


def _response(candidate: Step | Prepared | ProfileResponse, model: str | CostModel) -> ProfileResponse:
    if isinstance(candidate, Step):
        return candidate.response(model)
    return candidate.response if isinstance(candidate, Prepared) else candidate


def _covariance(responses: Sequence[ProfileResponse]) -> Floats:
    if not responses:
        return np.zeros((0, 0))
    form = replace(FORM, levels=(*FORM.levels, "networks")) if is_repeated([r.network for r in responses]) else FORM
    form = form.knowing(responses)
    wide = slopes(form, responses) * form.widths
    return np.asarray(wide @ wide.T + _SMOOTH**2 * near([r.features for r in responses]), dtype=np.float64)
