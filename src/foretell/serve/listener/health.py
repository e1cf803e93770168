"""`/healthz` and `/metrics`: for whatever watches the service."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy import text

from foretell import __version__
from foretell.serve.listener.callers import ServiceDep
from foretell.serve.problems import Problem

router = APIRouter(tags=["health"])


@router.get("/healthz")
def health(service: ServiceDep) -> dict[str, str]:
    """200 while the database answers and jobs are begun; 503 elsewhere, with why."""
    with service.database.reading() as session:
        session.execute(text("SELECT 1"))
    if trouble := service.jobs.trouble:
        raise Problem(503, trouble, next="Start the service again; jobs that were accepted are kept.")
    return {"status": "ok", "foretell": __version__}


@router.get("/metrics", response_class=Response)
def metrics(service: ServiceDep) -> Response:
    """For Prometheus: counts and times of requests, no names of teams, graphs or keys."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")
