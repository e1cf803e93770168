"""Step times → a Profile: as much as steps left out of the fit say is worth fitting.

Forms of growing detail are fitted on parts of the steps and asked about the others, steps of one network being left out
together. The profile is their mean, each form counting by how likely its errors on steps left out are: with few steps
several forms are, and what one of them found by chance fades in the mean. As much of it is taken back as makes the mean error
of steps left out least: very different jobs have no factors in common, though half of what they seem to have may help. Where
nothing is better than no profile, there is none.

Where most networks were measured more than once, forms may have a factor for each of them, and steps are left out one by one
too: what is asked later may be of a network that was measured, or of another. A profile of another device or cluster can be
what all of it starts from, as far as that helps.
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
from foretell.forecasting.many_responses import ManyResponses
from foretell.forecasting.profile_response import ProfileResponse
from foretell.graph import Graph
from foretell.learn.adapt.numbers import NOISE, SURE, Fitted, Form, fit
from foretell.learn.adapt.operators import Recorded, fit_operators
from foretell.learn.adapt.smooth import fit_residuals
from foretell.learn.adapt.steps import Prepared, Step, is_repeated
from foretell.profile import WIDEST, Card, Intervals, MemoryFactors, Profile, Purpose, Residuals

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]  # progress, for a person
Positions = npt.NDArray[np.intp]

FOLDS: Final = 10
_TIMED_FOLDS: Final = 5
_NETWORKS_TIMED: Final = 6  # with fewer, curves of ops would know no more than them
_NETWORKS: Final = 4  # with fewer, there is none to leave out
_ENOUGH: Final = 3  # steps with their memory
_PARTS: Final = ("device", "host", "communication", "fixed", "links")
_BACK: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of what was found that may be taken back
_ALMOST: Final = 0.03  # of the smallest error counts as none
_EXACT: Final = 1e-3  # an error that counts as none
_SEEN: Final = 0.02  # a smaller share of a residual model is none
_TEMPER: Final = 0.5  # of the steps count as if nothing of them was known from the others
_SIMPLE: Final = 0.1  # e-folds by which one level more is less likely, before anything was measured
_STRANGER: Final = 50.0  # levels that it counts as, to know nothing of a profile that was given to start from
_LEVEL: Final = 0.9  # of an interval


FORMS: Final = (
    Form(),
    Form(levels=("device",)),
    Form(levels=_PARTS),
    Form(levels=("device", "host", "kinds", "families")),  # of a processor whose links are as listed
    Form(levels=(*_PARTS, "kinds", "precisions")),
    Form(levels=(*_PARTS, "kinds", "precisions", "families")),
)
OF_NETWORKS: Final = tuple(
    Form(levels=(*levels, *own))
    for own in (("networks",), ("networks", "seconds"))
    for levels in (("device",), _PARTS, (*_PARTS, "kinds", "precisions"), (*_PARTS, "kinds", "precisions", "families"))
)
FROM_START: Final = (
    Form(),
    Form(levels=("device",)),
    Form(levels=_PARTS),
    Form(levels=(*_PARTS, "kinds", "precisions")),
)
Candidate = tuple[Form, Profile | None]  # what is fitted, and on top of what


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    fitted: Fitted
    residuals: Residuals | None = None

    def less(self, share: float) -> _Learned:
        """With all that was found nearer to nothing."""
        if not share:
            return self
        kept, nearer = self.residuals, 1 - share
        further = kept and replace(kept, weights=tuple(nearer * w for w in kept.weights))
        numbers = Fitted(self.fitted.form, nearer * self.fitted.numbers, self.fitted.unit)
        return _Learned(fitted=numbers, residuals=further)

    def logs(self, responses: Sequence[ProfileResponse]) -> Floats:
        fixed, seconds = self.fitted.fixed_of(responses), np.exp(self.fitted.logs(responses))
        if self.residuals is None:
            return np.log(seconds)
        further = np.exp([self.residuals.log_factor(r.features) for r in responses])
        return np.asarray(np.log((seconds - fixed) * further + fixed), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """How much each candidate counts, how much the residual model on top of them, by how much all that is taken back, and what
    the steps left out missed by, for each way of leaving them out: with their network first."""

    candidates: Sequence[Candidate]
    fitted: Sequence[Fitted]  # on all steps
    weights: Floats
    smooth: float
    back: float
    missed: Sequence[Floats]
    before: Floats


def fit_profile(
    steps: Sequence[Step | Prepared], *, name: str, purpose: Purpose | None = None, sources: Sequence[str] = (),
    model: str | CostModel = DEFAULT, start: Profile | None = None, say: Say = lambda text: None,
) -> Profile:  # fmt: skip
    """Make a profile of measured steps, with its errors on those that were left out in turn.

    Where steps were recorded op by op, it may also correct what the model says of ops, as far as that helps.

    Args:
        steps: What was measured.
        name: Of the profile; forecasts that use it say so.
        purpose: The device, cluster or trainer it is for; `sources`: where the steps are from.
        model: The cost model that it corrects.
        start: Another profile to begin with.
        say: Is called with a line now and then.

    Returns:
        The profile; `save` keeps it.

    Raises:
        InputError: No steps, or steps that cannot be forecast.

    Examples:
        >>> steps = [foretell.MeasuredStep(workload="torchvision/resnet18", on="h200", seconds=s) for s in (0.02, 0.03)]
        >>> foretell.adapt(steps, name="mine").card.rows
        2
    """
    if not steps:
        raise InputError("a profile is fitted on measured steps, and there are none.")
    _check_start(start)
    plainly, missed = _profile(
        prepared(steps, model, say), name=name, purpose=purpose, sources=sources, start=start, say=say
    )
    recorded = [step for step in steps if isinstance(step, Step) and step.recorded is not None]
    if start is not None or len(recorded) < len(steps) or not _tell_of_ops(recorded):
        return plainly
    say("fitting times of their ops")
    timed = [step.timed_ops for step in recorded]
    by_op, missed_by_op = _profile(
        _priced_by_others(recorded, timed, model), name=name, purpose=purpose, sources=sources, say=say
    )
    if np.abs(missed_by_op).mean() >= np.abs(missed).mean():
        return plainly
    form = ", ".join(("operators", *(() if by_op.card.form == "nothing" else (by_op.card.form,))))
    return replace(
        by_op,
        operators=fit_operators(timed, recorded[0].cluster, model),
        card=replace(by_op.card, form=form, error_before=plainly.card.error_before),
    )


def _tell_of_ops(steps: Sequence[Step]) -> bool:
    """Whether there are enough networks, all on one device."""
    return len({step.network for step in steps}) >= _NETWORKS_TIMED and len({str(step.on) for step in steps}) == 1


def _priced_by_others(
    steps: Sequence[Step], timed: Sequence[tuple[Recorded, Graph]], model: str | CostModel
) -> list[Prepared]:
    """Each with times of ops from other networks than its own, as they will be for a network that nobody timed."""
    ready: dict[int, Prepared] = {}
    for out in _folds([step.network for step in steps], _TIMED_FOLDS):
        rest = np.setdiff1d(np.arange(len(steps)), out)
        others = fit_operators([timed[i] for i in rest], steps[0].cluster, model)
        ready |= {int(i): Prepared.of(steps[i], model, others) for i in out}
    return [ready[i] for i in range(len(steps))]


def _profile(
    ready: Sequence[Prepared], *, name: str, purpose: Purpose | None, sources: Sequence[str], say: Say,
    start: Profile | None = None,
) -> tuple[Profile, Floats]:  # fmt: skip
    """And by how much it misses steps left out with their network, as logarithms."""
    say(f"fitting {len(ready)} steps")
    purpose = replace(purpose or Purpose(), software=_software_of(ready, start))
    responses, measured = ManyResponses([p.response for p in ready]), np.array([p.seconds for p in ready])
    again = is_repeated([r.network for r in responses])
    chosen = _choose(
        _candidates(again, start), responses, measured,
        _ways([p.network for p in ready], again),
    )  # fmt: skip
    learned = _learn(chosen.fitted, chosen.weights, chosen.smooth, responses, measured).less(chosen.back)
    found = learned.fitted.profile(name)
    by_network = found.networks and len(chosen.missed) > 1
    card = Card(
        rows=len(ready), sources=tuple(sources), form=_in_words(chosen), rows_left_out=len(ready), start=start.name if start else "",
        error_before=_mean_error(chosen.before), error_after=_mean_error(chosen.missed[0]),
        error_measured=_mean_error(chosen.missed[1]) if by_network else None,
    )  # fmt: skip
    profile = replace(
        found, residuals=learned.residuals, purpose=purpose, card=card, memory=_memory(ready),
        intervals=Intervals(
            width=_width(chosen.missed[0]), measured=_width(chosen.missed[1]) if by_network else None
        ),
    )  # fmt: skip
    return profile, chosen.missed[0]


def _software_of(ready: Sequence[Prepared], start: Profile | None) -> str:
    """What all steps ran under, since factors are on top of it."""
    found = {p.software or "" for p in ready} | ({start.purpose.software} if start else set())
    if len(found) > 1:
        raise InputError(
            f"the steps of a profile, and what it starts from, are of several times: {', '.join(s or 'today' for s in sorted(found))}. "
            "Make a profile of each."
        )
    return found.pop()


def _check_start(start: Profile | None) -> None:
    if start is not None and start.operators is not None:
        raise InputError(
            f"profile {start.name!r} has times of single ops, and steps cannot be fitted on top of those. "
            "Start from a profile of step times, or from none."
        )
    if start is not None and (start.links.bandwidth, start.links.latency) != (1.0, 1.0):
        raise InputError(
            f"profile {start.name!r} has links of measured collectives, and steps cannot be fitted on top of those. "
            "Start from a profile of step times, or from none."
        )


def _candidates(again: bool, start: Profile | None) -> list[Candidate]:
    """The first changes nothing."""
    of_networks = OF_NETWORKS if again else ()
    starting = [] if start is None else [(form, start) for form in (*FROM_START, *of_networks)]
    return [*((form, None) for form in (*FORMS, *of_networks)), *starting]


def prepared(
    steps: Sequence[Step | Prepared], model: str | CostModel = DEFAULT, say: Say = lambda text: None
) -> list[Prepared]:
    ready = []
    for number, step in enumerate(steps, 1):
        say(f"pricing {step.network}, {number} of {len(steps)}")
        ready.append(Prepared.of(step, model) if isinstance(step, Step) else step)
    return ready


def _fit_all(
    candidates: Sequence[Candidate], responses: ManyResponses, measured: Floats, near: Sequence[Fitted] | None = None
) -> list[Fitted]:
    close = [None] * len(candidates) if near is None else near
    return [
        fit(form, responses, measured, start, known) for (form, start), known in zip(candidates, close, strict=True)
    ]


def _learn(
    fitted: Sequence[Fitted], weights: Floats, smooth: float, responses: Sequence[ProfileResponse], measured: Floats
) -> _Learned:
    mean = Fitted.mean(fitted, weights)
    if not smooth:
        return _Learned(fitted=mean)
    fixed = mean.fixed_of(responses)
    left = np.log(np.maximum(measured - fixed, 0.05 * measured) / (np.exp(mean.logs(responses)) - fixed))
    return _Learned(fitted=mean, residuals=fit_residuals([r.features for r in responses], left, smooth))


def _choose(
    candidates: Sequence[Candidate],
    responses: ManyResponses,
    measured: Floats,
    ways: Sequence[Sequence[Positions]],
) -> _Chosen:
    """By what steps say that are left out in turn, in one way or two."""
    ways = [way for way in ways if len(way) > 1]
    whole = _fit_all(candidates, responses, measured)
    if not ways:
        alone = fit(Form(), responses, measured).logs(responses) - np.log(measured)
        nothing = np.eye(len(candidates))[0]
        return _Chosen(
            candidates=candidates, fitted=whole, weights=nothing, smooth=0.0, back=0.0, missed=[alone], before=alone
        )
    made = {id(way): _Trials(candidates, responses, measured, way, whole) for way in ways}
    trials = [made[id(way)] for way in ways]
    by_candidate = [[each.alone(place) for each in trials] for place in range(len(candidates))]
    started = any(start is not None for _, start in candidates)
    strange = [_STRANGER * (started and start is None) for _, start in candidates]
    weights = _weights(
        by_candidate, [len(form.levels) + more for (form, _), more in zip(candidates, strange, strict=True)]
    )
    without, smoothed = ([each.mixed(weights, smooth) for each in trials] for smooth in (0.0, 1.0))
    smooth = float(_weights([without, smoothed], [0, 0])[1])
    smooth = smooth if smooth > _SEEN else 0.0
    found = [(1 - smooth) * one + smooth * other for one, other in zip(without, smoothed, strict=True)]
    before = by_candidate[0]
    mixes = [[(1 - back) * one + back * none for one, none in zip(found, before, strict=True)] for back in _BACK]
    back, found = min(zip(_BACK, mixes, strict=True), key=lambda mix: _mean_error(np.concatenate(mix[1])))
    if back == 1.0 or np.abs(np.concatenate(found)).mean() > np.abs(np.concatenate(before)).mean():
        weights, smooth, back, found = np.eye(len(candidates))[0], 0.0, 0.0, before
    return _Chosen(
        candidates=candidates, fitted=whole, weights=weights, smooth=smooth, back=back, missed=found, before=before[0]
    )  # fmt: skip


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

    def alone(self, place: int) -> Floats:
        return self._missed([_Learned(fitted=fitted[place]) for fitted in self._fitted])

    def mixed(self, weights: Floats, smooth: float) -> Floats:
        each = zip(self._fitted, self._parts, strict=True)
        return self._missed([_learn(fitted, weights, smooth, *part) for fitted, part in each])

    def _missed(self, learned: Sequence[_Learned]) -> Floats:
        found = np.zeros(len(self._measured))
        for out, each in zip(self._folds, learned, strict=True):
            found[out] = each.logs(self._responses.take(out)) - np.log(self._measured[out])
        return found


def _weights(missed: Sequence[Sequence[Floats]], levels: Sequence[float]) -> Floats:
    """How likely each is, if errors scatter as Laplace has it: by the mean of them to the power of how many there are, for each
    way of leaving steps out; two ways count half each. Every level that it has makes it less likely before that."""
    means = np.array([[max(float(np.abs(way).mean()), _EXACT) for way in each] for each in missed])
    unlikely = _TEMPER * len(missed[0][0]) * np.log(means).mean(1) + _SIMPLE * np.array(levels)
    likely = np.exp(unlikely.min() - unlikely)
    return np.asarray(likely / likely.sum(), dtype=np.float64)


def _in_words(chosen: _Chosen) -> str:
    form, start = chosen.candidates[int(np.argmax(chosen.weights))]
    levels = (*((f"profile {start.name!r}",) if start else ()), *form.levels)
    return ", ".join((*levels, *(("residuals",) if chosen.smooth > 0.5 else ()))) or "nothing"


def _mean_error(missed: Floats) -> float:
    return float(np.abs(np.expm1(missed)).mean())


def _ways(networks: Sequence[str], again: bool) -> list[list[Positions]]:
    """To leave steps out: with their network, and one by one; of too few networks both are the same."""
    together = _folds(networks)
    alone = _folds_of_steps(len(networks)) if len(set(networks)) >= _NETWORKS else together
    return [together, alone] if again else [together]


def _folds(networks: Sequence[str], most: int = FOLDS) -> list[Positions]:
    """Steps of one network together; by step where there are too few networks to leave one out."""
    names = list(dict.fromkeys(networks))
    if len(names) < _NETWORKS:
        names, networks = [str(i) for i in range(len(networks))], [str(i) for i in range(len(networks))]
    order = np.random.default_rng(0).permutation(len(names))
    fold_of = {
        names[n]: place % min(most if len(names) > 2 * most else len(names), len(names))
        for place, n in enumerate(order)
    }
    each = np.array([fold_of[network] for network in networks])
    return [np.flatnonzero(each == fold) for fold in range(each.max() + 1)]


def _folds_of_steps(steps: int) -> list[Positions]:
    order = np.random.default_rng(1).permutation(steps)
    return [order[fold::FOLDS] for fold in range(min(FOLDS, steps))]


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
