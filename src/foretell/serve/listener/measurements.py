"""`/v1/measurements`: steps that were run and timed, beside what was forecast of them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from foretell.learn.adapt.steps import Step
from foretell.plans import Plan
from foretell.serve import requests
from foretell.serve.database.connect import new_id, now
from foretell.serve.database.tables import Measurement, StoredForecast, StoredGraph
from foretell.serve.listener.callers import Few, Member, Reader, ServiceDep
from foretell.serve.problems import missing
from foretell.serve.requests import EXAMPLE, Hash, Text, cluster_of

router = APIRouter(prefix="/v1/measurements", tags=["measurements"])


class Measured(requests.StrictModel):
    """A measured step, as `foretell.MeasuredStep`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"graph": EXAMPLE, "on": "8xh100-sxm", "plan": "dp=8", "seconds": 0.1104}]}
    )

    graph: Hash
    on: Text
    plan: Text | None = None
    seconds: float = Field(description="The median of steady steps.", examples=[0.1104])
    allocated: int | None = None
    reserved: int | None = None


class MeasurementSummary(BaseModel):
    """A measured step beside its newest forecast."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"id": EXAMPLE[:32], "graph": EXAMPLE, "cluster": "8xh100-sxm", "plan": "dp=8", "seconds": 0.1104,
                 "predicted": 0.1083, "error": -0.019, "forecast": EXAMPLE[32:], "created": 1.79e9}
            ]
        }
    )  # fmt: skip

    id: str
    graph: str
    cluster: str
    plan: str
    seconds: float
    predicted: float | None = Field(
        description="Seconds, of the newest forecast of the same step; null: there was none."
    )
    error: float | None = Field(description="predicted ÷ measured − 1")
    forecast: str | None
    created: float


@router.post("", status_code=201)
def add(request: Measured, service: ServiceDep, caller: Member) -> MeasurementSummary:
    """Keep what a step took; where that makes a fit of a profile due, it is queued."""
    cluster = cluster_of(request.on)
    plan = Plan.parse(request.plan) if request.plan else Plan(dp=cluster.devices)
    plan.check_devices(cluster.devices)
    Step(workload="", on=cluster, seconds=request.seconds, allocated=request.allocated, reserved=request.reserved)
    with service.database.writing() as session:
        if session.get(StoredGraph, (caller.team, request.graph)) is None:
            raise missing("graph", request.graph)
        forecast = session.scalar(
            select(StoredForecast)
            .filter_by(team_id=caller.team, graph=request.graph, cluster=str(cluster), plan=str(plan))
            .order_by(StoredForecast.created.desc())
            .limit(1)
        )
        row = Measurement(
            id=new_id(), team_id=caller.team, graph=request.graph, cluster=str(cluster), plan=str(plan),
            seconds=request.seconds, allocated=request.allocated, reserved=request.reserved,
            forecast_id=forecast.id if forecast else None, measured_by=caller.key, created=now(),
        )  # fmt: skip
        session.add(row)
        session.flush()
        kept = _summary(session, row)
    if (due := service.checker.fitting(caller, cluster)) is not None:
        service.begin(caller, "adapt", due)
    return kept


@router.get("")
def list_measurements(service: ServiceDep, caller: Reader, most: Few = 100) -> list[MeasurementSummary]:
    """The measured steps of your team, the newest first."""
    wanted = select(Measurement).filter_by(team_id=caller.team).order_by(Measurement.created.desc())
    with service.database.reading() as session:
        rows = session.scalars(wanted.limit(most)).all()
        return [_summary(session, row) for row in rows]


def _summary(session: Session, row: Measurement) -> MeasurementSummary:
    forecast = None if row.forecast_id is None else session.get(StoredForecast, row.forecast_id)
    return MeasurementSummary(
        id=row.id, graph=row.graph, cluster=row.cluster, plan=row.plan, seconds=row.seconds, created=row.created,
        predicted=forecast.seconds if forecast else None,
        error=forecast.seconds / row.seconds - 1 if forecast else None,
        forecast=row.forecast_id,
    )  # fmt: skip
