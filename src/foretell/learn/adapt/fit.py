"""Step times → a Profile: as much as steps left out of the fit say is worth fitting.

Forms of growing detail are tried on parts of the steps and asked about the others, steps of one network being left out
together. One that is clearly worse there than another is not taken, and nothing at all where no form is better than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError
from foretell.forecasting.response import Response
from foretell.learn.adapt.numbers import Fitted, Form, fit
from foretell.learn.adapt.smooth import fit_residuals
from foretell.learn.adapt.steps import Prepared, Step
from foretell.profile import WIDEST, Card, Intervals, MemoryFactors, Profile, Purpose, Residuals

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]  # progress, for a person
Positions = npt.NDArray[np.intp]

FOLDS: Final = 10
_ENOUGH: Final = 3  # steps with their memory
_PARTS: Final = ("device", "host", "communication", "fixed")
_ALMOST: Final = 0.03  # of the smallest error counts as none
_LEVEL: Final = 0.9  # of an interval
_WIDER: Final = 0.5  # steps of doubt that a step left out adds to an interval made of few


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    form: Form
    smooth: bool = False  # with a residual model

    @property
    def name(self) -> str:
        return ", ".join((*self.form.levels, *(("residuals",) if self.smooth else ()))) or "nothing"


ZERO_SHOT: Final = Candidate(form=Form())
CANDIDATES: Final = (
    ZERO_SHOT,
    Candidate(form=Form(levels=("device",))),
    Candidate(form=Form(levels=_PARTS)),
    Candidate(form=Form(levels=(*_PARTS, "kinds", "precisions"))),
    Candidate(form=Form(levels=(*_PARTS, "kinds", "precisions", "families"))),
    Candidate(form=Form(levels=(*_PARTS, "kinds", "precisions")), smooth=True),
    Candidate(form=Form(levels=(*_PARTS, "kinds", "precisions", "families")), smooth=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    fitted: Fitted
    residuals: Residuals | None

    def logs(self, responses: Sequence[Response]) -> Floats:
        fixed, seconds = self.fitted.fixed, np.exp(self.fitted.logs(responses))
        if self.residuals is None:
            return np.log(seconds)
        further = np.exp([self.residuals.log_factor(r.description) for r in responses])
        return np.asarray(np.log((seconds - fixed) * further + fixed), dtype=np.float64)


def fit_profile(
    steps: Sequence[Step | Prepared], *, name: str, purpose: Purpose | None = None, sources: Sequence[str] = (),
    model: str | CostModel = DEFAULT, candidates: Sequence[Candidate] = CANDIDATES, say: Say = lambda text: None,
) -> Profile:  # fmt: skip
    """A profile for these steps, with its errors on those that were left out in turn."""
    if not steps:
        raise InputError("a profile is fitted on measured steps, and there are none.")
    ready = prepared(steps, model, say)
    say(f"fitting {len(ready)} steps")
    responses, measured = [p.response for p in ready], np.array([p.seconds for p in ready])
    folds = _folds([p.network for p in ready])
    missed = {c: _missed(c, responses, measured, folds) for c in (ZERO_SHOT, *candidates)}
    errors = {c: float(np.abs(np.exp(logs) - 1).mean()) for c, logs in missed.items()}
    apart = {c: np.abs(logs) for c, logs in missed.items()}  # half as long counts as twice as long does
    best = _chosen({c: each for c, each in apart.items() if each.mean() <= apart[ZERO_SHOT].mean()})
    learned = _learn(best, responses, measured)
    card = Card(
        rows=len(ready), sources=tuple(sources), form=best.name, rows_left_out=len(ready),
        error_before=errors[ZERO_SHOT], error_after=errors[best],
    )  # fmt: skip
    return replace(
        learned.fitted.profile(name), residuals=learned.residuals, purpose=purpose or Purpose(), card=card,
        intervals=Intervals(width=_width(missed[best])), memory=_memory(ready),
    )  # fmt: skip


def prepared(
    steps: Sequence[Step | Prepared], model: str | CostModel = DEFAULT, say: Say = lambda text: None
) -> list[Prepared]:
    ready = []
    for number, step in enumerate(steps, 1):
        say(f"pricing {step.network}, {number} of {len(steps)}")
        ready.append(Prepared.of(step, model) if isinstance(step, Step) else step)
    return ready


def _learn(candidate: Candidate, responses: Sequence[Response], measured: Floats) -> _Learned:
    fitted = fit(candidate.form, responses, measured)
    if not candidate.smooth:
        return _Learned(fitted=fitted, residuals=None)
    fixed = fitted.fixed
    left = np.log(np.maximum(measured - fixed, 0.05 * measured) / (np.exp(fitted.logs(responses)) - fixed))
    return _Learned(fitted=fitted, residuals=fit_residuals([r.description for r in responses], left))


def _missed(
    candidate: Candidate, responses: Sequence[Response], measured: Floats, folds: Sequence[Positions]
) -> Floats:
    """log(predicted ÷ measured) of every step, while it was left out."""
    missed = np.zeros(len(measured))
    for out in folds:
        rest = np.setdiff1d(np.arange(len(measured)), out)
        learned = _learn(candidate, [responses[i] for i in rest], measured[rest]) if len(rest) else None
        if learned is None:
            learned = _Learned(fitted=fit(ZERO_SHOT.form, responses, measured), residuals=None)
        missed[out] = learned.logs([responses[i] for i in out]) - np.log(measured[out])
    return missed


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


def _chosen(errors: Mapping[Candidate, Floats]) -> Candidate:
    """Of those that are no worse than nothing: the last, which has most detail, that is not clearly worse than the best.

    Priors keep what steps do not show from doing harm, and of few steps left out the best is often so by chance.
    """
    best = min(errors.values(), key=lambda each: float(each.mean()))

    def is_near(each: Floats) -> bool:
        worse = each - best
        return bool(worse.mean() <= max(_ALMOST * best.mean(), worse.std() / np.sqrt(len(worse))))

    return [c for c, each in errors.items() if is_near(each)][-1]


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
    """A half-width that held the asked share of the steps left out; of few, a little more."""
    rank = min((len(missed) + 1) * _LEVEL / len(missed), 1.0)
    return min(round(float(np.quantile(np.abs(missed), rank)) * (1 + _WIDER / len(missed)), 4), WIDEST)
