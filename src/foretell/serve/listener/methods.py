"""`/v1/methods`: published systems that were fitted, asked beside Foretell's own engine."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.requests import PredictionRequest

router = APIRouter(prefix="/v1/methods", tags=["methods"])
Name = Annotated[str, Path(max_length=255, description="A name that GET /v1/methods lists.")]
_EXAMPLE: Final[dict[str, Any]] = {"name": "ours", "method": "PredictDDL"}


class MethodSummary(BaseModel):
    """A fitted method that can be asked."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: str
    method: str


class MethodPrediction(MethodSummary):
    """What a fitted method says of a step."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                _EXAMPLE | {"values": {"step_time": 0.112, "memory": 2.1e10}, "low": {}, "high": {}, "why": ""}
            ]
        }
    )

    values: dict[str, float] = Field(description="By target: seconds, and bytes of memory.")
    low: dict[str, float]
    high: dict[str, float]
    why: str = Field(description="The reason where it says nothing, as of a kind of data that it was not fitted on.")


@router.get("")
def list_methods(service: ServiceDep, caller: Reader) -> list[MethodSummary]:
    """Fitted methods of whoever runs the service (`foretell serve --method FOLDER`)."""
    return [MethodSummary(name=each.name, method=each.method) for each in service.methods.listed()]


@router.post("/{name}/predictions")
async def predict(name: Name, request: PredictionRequest, service: ServiceDep, caller: Member) -> MethodPrediction:
    """What a fitted method says of one step of a graph that was sent before."""
    return MethodPrediction(**await service.predict(caller, name, request))
