"""`/v1/forecasts`: the answer is exactly what `foretell predict --json` prints."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.serve.database.tables import StoredForecast
from foretell.serve.listener.callers import Few, Member, Reader, ServiceDep
from foretell.serve.requests import EXAMPLE, ForecastRequest, Hash, Id

router = APIRouter(prefix="/v1/forecasts", tags=["forecasts"])
ID_HEADER: Final = "Foretell-Forecast"
CACHE_HEADER: Final = "Foretell-Cache"
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What `foretell predict --json` prints; docs/reference/json.md has every field.",
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "example": {
                    "schema_version": 1,
                    "workload": "resnet50",
                    "cluster": "8xh100-sxm",
                    "plan": "dp=8",
                    "step_time": {"seconds": 0.1083, "low": 0.1012, "high": 0.1171},
                },
            }
        },
    }
}


class ForecastSummary(BaseModel):
    """A forecast that was given; GET /v1/forecasts/ID has all of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"id": EXAMPLE[:32], "graph": EXAMPLE, "workload": "resnet50", "cluster": "8xh100-sxm", "plan": "dp=8",
                 "model": DEFAULT_MODEL, "seconds": 0.1083, "fits": True, "asked_by": "local", "created": 1.79e9}
            ]
        }
    )  # fmt: skip

    id: str
    graph: str
    workload: str
    cluster: str
    plan: str
    model: str
    seconds: float
    fits: bool
    created_by: str = Field(serialization_alias="asked_by")
    created: float


@router.post("", response_class=Response, responses=_ANSWER)
async def ask(request: ForecastRequest, service: ServiceDep, caller: Member) -> Response:
    """Forecast one step of a graph that was sent before."""
    answer, at_hand = await service.forecast(caller, request)
    how = "hit" if at_hand else "miss"
    service.metrics.forecasts.labels(how).inc()
    return Response(answer.body, media_type="application/json", headers={ID_HEADER: answer.id, CACHE_HEADER: how})


@router.get("")
def list_forecasts(
    service: ServiceDep, caller: Reader, graph: Hash | None = None, most: Few = 100
) -> list[ForecastSummary]:
    """The forecasts of your team, the newest first."""
    wanted = select(StoredForecast).filter_by(team_id=caller.team)
    if graph is not None:
        wanted = wanted.filter_by(graph=graph)
    with service.database.reading() as session:
        rows = session.scalars(wanted.order_by(StoredForecast.created.desc()).limit(most))
        return [ForecastSummary(**{name: getattr(row, name) for name in ForecastSummary.model_fields}) for row in rows]


@router.get("/{id}", response_class=Response, responses=_ANSWER)
def get_forecast(id: Id, service: ServiceDep, caller: Reader) -> Response:
    """An answer that was given before."""
    found = service.stored(caller, id)
    return Response(found.answer, media_type="application/json", headers={ID_HEADER: found.id})
