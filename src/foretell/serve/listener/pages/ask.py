"""`/`: the page to ask from. `/ask?graph=…&on=…&plan=…` is a question as an address, which can be shared."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from foretell.errors import ForetellError
from foretell.serve.access.keys import Caller
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages.forms import checked, read_form
from foretell.serve.listener.pages.frame import page, part, trouble
from foretell.serve.listener.pages.picture import Chosen, hardware_fields, picture, profile_field
from foretell.serve.listener.pages.workload import graph_or_wait, name_options, workload_fields
from foretell.serve.problems import Problem, of_error
from foretell.serve.requests import ForecastRequest, Text
from foretell.serve.service import Service

router = APIRouter()
Count = Annotated[int, Query(ge=1, le=1024)]


@router.get("/")
def form(
    service: ServiceDep, caller: Reader, graph: Text = "", on: Text = "", plan: Text = "", profile: Text = ""
) -> Response:
    return _page(service, caller, graph=graph, on=on, plan=plan, profile=profile)


@router.get("/names")
def names(service: ServiceDep, caller: Reader, source: Text = "") -> Response:
    """Options that a person may mean."""
    return part(name_options(service.zoo.like(source)))


@router.get("/picture")
def cluster_picture(
    caller: Reader, device: Text, count: Count = 1, nodes: Count = 1, written: Text = "", plan: Text = ""
) -> Response:
    return part(picture(Chosen(device=device, count=count, nodes=nodes, written=written, plan=plan)))


@router.post("/ask")
async def send(request: Request, service: ServiceDep, caller: Member) -> Response:
    form = await read_form(request)
    question = {"on": form.text("written"), "plan": form.text("plan"), "profile": form.text("profile")}
    try:
        chosen = Chosen(
            device=form.text("device", Chosen().device), count=form.count("count") or 1, nodes=form.count("nodes") or 1,
            written=form.text("written"),
        )  # fmt: skip
        question["on"] = chosen.cluster
        query = {name: value for name, value in question.items() if value}
        return RedirectResponse(await graph_or_wait(service, caller, form, "/ask", query), 303)
    except (Problem, ForetellError) as error:
        return await _again(service, caller, error, graph=form.text("graph"), **question)


@router.get("/ask")
async def answer(
    service: ServiceDep, caller: Member, graph: Text, on: Text, plan: Text = "", profile: Text = ""
) -> Response:
    """The forecast of this question; its report has an address of its own."""
    try:
        question = checked(ForecastRequest, graph=graph, on=on, plan=plan, profile=profile)
        found, _ = await service.forecast(caller, question)
    except (Problem, ForetellError) as error:
        return await _again(service, caller, error, graph=graph, on=on, plan=plan, profile=profile)
    return RedirectResponse(f"/forecasts/{found.id}", 303)


async def _again(service: Service, caller: Caller, error: Problem | ForetellError, **question: str) -> Response:
    """The form as it was, with what is wrong above it."""
    problem = error if isinstance(error, Problem) else of_error(error, question)
    return await run_in_threadpool(lambda: _page(service, caller, problem=problem, **question))


def _page(
    service: Service, caller: Caller, *, graph: str, on: str, plan: str, profile: str, problem: Problem | None = None
) -> Response:
    try:
        chosen = Chosen.of(on, plan)
    except ForetellError:  # said above the form
        chosen = Chosen(plan=plan)
    profiles = [each["name"] for each in service.profiles.listed(caller.team)]
    body = (
        "<h1>What will it take?</h1>"
        '<p class="soft">Time, memory and cost of a step, before anything runs.</p>'
        + (trouble(problem) if problem else "")
        + '<form class="ask" method="post" action="/ask" enctype="multipart/form-data" hx-boost="true" '
        'hx-encoding="multipart/form-data" hx-indicator="#busy" hx-disabled-elt="find button">'
        + workload_fields(service, caller, graph)
        + hardware_fields(chosen)
        + profile_field(profiles, profile)
        + '<div class="go"><button>Forecast</button><span id="busy" role="status">Working on it …</span></div></form>'
    )
    return page("Ask", body, caller=caller, here="/", status=problem.status if problem else 200)
