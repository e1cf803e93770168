"""Profiles for rows that are left out: fitted on the other parts of their domain, through forecasts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretell.learn.adapt.fit import fit_profile
from foretell.learn.adapt.steps import Step, well_spread
from foretell.profile import Card, Profile, Purpose
from foretell_bench.asking import Answer, Asker
from foretell_bench.graphs import graph_of
from foretell_bench.sources.question import Question

ENOUGH: Final = 4  # measured steps to fit a profile on


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A row with its forecasts; `fitted` is None where too few other rows were measured, or none was needed."""

    question: Question
    plain: Answer
    fitted: Answer | None = None


def ask_all(source: str, questions: Sequence[Question], asker: Asker) -> tuple[list[Answered], list[Profile]]:
    """Every question without a profile, then every tested one with the profile of the other parts of its domain."""
    plain = asker([(question.ask, None) for question in questions])
    answered = [Answered(question=q, plain=a) for q, a in zip(questions, plain, strict=True)]
    profiles = []
    for domain in dict.fromkeys(q.domain for q in questions):
        own = [i for i, q in enumerate(questions) if q.domain == domain and q.seconds and not plain[i].why]
        for part in dict.fromkeys(questions[i].part for i in own if questions[i].tested):
            tested = [i for i in own if questions[i].part == part]
            known = [answered[i] for i in own if questions[i].part != part]
            if len(known) < ENOUGH:
                continue
            profile = _fitted(f"{source}: {domain} without {part}", known)
            answers = asker([(questions[i].ask, profile) for i in tested])
            for i, found in zip(tested, answers, strict=True):
                answered[i] = replace(answered[i], fitted=found)
            profiles.append(_with_card(profile, source, [answered[i] for i in tested]))
    return answered, profiles


def _fitted(name: str, known: Sequence[Answered]) -> Profile:
    keys = [(str(each.question.ask.plan), each.question.seconds or 0.0) for each in known]
    chosen = [known[i].question for i in well_spread(keys)]
    steps = [
        Step(workload=graph_of(q.ask.model), on=q.ask.cluster, plan=q.ask.plan, seconds=q.seconds or 0.0)
        for q in chosen
    ]
    return fit_profile(steps, name=name)


def _with_card(profile: Profile, source: str, tested: Sequence[Answered]) -> Profile:
    measured = np.array([each.question.seconds for each in tested], dtype=float)
    errors = [
        float(np.abs(np.array([found.seconds for found in answers]) / measured - 1).mean())
        for answers in ([each.plain for each in tested], [each.fitted or each.plain for each in tested])
    ]
    card = Card(
        rows=profile.card.rows, sources=(source,), form=profile.card.form, error_before=errors[0],
        error_after=errors[1], rows_left_out=len(tested)
    )  # fmt: skip
    where = tested[0].question.ask.cluster.nodes[0].device.name
    return replace(profile, card=card, purpose=Purpose(device=where, trainer=source))
