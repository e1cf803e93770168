"""`/v1/plans`, `/v1/scales`, `/v1/captures`, `/v1/profiles` and `/v1/jobs`: long work, with its progress as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from foretell.serve.access.keys import Caller
from foretell.serve.database.connect import is_away
from foretell.serve.database.tables import Job, StoredPlans
from foretell.serve.jobs.adapt import AdaptRequest
from foretell.serve.jobs.capture import CaptureRequest
from foretell.serve.jobs.of_graph import PlanRequest, ScaleRequest
from foretell.serve.jobs.queue import ENDED
from foretell.serve.jobs.work import JobRequest
from foretell.serve.listener.callers import Few, Member, Reader, ServiceDep
from foretell.serve.problems import Problem, missing
from foretell.serve.requests import EXAMPLE, Id
from foretell.serve.service import Service
from foretell.units import Seconds

router = APIRouter(prefix="/v1", tags=["jobs"])
_LOOK: Final[Seconds] = 0.25
_ALIVE: Final[Seconds] = 10.0  # a comment, so that nobody in between ends a silent stream
_MAX_STREAMS: Final = 200


class JobSummary(BaseModel):
    """`changes` counts what happened to it: the id of an event."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"id": EXAMPLE[:32], "kind": "plan", "state": "running", "message": "priced 120 of 512", "attempts": 1,
                 "changes": 4, "asked_by": "local", "created": 1.79e9, "ended": None}
            ]
        }
    )  # fmt: skip

    id: str
    kind: str
    state: str
    message: str
    attempts: int
    changes: int
    created_by: str = Field(serialization_alias="asked_by")
    created: float
    ended: float | None


def _summary(job: Job) -> JobSummary:
    return JobSummary(**{name: getattr(job, name) for name in JobSummary.model_fields})


def _accept(service: Service, caller: Caller, kind: str, request: JobRequest, response: Response) -> JobSummary:
    job = service.begin(caller, kind, request)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return _summary(job)


@router.post("/plans", status_code=202)
def ask_for_plans(request: PlanRequest, service: ServiceDep, caller: Member, response: Response) -> JobSummary:
    """Search the cluster and the plan for a job; what was found is at /v1/jobs/ID/result and in /v1/plans."""
    return _accept(service, caller, "plan", request, response)


@router.post("/scales", status_code=202)
def ask_for_scale(request: ScaleRequest, service: ServiceDep, caller: Member, response: Response) -> JobSummary:
    """Forecast a step on more and more devices."""
    return _accept(service, caller, "scale", request, response)


@router.post("/captures", status_code=202)
def ask_for_capture(request: CaptureRequest, service: ServiceDep, caller: Member, response: Response) -> JobSummary:
    """Capture a network of timm, torchvision or transformers by its name; the result has the graph's hash."""
    return _accept(service, caller, "capture", request, response)


@router.post("/profiles", status_code=202)
def ask_for_profile(request: AdaptRequest, service: ServiceDep, caller: Member, response: Response) -> JobSummary:
    """Fit a profile on the steps that your team has measured on a device."""
    return _accept(service, caller, "adapt", request, response)


@router.get("/plans")
def list_plans(service: ServiceDep, caller: Reader, most: Few = 100) -> list[dict[str, Any]]:
    """What was searched for your team, the newest first."""
    wanted = select(StoredPlans).filter_by(team_id=caller.team).order_by(StoredPlans.created.desc()).limit(most)
    with service.database.reading() as session:
        return [{"id": row.id, "question": row.question, "created": row.created} for row in session.scalars(wanted)]


@router.get("/plans/{id}", response_class=Response)
def get_plans(id: Id, service: ServiceDep, caller: Reader) -> Response:
    """As `foretell plan --json` prints it."""
    with service.database.reading() as session:
        found = session.scalar(select(StoredPlans).filter_by(team_id=caller.team, id=id))
    if found is None:
        raise missing("plan", id)
    return Response(found.answer, media_type="application/json")


@router.get("/jobs")
def list_jobs(service: ServiceDep, caller: Reader, most: Few = 100) -> list[JobSummary]:
    """The long work of your team, the newest first."""
    wanted = select(Job).filter_by(team_id=caller.team).order_by(Job.created.desc()).limit(most)
    with service.database.reading() as session:
        return [_summary(row) for row in session.scalars(wanted)]


@router.get("/jobs/{id}")
def get_job(id: Id, service: ServiceDep, caller: Reader) -> JobSummary:
    """How far a job is."""
    return _summary(service.jobs.queue.get(caller, id))


@router.get("/jobs/{id}/result", response_class=Response)
def get_result(id: Id, service: ServiceDep, caller: Reader) -> Response:
    """What came out, as `--json` prints it; 409 until the job is done."""
    job = service.jobs.queue.get(caller, id)
    if job.state != "done":
        raise Problem(409, f"the job is {job.state}. {job.message}", got=job.state, allowed="done", next="Wait for it.")
    return Response(job.result, media_type="application/json")


@router.delete("/jobs/{id}")
def cancel_job(id: Id, service: ServiceDep, caller: Member) -> JobSummary:
    """Its process is ended within two seconds."""
    return _summary(service.jobs.queue.cancel(caller, id))


@router.post("/jobs/{id}/resume")
def resume_job(id: Id, service: ServiceDep, caller: Member) -> JobSummary:
    """A job that was cancelled or has failed goes back to the queue."""
    job = service.jobs.queue.resume(caller, id)
    service.jobs.wake()
    return _summary(job)


@router.get("/jobs/{id}/events", response_class=StreamingResponse)
async def job_events(
    id: Id, service: ServiceDep, caller: Reader, last_event_id: Annotated[int, Header(ge=0)] = 0
) -> StreamingResponse:
    """Server-sent events, one for each change, until the job has ended; Last-Event-ID goes on where a stream broke off."""
    await run_in_threadpool(service.jobs.queue.get, caller, id)
    if service.streams >= _MAX_STREAMS:
        raise Problem(503, f"{service.streams} listeners are here.", next="Ask again.", headers={"Retry-After": "5"})
    return StreamingResponse(_events(service, caller, id, last_event_id), media_type="text/event-stream")


async def _events(service: Service, caller: Caller, id: str, seen: int) -> AsyncIterator[str]:
    service.streams += 1
    spoken = time.monotonic()
    try:
        while not service.stopping:
            job = await run_in_threadpool(_now, service, caller, id)
            if job is not None and job.changes > seen:
                seen, spoken = job.changes, time.monotonic()
                yield f"id: {seen}\nevent: {job.state}\ndata: {json.dumps(_summary(job).model_dump(by_alias=True))}\n\n"
            if job is not None and job.state in ENDED:
                return
            if time.monotonic() - spoken > _ALIVE:
                spoken = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(_LOOK)
    finally:
        service.streams -= 1


def _now(service: Service, caller: Caller, id: str) -> Job | None:
    """None while the database is away, which a listener outlives."""
    try:
        return service.jobs.queue.get(caller, id)
    except SQLAlchemyError as error:
        if not is_away(error):
            raise
        return None
