"""Long work on a graph that was sent before: the search for a plan, and forecasts on more and more devices."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session

from foretell.errors import InputError
from foretell.forecasting.job import JobLength
from foretell.graph import Graph
from foretell.hardware import Instance, Term, read_prices
from foretell.plans import Plan
from foretell.serve.database.tables import Job, StoredGraph, StoredPlans
from foretell.serve.jobs.work import Done, Gone, JobRequest, Means, Say
from foretell.serve.requests import EXAMPLE, Hash, RequestConditions, RequestJob, Text, cluster_of, model_version
from foretell.text import json_text

_MAX_DEVICES: Final = 16_384


class GraphJobRequest(JobRequest):
    """Work on a graph that was sent before."""

    graph: Hash
    plan: Text | None = None
    model: Text | None = None
    profile: Text | None = None
    conditions: RequestConditions | None = None
    job: RequestJob | None = None

    def check(self) -> None:
        if self.plan is not None:
            Plan.parse(self.plan)
        if self.model is not None:
            model_version(self.model)
        for part in (self.conditions, self.job):
            if part is not None:
                part.made()

    def material(self, session: Session, team: str) -> bytes:
        found = session.get(StoredGraph, (team, self.graph))
        if found is None:
            raise Gone("graph", self.graph)
        return found.data

    def shared(self, profile: Path | None) -> dict[str, Any]:
        """Arguments that all of the library's functions take."""
        arguments: dict[str, Any] = {"plan": self.plan}
        if self.model is not None:
            arguments["model"] = self.model
        if profile is not None:
            arguments["profile"] = profile
        if self.conditions is not None:
            arguments["conditions"] = self.conditions.made()
        if self.job is not None:
            arguments["job"] = self.job.made()
        return arguments


class PlanRequest(GraphJobRequest):
    """A search for the cluster and the plan of a job, as `foretell.plan`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"graph": EXAMPLE, "gpus": ["h100-sxm", "l40s"], "max_devices": 64, "tokens": 1e9, "deadline": 3600.0},
                {"graph": EXAMPLE, "on": "8xh100-sxm", "samples": 1e6, "term": "spot", "region": "us-west-2"},
            ]
        }
    )

    on: Text | None = Field(default=None, description="This cluster and no other.")
    gpus: Annotated[list[Text], Field(max_length=50)] = Field(default=[], examples=[["h100-sxm", "l40s"]])
    max_devices: Annotated[int, Field(ge=1, le=_MAX_DEVICES)] = 64
    samples: float | None = None
    tokens: float | None = None
    epochs: float | None = Field(default=None, description="Of `dataset` samples.")
    dataset: float | None = None
    deadline: float | None = Field(default=None, description="Seconds that the job may take.")
    budget: float | None = Field(default=None, description="Dollars that it may cost.")
    confidence: float = 0.9
    global_batch: Annotated[int, Field(ge=1)] | None = None
    batches: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=50)] | None = Field(
        default=None, description="Batches of a micro-step to try."
    )
    prices: Annotated[dict[Text, float], Field(max_length=50)] | None = Field(
        default=None, description="Dollars per device and hour.", examples=[{"h100-sxm": 1.9}]
    )
    term: Term = "on-demand"
    region: Text | None = Field(default=None, description="Prices of this region, like us-east-1.")
    recompute: Annotated[list[float | Text], Field(max_length=20)] | Literal["auto"] | None = Field(
        default=None,
        description="What to try of a plan's checkpointing; auto: as little as surely fits.",
        examples=[["none", 0.5]],
    )
    offers: Annotated[str, Field(max_length=200_000)] | None = Field(
        default=None,
        description="A table of prices as CSV, as `foretell plan --prices` reads it, instead of the catalog's.",
    )
    instances: bool = Field(default=False, description="Try every instance that rents the gpus, with its own network.")
    search: Annotated[list[Text], Field(max_length=10)] = Field(
        default=[], description="What to try beside plans and batches.", examples=[["offload", "spot"]]
    )

    def check(self) -> None:
        super().check()
        self._search()["space"].clusters(None if self.on is None else cluster_of(self.on))

    def _search(self) -> dict[str, Any]:
        """The job, the goal and the space, as `foretell.plan` takes them."""
        from foretell.planner.goal import Goal
        from foretell.planner.space import Space

        counts = {name: getattr(self, name) for name in ("samples", "tokens", "epochs", "dataset")}
        if self.job is not None and any(count is not None for count in counts.values()):
            raise InputError("a job has its length already. Give job, or samples, tokens or epochs.")
        length = (
            JobLength.usual(**counts, spot="spot" in (self.term, *self.search)) if self.job is None else self.job.made()
        )
        given = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        if self.offers is not None:
            given["offers"] = _offers(self.offers)
        goal, space = ({f.name: given[f.name] for f in fields(kind) if f.name in given} for kind in (Goal, Space))
        return {"job": length, "goal": Goal(**goal), "space": Space(**space)}

    def do(self, material: bytes, say: Say, means: Means) -> Done:
        from foretell.planner.plan import plan
        from foretell.planner.ray import RayRunner
        from foretell.planner.result import Choice
        from foretell.planner.search import Search
        from foretell.report.plan import plan_body

        graph = Graph.from_bytes(material, "the graph")
        search = Search(runner=None if means.ray is None else RayRunner(means.ray))
        found = plan(graph, self.on, **self.shared(means.profile) | self._search(), search=search, progress=say)

        def address(choice: Choice) -> str:
            return "/ask?" + urlencode({"graph": self.graph, "on": choice.cluster, "plan": choice.plan})

        return Done(result=found.to_json(), picture=plan_body(found, address))

    def keep(self, session: Session, job: Job, done: Done) -> None:
        made = {"id": job.id, "team_id": job.team_id, "question": job.question, "created": job.ended}
        session.add(StoredPlans(answer=done.result, **made))


def _offers(table: str) -> tuple[Instance, ...]:
    """Read by the one reader of such tables, which takes files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prices.csv"
        path.write_text(table, encoding="utf-8")
        try:
            return read_prices(path)
        except InputError as error:
            raise InputError(str(error).replace(str(path), "the table of prices")) from None


class ScaleRequest(GraphJobRequest):
    """One workload on more and more devices, as `foretell.scale`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"graph": EXAMPLE, "on": "h100-sxm", "up_to": 64}]})

    on: Text = Field(description="One device, like h100-sxm.")
    up_to: Annotated[int, Field(ge=1, le=_MAX_DEVICES)]

    def check(self) -> None:
        super().check()
        cluster_of(self.on)

    def do(self, material: bytes, say: Say, means: Means) -> Done:
        from foretell.forecasting.scale import scale
        from foretell.report.scale import scaling_figures

        graph = Graph.from_bytes(material, "the graph")
        points = scale(graph, self.on, up_to=self.up_to, **self.shared(means.profile), progress=say)
        return Done(result=json_text([point.to_dict() for point in points]), picture=scaling_figures(points))
