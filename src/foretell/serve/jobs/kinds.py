"""The kinds of long work: what each is asked with, and how it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.serve.questions import Asked, AskedConditions, AskedJob, Hash, Text, model_version, profile_path
from foretell.text import json_text

Say = Callable[[str], None]
_MOST_DEVICES: Final = 16_384


class AskedLong(Asked):
    """What every kind has."""

    graph: Hash
    plan: Text | None = None
    model: Text | None = None
    profile: Text | None = None
    conditions: AskedConditions | None = None
    job: AskedJob | None = None

    def check(self) -> None:
        """A slip in a name is an error at once, not after a long wait."""
        if self.plan is not None:
            Plan.parse(self.plan)
        if self.model is not None:
            model_version(self.model)
        for part in (self.conditions, self.job):
            if part is not None:
                part.made()
        self.shared()

    def shared(self) -> dict[str, Any]:
        """Arguments that all of the library's functions take."""
        asked: dict[str, Any] = {"plan": self.plan}
        if self.model is not None:
            asked["model"] = self.model
        if self.profile is not None:
            asked["profile"] = profile_path(self.profile)
        if self.conditions is not None:
            asked["conditions"] = self.conditions.made()
        if self.job is not None:
            asked["job"] = self.job.made()
        return asked

    def do(self, graph: Graph, say: Say) -> str:
        raise NotImplementedError


class AskedPlans(AskedLong):
    """A search for the cluster and the plan of a job, as `foretell.plan`."""

    on: Text | None = Field(default=None, description="This cluster and no other.")
    gpus: Annotated[list[Text], Field(max_length=50)] = Field(default=[], examples=[["h100-sxm", "l40s"]])
    max_devices: Annotated[int, Field(ge=1, le=_MOST_DEVICES)] = 64
    samples: float | None = None
    tokens: float | None = None
    deadline: float | None = Field(default=None, description="Seconds that the job may take.")
    budget: float | None = Field(default=None, description="Dollars that it may cost.")
    confidence: float = 0.9
    global_batch: Annotated[int, Field(ge=1)] | None = None

    def check(self) -> None:
        from foretell.planner.choose import Goal
        from foretell.planner.plan import job_length

        super().check()
        for text in [self.on] if self.on is not None else self.gpus:
            Cluster.parse(text)
        Goal(deadline=self.deadline, budget=self.budget, confidence=self.confidence)
        job_length(self.samples, self.tokens, None, None, None if self.job is None else self.job.made())

    def do(self, graph: Graph, say: Say) -> str:
        from foretell.planner.plan import plan

        names = ("on", "max_devices", "samples", "tokens", "deadline", "budget", "confidence", "global_batch")
        asked = {name: getattr(self, name) for name in names}
        return plan(graph, **asked, **self.shared(), gpus=tuple(self.gpus), progress=say).to_json()


class AskedScale(AskedLong):
    """One workload on more and more devices, as `foretell.scale`."""

    on: Text = Field(description="One device, like h100-sxm.")
    up_to: Annotated[int, Field(ge=1, le=_MOST_DEVICES)]

    def check(self) -> None:
        super().check()
        Cluster.parse(self.on)

    def do(self, graph: Graph, say: Say) -> str:
        from foretell.forecasting.scale import scale

        points = scale(graph, self.on, up_to=self.up_to, **self.shared(), progress=say)
        return json_text([point.to_dict() for point in points])


KINDS: Final[Mapping[str, type[AskedLong]]] = {"plan": AskedPlans, "scale": AskedScale}


def made(kind: str, question: dict[str, Any]) -> AskedLong:
    """As it was asked, from what the database kept of it."""
    return KINDS[kind].model_validate_json(json.dumps(question))
