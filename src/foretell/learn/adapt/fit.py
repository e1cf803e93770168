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
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError
from foretell.forecasting.many_responses import ManyResponses
from foretell.graph import Graph
from foretell.learn.adapt.blend import Chosen, choose, learn, mean_error
from foretell.learn.adapt.candidates import candidates
from foretell.learn.adapt.folds import folds, ways
from foretell.learn.adapt.numbers import NOISE, SURE
from foretell.learn.adapt.operators import Recorded, fit_operators
from foretell.learn.adapt.steps import Prepared, Step, is_repeated
from foretell.profile import WIDEST, Card, Intervals, MemoryFactors, Profile, Purpose

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]  # progress, for a person

_TIMED_FOLDS: Final = 5
_NETWORKS_TIMED: Final = 6  # with fewer, curves of ops would know no more than them
_ENOUGH: Final = 3  # steps with their memory
_ALMOST: Final = 0.03  # of the smallest error counts as none
_LEVEL: Final = 0.9  # of an interval


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
    for out in folds([step.network for step in steps], most=_TIMED_FOLDS):
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
    chosen = choose(
        candidates(responses, again, start), responses, measured,
        ways([p.network for p in ready], again),
    )  # fmt: skip
    learned = learn(chosen.fitted, chosen.weights, chosen.smooth, responses, measured).less(chosen.back)
    found = learned.fitted.profile(name)
    by_network = found.networks and len(chosen.missed) > 1
    card = Card(
        rows=len(ready), sources=tuple(sources), form=_in_words(chosen), rows_left_out=len(ready), start=start.name if start else "",
        error_before=mean_error(chosen.before), error_after=mean_error(chosen.missed[0]),
        error_measured=mean_error(chosen.missed[1]) if by_network else None,
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


def prepared(
    steps: Sequence[Step | Prepared], model: str | CostModel = DEFAULT, say: Say = lambda text: None
) -> list[Prepared]:
    ready = []
    for number, step in enumerate(steps, 1):
        say(f"pricing {step.network}, {number} of {len(steps)}")
        ready.append(Prepared.of(step, model) if isinstance(step, Step) else step)
    return ready


def _in_words(chosen: Chosen) -> str:
    form, start = chosen.candidates[int(np.argmax(chosen.weights))]
    levels = (*((f"profile {start.name!r}",) if start else ()), *form.levels)
    return ", ".join((*levels, *(("residuals",) if chosen.smooth > 0.5 else ()))) or "nothing"


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
