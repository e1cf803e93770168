"""`/healthz` and `/metrics`: for whatever watches the service."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy import text

from foretell import __version__
from foretell.serve.listener.callers import ServiceDep

router = APIRouter(tags=["health"])


@router.get("/healthz")
def health(service: ServiceDep) -> dict[str, str]:
    """200 while the database answers."""
    with service.database.reading() as session:
        session.execute(text("SELECT 1"))
    return {"status": "ok", "foretell": __version__}


@router.get("/metrics", response_class=Response)
def metrics(service: ServiceDep) -> Response:
    """For Prometheus: counts and times of requests, no names of teams, graphs or keys."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")
