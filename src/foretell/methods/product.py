"""Foretell itself as one method among the others: what `adapt` makes of the examples, and a forecast with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from foretell.cost.model import DEFAULT
from foretell.errors import InputError
from foretell.forecasting.forecast import forecast
from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.fit import fit_profile
from foretell.learn.adapt.operators import Recorded
from foretell.learn.adapt.steps import Prepared, Step
from foretell.methods.graphs import answers, readable
from foretell.methods.protocol import DEVICE_TIME, MEMORY, STEP_TIME, Example, Prediction, Query
from foretell.profile import Profile

_NO_GRAPH: Final = "a forecast needs the graph of the step, and the source does not say what was run"


class Foretell:
    """Steps whose plan cannot be forecast teach nothing; without any that can, the shipped model answers by itself."""

    name: Final = "Foretell"

    def __init__(self, *, model: str = DEFAULT) -> None:
        self.model = model
        self.profile: Profile | None = None

    def fit(self, examples: Sequence[Example]) -> Self:
        steps = [step for e in readable(examples, self.name) if (step := _step(e, self.model)) is not None]
        self.profile = fit_profile(steps, name="fitted", model=self.model) if steps else None
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return answers(queries, lambda some: map(self._answer, some), _NO_GRAPH)

    def _answer(self, query: Query) -> Prediction:
        assert query.graph is not None
        try:
            found = forecast(query.graph, query.cluster, query.plan, model=self.model, profile=self.profile)
        except InputError as error:
            return Prediction(values={}, why=str(error))
        step, device = found.step_time, found.device_time
        known = {STEP_TIME: step.seconds, DEVICE_TIME: device.seconds, MEMORY: float(found.memory.allocated)}
        values = {target: value for target, value in known.items() if value > 0}
        low, high = ({STEP_TIME: step.low}, {STEP_TIME: step.high}) if step.low and step.high else ({}, {})
        return Prediction(values=values, low=low, high=high)


def _step(example: Example, model: str) -> Step | Prepared | None:
    """As `adapt` takes it, with its ops where they were timed; None where there is no time, or no forecast to correct."""
    query, allocated = example.query, example.measured.get(MEMORY)
    if query.graph is None or not example.measured.get(STEP_TIME, 0.0) > 0:
        return None
    step = Step(
        workload=query.graph, on=query.cluster, plan=query.plan, seconds=example.measured[STEP_TIME],
        allocated=int(allocated) if allocated else None,
        recorded=Recorded(graph=query.graph, seconds=[s or None for s in example.ops]) if example.ops else None,
    )  # fmt: skip
    try:  # every fit on some of the same steps asks again
        known = query.graph.remember((ProfileResponse, query.cluster, query.plan, model), lambda: step.response(model))
    except InputError:
        return None
    return step if step.recorded is not None else Prepared.of(step, model, known=known)
