"""`/forecasts/ID`: the report of a forecast, its timeline to zoom into, and how it scales."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.serve.database.tables import StoredForecast
from foretell.serve.jobs.of_graph import ScaleRequest
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages import methods, settings
from foretell.serve.listener.pages.forms import checked, read_form
from foretell.serve.listener.pages.frame import choose, field, page, part, trouble
from foretell.serve.listener.pages.job import waiting
from foretell.serve.problems import Problem
from foretell.serve.requests import Id
from foretell.units import show_seconds

router = APIRouter()
Share = Annotated[float, Query(ge=0.0, le=1.0)]
_NARROWEST: Final = 1e-6  # share of a step
_SCALES: Final = (8, 16, 32, 64, 128, 256, 512, 1024)


@router.get("/forecasts/{id}")
async def report(id: Id, service: ServiceDep, caller: Reader, begin: Share = 0.0, end: Share = 1.0) -> Response:
    """The report that `foretell predict --html` writes, with the timeline between two shares of the step."""
    found = await run_in_threadpool(service.stored, caller, id)
    try:
        drawn = await service.drawn(caller, id, _window(begin, end), whole=True)
    except Problem as problem:
        if problem.status != 409:
            raise
        return page(f"{found.workload} on {found.cluster}", _outdated(found, problem), caller=caller, status=409)
    others = methods.to_load(id) if service.methods.listed() else ""
    return page(f"{found.workload} on {found.cluster}", _links(found) + drawn + others + _scaling(found), caller=caller)


@router.get("/forecasts/{id}/timeline")
async def timeline(id: Id, service: ServiceDep, caller: Reader, begin: Share, end: Share) -> Response:
    return part(await service.drawn(caller, id, _window(begin, end), whole=False))


@router.post("/forecasts/{id}/scaling")
async def scaling(id: Id, request: Request, service: ServiceDep, caller: Member) -> Response:
    """Begins forecasts on more and more devices of the same kind, the rest of the plan as it is."""
    form = await read_form(request)
    found = await run_in_threadpool(service.stored, caller, id)
    plan = dataclasses.replace(Plan.parse(found.plan), dp=1)
    scaling_request = checked(
        ScaleRequest, graph=found.graph, on=_device(found), up_to=form.count("up_to") or 64, plan=str(plan),
        profile=found.question.get("profile"),
    )  # fmt: skip
    job = await run_in_threadpool(service.begin, caller, "scale", scaling_request)
    return part(waiting(job, f"/jobs/{job.id}", "Scaling"))


def _window(begin: float, end: float) -> tuple[float, float]:
    if end - begin < _NARROWEST:
        raise Problem(422, "a part of the timeline ends after it begins.", got=f"{begin}, {end}", next="Zoom out.")
    return begin, end


def _question(found: StoredForecast) -> str:
    """As an address has it: under the names of the form's fields."""
    question = {name: found.question.get(name) for name in ("graph", "plan", "model", "profile", "on")}
    return escape(
        urlencode(settings.words_of(found.question) | {name: text for name, text in question.items() if text})
    )


def _outdated(found: StoredForecast, problem: Problem) -> str:
    """What was said then, and the way to what would be said now."""
    fits = "it fits" if found.fits else "it does not fit"
    return (
        f"<h1>{escape(found.workload)}</h1>"
        f'<p class="soft">On {escape(found.cluster)}, plan {escape(found.plan)}: {show_seconds(found.seconds)} per step, {fits}.</p>'
        f'{trouble(problem)}<p class="links"><a href="/ask?{_question(found)}">Forecast it again</a> '
        f'<a href="/v1/forecasts/{found.id}">As JSON</a></p>'
    )


def _links(found: StoredForecast) -> str:
    return (
        f'<p class="links"><a href="/?{_question(found)}">Change the question</a> '
        f'<a href="/v1/forecasts/{found.id}">As JSON</a> <a href="/planner?graph={found.graph}">Find a better plan</a> '
        '<a href="/history">Compare with others</a></p>'
    )


def _device(found: StoredForecast) -> str:
    return Cluster.parse(found.cluster).device_kinds[0].name


def _scaling(found: StoredForecast) -> str:
    if len(Cluster.parse(found.cluster).device_kinds) > 1:
        return ""
    options = {str(count): f"{count:,}" for count in _SCALES}
    return (
        '<section id="scaling"><h3>Scaling</h3><p class="soft">The same step on more and more of these devices, data parallelism '
        f'growing.</p><form class="row" hx-post="/forecasts/{found.id}/scaling" hx-target="#scaling" method="post" '
        f'action="/forecasts/{found.id}/scaling">'
        + field("Up to", choose("up_to", options, "64"))
        + "<button>Draw the curve</button></form></section>"
    )
