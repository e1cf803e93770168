"""How much each form of a profile counts, by what steps that are left out say of it, with a residual model and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.many_responses import ManyResponses
from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.candidates import Candidate
from foretell.learn.adapt.fitted import Fitted
from foretell.learn.adapt.folds import Positions
from foretell.learn.adapt.form import Form
from foretell.learn.adapt.numbers import fit
from foretell.learn.adapt.smooth import fit_residuals
from foretell.profile import Residuals

Floats = npt.NDArray[np.float64]
_BACK: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of what was found that may be taken back
_EXACT: Final = 1e-3  # an error that counts as none
_SEEN: Final = 0.02  # a smaller share of a residual model is none
_TEMPER: Final = 0.5  # of the steps count as if nothing of them was known from the others
_SIMPLE: Final = (
    0.1  # e-folds by which one level more is less likely, before anything was measured; a residual model is one
)
_STRANGER: Final = 50.0  # levels that it counts as, to know nothing of a profile that was given to start from
_LEAST: Final = 0.05  # of a step's seconds are not fixed ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    fitted: Fitted
    residuals: Residuals | None = None

    def less(self, share: float) -> Learned:
        """With all that was found nearer to nothing."""
        if not share:
            return self
        kept, nearer = self.residuals, 1 - share
        further = kept and replace(kept, weights=tuple(nearer * w for w in kept.weights))
        numbers = Fitted(self.fitted.form, nearer * self.fitted.numbers, self.fitted.unit)
        return Learned(fitted=numbers, residuals=further)

    def logs(self, responses: Sequence[ProfileResponse]) -> Floats:
        fixed, seconds = self.fitted.fixed_of(responses), np.exp(self.fitted.logs(responses))
        if self.residuals is None:
            return np.log(seconds)
        further = np.exp([self.residuals.log_factor(r.features) for r in responses])
        return np.asarray(np.log((seconds - fixed) * further + fixed), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """How much each candidate counts, how much the residual model on top of them, by how much all that is taken back, and what
    the steps left out missed by, for each way of leaving them out: with their network first."""

    candidates: Sequence[Candidate]
    fitted: Sequence[Fitted]  # on all steps
    weights: Floats
    smooth: float
    back: float
    missed: Sequence[Floats]
    before: Floats


def learn(
    fitted: Sequence[Fitted], weights: Floats, smooth: float, responses: Sequence[ProfileResponse], measured: Floats
) -> Learned:
    mean = Fitted.mean(fitted, weights)
    return Learned(fitted=mean, residuals=_residuals(mean, responses, measured, smooth) if smooth else None)


def _residuals(
    fitted: Fitted,
    responses: Sequence[ProfileResponse],
    measured: Floats,
    share: float = 1.0,
    like: Residuals | None = None,
) -> Residuals:
    fixed = fitted.fixed_of(responses)
    left = np.log(np.maximum(measured - fixed, _LEAST * measured) / (np.exp(fitted.logs(responses)) - fixed))
    return fit_residuals([r.features for r in responses], left, share, like)


def choose(
    candidates: Sequence[Candidate], responses: ManyResponses, measured: Floats, ways: Sequence[Sequence[Positions]]
) -> Chosen:
    """By what steps say that are left out in turn, in one way or two. Whether there is a residual model is tried of every
    candidate: a trend over batches or ranks may leave little for the numbers of a form to say, or the other way about."""
    ways = [way for way in ways if len(way) > 1]
    whole = _fit_all(candidates, responses, measured)
    if not ways:
        alone = fit(Form(), responses, measured).logs(responses) - np.log(measured)
        nothing = np.eye(len(candidates))[0]
        return Chosen(
            candidates=candidates, fitted=whole, weights=nothing, smooth=0.0, back=0.0, missed=[alone], before=alone
        )
    made = {id(way): _Trials(candidates, responses, measured, way, whole) for way in ways}
    trials = [made[id(way)] for way in ways]
    likes = [_residuals(each, responses, measured) for each in whole]
    plain = [[each.alone(place) for each in trials] for place in range(len(candidates))]
    smoothed = [[each.alone(place, like) for each in trials] for place, like in enumerate(likes)]
    levels = _levels(candidates)
    both = weights_of([*plain, *smoothed], [*levels, *(level + 1 for level in levels)])
    weights, smooth = both[: len(candidates)] + both[len(candidates) :], float(both[len(candidates) :].sum())
    smooth = smooth if smooth > _SEEN else 0.0
    found, before = [each.mixed(weights, smooth) for each in trials], plain[0]
    mixes = [[(1 - back) * one + back * none for one, none in zip(found, before, strict=True)] for back in _BACK]
    back, found = min(zip(_BACK, mixes, strict=True), key=lambda mix: mean_error(np.concatenate(mix[1])))
    if back == 1.0 or np.abs(np.concatenate(found)).mean() > np.abs(np.concatenate(before)).mean():
        weights, smooth, back, found = np.eye(len(candidates))[0], 0.0, 0.0, before
    return Chosen(
        candidates=candidates, fitted=whole, weights=weights, smooth=smooth, back=back, missed=found, before=before[0]
    )  # fmt: skip


def _levels(candidates: Sequence[Candidate]) -> list[float]:
    started = any(start is not None for _, start in candidates)
    return [len(form.levels) + _STRANGER * (started and start is None) for form, start in candidates]


def _fit_all(
    candidates: Sequence[Candidate], responses: ManyResponses, measured: Floats, near: Sequence[Fitted] | None = None
) -> list[Fitted]:
    close = [None] * len(candidates) if near is None else near
    return [
        fit(form, responses, measured, start, known) for (form, start), known in zip(candidates, close, strict=True)
    ]


class _Trials:
    """Every candidate, fitted while a part of the steps is left out: log(predicted ÷ measured) of those."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        responses: ManyResponses,
        measured: Floats,
        folds: Sequence[Positions],
        whole: Sequence[Fitted],
    ) -> None:
        self._folds, self._responses, self._measured = folds, responses, measured
        rests = [np.setdiff1d(np.arange(len(measured)), out) for out in folds]
        self._parts = [(responses.take(rest), measured[rest]) for rest in rests]
        self._fitted = [_fit_all(candidates, *part, whole) for part in self._parts]

    def alone(self, place: int, like: Residuals | None = None) -> Floats:
        """One of them; with a residual model like the one of all steps, where that is given."""
        each = zip((fitted[place] for fitted in self._fitted), self._parts, strict=True)
        return self._missed(
            [Learned(fitted=fitted, residuals=like and _residuals(fitted, *part, like=like)) for fitted, part in each]
        )

    def mixed(self, weights: Floats, smooth: float) -> Floats:
        each = zip(self._fitted, self._parts, strict=True)
        return self._missed([learn(fitted, weights, smooth, *part) for fitted, part in each])

    def _missed(self, learned: Sequence[Learned]) -> Floats:
        found = np.zeros(len(self._measured))
        for out, each in zip(self._folds, learned, strict=True):
            found[out] = each.logs(self._responses.take(out)) - np.log(self._measured[out])
        return found


def weights_of(missed: Sequence[Sequence[Floats]], levels: Sequence[float]) -> Floats:
    """How likely each is, if errors scatter as Laplace has it: by the mean of them to the power of how many there are, for each
    way of leaving steps out; two ways count half each. Every level that it has makes it less likely before that."""
    means = np.array([[max(float(np.abs(way).mean()), _EXACT) for way in each] for each in missed])
    unlikely = _TEMPER * len(missed[0][0]) * np.log(means).mean(1) + _SIMPLE * np.array(levels)
    likely = np.exp(unlikely.min() - unlikely)
    return np.asarray(likely / likely.sum(), dtype=np.float64)


def mean_error(missed: Floats) -> float:
    return float(np.abs(np.expm1(missed)).mean())
