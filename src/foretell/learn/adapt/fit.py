"""Step times → a Profile: as much as steps left out of the fit say is worth fitting.

Forms of growing detail are fitted on parts of the steps and asked about the others, steps of one network being left out
together. The profile is their mean, each form counting by how likely its errors on steps left out are: with few steps
several forms are, and what one of them found by chance fades in the mean. Where that is no better than no profile, there is
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError
from foretell.forecasting.response import Response
from foretell.learn.adapt.numbers import NOISE, SURE, Fitted, Form, fit
from foretell.learn.adapt.smooth import fit_residuals
from foretell.learn.adapt.steps import Prepared, Step
from foretell.profile import WIDEST, Card, Intervals, MemoryFactors, Profile, Purpose, Residuals

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]  # progress, for a person
Positions = npt.NDArray[np.intp]

FOLDS: Final = 10
_ENOUGH: Final = 3  # steps with their memory
_PARTS: Final = ("device", "host", "communication", "fixed", "links")
_ALMOST: Final = 0.03  # of the smallest error counts as none
_EXACT: Final = 1e-3  # an error that counts as none
_SEEN: Final = 0.02  # a smaller share of a residual model is none
_TEMPER: Final = 0.5  # of the steps count as if nothing of them was known from the others
_LEVEL: Final = 0.9  # of an interval


FORMS: Final = (
    Form(),
    Form(levels=("device",)),
    Form(levels=_PARTS),
    Form(levels=(*_PARTS, "kinds", "precisions")),
    Form(levels=(*_PARTS, "kinds", "precisions", "families")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    fitted: Fitted
    residuals: Residuals | None = None

    def logs(self, responses: Sequence[Response]) -> Floats:
        fixed, seconds = self.fitted.fixed, np.exp(self.fitted.logs(responses))
        if self.residuals is None:
            return np.log(seconds)
        further = np.exp([self.residuals.log_factor(r.description) for r in responses])
        return np.asarray(np.log((seconds - fixed) * further + fixed), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """How much each form counts, how much the residual model on top of them, and what the steps left out missed by."""

    weights: Floats
    smooth: float
    missed: Floats
    before: Floats


def fit_profile(
    steps: Sequence[Step | Prepared], *, name: str, purpose: Purpose | None = None, sources: Sequence[str] = (),
    model: str | CostModel = DEFAULT, say: Say = lambda text: None,
) -> Profile:  # fmt: skip
    """A profile for these steps, with its errors on those that were left out in turn."""
    if not steps:
        raise InputError("a profile is fitted on measured steps, and there are none.")
    ready = prepared(steps, model, say)
    say(f"fitting {len(ready)} steps")
    responses, measured = [p.response for p in ready], np.array([p.seconds for p in ready])
    chosen = _choose(responses, measured, _folds([p.network for p in ready]))
    learned = _learn(_fit_all(responses, measured), chosen.weights, chosen.smooth, responses, measured)
    card = Card(
        rows=len(ready), sources=tuple(sources), form=_in_words(chosen), rows_left_out=len(ready),
        error_before=_mean_error(chosen.before), error_after=_mean_error(chosen.missed),
    )  # fmt: skip
    return replace(
        learned.fitted.profile(name), residuals=learned.residuals, purpose=purpose or Purpose(), card=card,
        intervals=Intervals(width=_width(chosen.missed)), memory=_memory(ready),
    )  # fmt: skip


def prepared(
    steps: Sequence[Step | Prepared], model: str | CostModel = DEFAULT, say: Say = lambda text: None
) -> list[Prepared]:
    ready = []
    for number, step in enumerate(steps, 1):
        say(f"pricing {step.network}, {number} of {len(steps)}")
        ready.append(Prepared.of(step, model) if isinstance(step, Step) else step)
    return ready


def _fit_all(responses: Sequence[Response], measured: Floats) -> list[Fitted]:
    return [fit(form, responses, measured) for form in FORMS]


def _learn(
    fitted: Sequence[Fitted], weights: Floats, smooth: float, responses: Sequence[Response], measured: Floats
) -> _Learned:
    mean = Fitted.mean(fitted, weights)
    if not smooth:
        return _Learned(fitted=mean)
    fixed = mean.fixed
    left = np.log(np.maximum(measured - fixed, 0.05 * measured) / (np.exp(mean.logs(responses)) - fixed))
    return _Learned(fitted=mean, residuals=fit_residuals([r.description for r in responses], left, smooth))


def _choose(responses: Sequence[Response], measured: Floats, folds: Sequence[Positions]) -> _Chosen:
    """By what steps left out in turn say."""
    rests = [np.setdiff1d(np.arange(len(measured)), out) for out in folds]
    nothing = np.eye(len(FORMS))[0]

    def missed(learned: Sequence[_Learned]) -> Floats:
        """log(predicted ÷ measured) of every step, while it was left out."""
        found = np.zeros(len(measured))
        for out, each in zip(folds, learned, strict=True):
            found[out] = each.logs([responses[i] for i in out]) - np.log(measured[out])
        return found

    if len(folds) < 2:
        alone = missed([_Learned(fitted=fit(FORMS[0], responses, measured))])
        return _Chosen(weights=nothing, smooth=0.0, missed=alone, before=alone)
    parts = [([responses[i] for i in rest], measured[rest]) for rest in rests]
    fitted = [_fit_all(*part) for part in parts]
    by_form = [missed([_Learned(fitted=forms[f]) for forms in fitted]) for f in range(len(FORMS))]
    weights = _weights(by_form)

    def mixed(smooth: float) -> Floats:
        return missed([_learn(forms, weights, smooth, *part) for forms, part in zip(fitted, parts, strict=True)])

    without, whole = mixed(0.0), mixed(1.0)
    smooth = float(_weights([without, whole])[1])
    smooth = smooth if smooth > _SEEN else 0.0
    found = (1 - smooth) * without + smooth * whole
    if np.abs(found).mean() > np.abs(by_form[0]).mean():
        return _Chosen(weights=nothing, smooth=0.0, missed=by_form[0], before=by_form[0])
    return _Chosen(weights=weights, smooth=smooth, missed=found, before=by_form[0])


def _weights(missed: Sequence[Floats]) -> Floats:
    """How likely each is, if errors scatter as Laplace has it: by the mean of them to the power of how many there are."""
    means = np.array(
        [max(float(np.abs(each).mean()), _EXACT) for each in missed]
    )  # half as long counts as twice as long
    likely = np.exp(-_TEMPER * len(missed[0]) * np.log(means / means.min()))
    return np.asarray(likely / likely.sum(), dtype=np.float64)


def _in_words(chosen: _Chosen) -> str:
    levels = FORMS[int(np.argmax(chosen.weights))].levels
    return ", ".join((*levels, *(("residuals",) if chosen.smooth > 0.5 else ()))) or "nothing"


def _mean_error(missed: Floats) -> float:
    return float(np.abs(np.expm1(missed)).mean())


def _folds(networks: Sequence[str]) -> list[Positions]:
    """Steps of one network together; by step where there are too few networks to leave one out."""
    names = list(dict.fromkeys(networks))
    if len(names) < 4:
        names, networks = [str(i) for i in range(len(networks))], [str(i) for i in range(len(networks))]
    order = np.random.default_rng(0).permutation(len(names))
    fold_of = {
        names[n]: place % min(FOLDS if len(names) > 2 * FOLDS else len(names), len(names))
        for place, n in enumerate(order)
    }
    each = np.array([fold_of[network] for network in networks])
    return [np.flatnonzero(each == fold) for fold in range(each.max() + 1)]


def _memory(steps: Sequence[Prepared]) -> MemoryFactors:
    """The median factor of what was measured; of few steps, or where it is no better than none, none."""
    factors = {}
    for name in ("allocated", "reserved"):
        known = [(getattr(p, name), getattr(p.response.memory, name)) for p in steps if getattr(p, name)]
        logs = np.log([measured / max(predicted, 1) for measured, predicted in known])
        if len(logs) >= _ENOUGH:
            others = np.array([np.median(np.delete(logs, i)) for i in range(len(logs))])
            if np.abs(logs - others).mean() < (1 - _ALMOST) * np.abs(logs).mean():
                factors[name] = round(float(np.exp(np.median(logs))), 4)
    return MemoryFactors(**factors)


def _width(missed: Floats) -> float:
    """The half-width that the next step keeps to: errors scatter as Laplace has it, by how much being as unsure as few steps
    leave it, with a belief in the usual scatter that is worth some steps."""
    rows, total = SURE + len(missed), SURE * NOISE + float(np.abs(missed).sum())
    return min(round(total * math.expm1(-math.log(1 - _LEVEL) / rows), 4), WIDEST)
