"""`/v1/check`, `/v1/resources` and `/v1/graphs/HASH/nearest`: what PredictDDL's other roles know before anything is priced."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.measured import compared, drifts
from foretell.serve.requests import Hash, Text

router = APIRouter(prefix="/v1", tags=["roles"])


@router.get("/check")
def check(service: ServiceDep, caller: Reader, on: Text, model: Text = DEFAULT_MODEL) -> dict[str, Any]:
    """The task checker: whether the devices of a cluster were measured, have a profile, or are transferred to."""
    return asdict(service.checker.check(caller, on, model))


@router.get("/drift")
def drift(service: ServiceDep, caller: Reader) -> list[dict[str, Any]]:
    """Whether forecasts still hold for the steps that your team has measured: since when they do not, and by how much."""
    with service.database.reading() as session:
        steps = compared(session, caller.team)
    return [
        asdict(course.drift)
        | {name: getattr(course.latest, name) for name in ("graph", "workload", "cluster", "plan", "profile")}
        | {"workload": course.latest.source, "windows": len(course.windows)}
        for course in drifts(steps)
    ]


@router.get("/resources")
def resources(service: ServiceDep, caller: Reader) -> dict[str, Any]:
    """The cluster-resource collector: what this service's machine and its Slurm have, and what of it is free."""
    return asdict(service.collector.collect())


@router.get("/graphs/{hash}/nearest")
async def nearest(
    hash: Hash, service: ServiceDep, caller: Member, most: Annotated[int, Query(ge=1, le=100)] = 5
) -> list[dict[str, Any]]:
    """The workload-embedding generator: networks of your team that are most like this one, with what was measured of them."""
    return [asdict(each) for each in await service.nearest(caller, hash, most)]
