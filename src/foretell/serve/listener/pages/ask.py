"""`/`: the page to ask from. `/ask?graph=…&on=…&plan=…` is a question as an address, which can be shared."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from foretell.errors import ForetellError
from foretell.serve.access.keys import Caller
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages import settings
from foretell.serve.listener.pages.forms import Form, checked, read_form
from foretell.serve.listener.pages.frame import page, part, trouble
from foretell.serve.listener.pages.picture import Chosen, hardware_fields, picture
from foretell.serve.listener.pages.workload import graph_or_wait, name_options, workload_fields
from foretell.serve.problems import Problem, of_error
from foretell.serve.requests import ForecastRequest, Text
from foretell.serve.service import Service

router = APIRouter()
Count = Annotated[int, Query(ge=1, le=1024)]
MAX_COMPARED: Final = 6  # answers side by side


@router.get("/")
def form(request: Request, service: ServiceDep, caller: Reader) -> Response:
    return _page(service, caller, Form(request.query_params))


@router.get("/names")
def names(service: ServiceDep, caller: Reader, source: Text = "") -> Response:
    """Options that a person may mean."""
    return part(name_options(service.zoo.like(source)))


@router.get("/picture")
def cluster_picture(
    caller: Reader, device: Text, count: Count = 1, nodes: Count = 1, on: Text = "", plan: Text = ""
) -> Response:
    return part(picture(Chosen(device=device, count=count, nodes=nodes, written=on, plan=plan)))


@router.post("/ask")
async def send(request: Request, service: ServiceDep, caller: Member) -> Response:
    form = await read_form(request)
    try:
        chosen = Chosen(
            device=form.text("device", Chosen().device), count=form.count("count") or 1, nodes=form.count("nodes") or 1,
            written=form.text("on"),
        )  # fmt: skip
        settings.conditions(form), settings.job(form)  # a slip is an error at once, not after a capture
        query = {"on": chosen.cluster} | settings.given(form)
        return RedirectResponse(await graph_or_wait(service, caller, form, "/ask", query), 303)
    except (Problem, ForetellError) as error:
        return await _again(service, caller, error, form)


@router.get("/ask")
async def answer(request: Request, service: ServiceDep, caller: Member) -> Response:
    """The forecast of this question, which has an address of its own; of several clusters, their comparison."""
    form = Form(request.query_params)
    try:
        clusters = form.text("on").split()
        if not 0 < len(clusters) <= MAX_COMPARED:
            raise Problem(
                422, f"on: {len(clusters)} clusters.", got=form.text("on"), allowed=f"1 to {MAX_COMPARED}",
                next="Write them with a space between.",
            )  # fmt: skip
        found = [(await service.forecast(caller, _question(form, on)))[0].id for on in clusters]
    except (Problem, ForetellError) as error:
        return await _again(service, caller, error, form)
    if len(found) > 1:
        return RedirectResponse(f"/compare?{urlencode({'forecast': found}, doseq=True)}", 303)
    return RedirectResponse(f"/forecasts/{found[0]}", 303)


def _question(form: Form, on: str) -> ForecastRequest:
    chosen = {name: form.text(name) for name in ("graph", "plan", "model", "profile")}
    found: ForecastRequest = checked(
        ForecastRequest, on=on, conditions=settings.conditions(form), job=settings.job(form), **chosen
    )
    return found


async def _again(service: Service, caller: Caller, error: Problem | ForetellError, form: Form) -> Response:
    """The form as it was, with what is wrong above it."""
    problem = error if isinstance(error, Problem) else of_error(error, form.texts_by_name())
    return await run_in_threadpool(lambda: _page(service, caller, form, problem))


def _page(service: Service, caller: Caller, form: Form, problem: Problem | None = None) -> Response:
    try:
        chosen = Chosen.of(form.text("on"), form.text("plan"))
    except ForetellError:  # said above the form
        chosen = Chosen(plan=form.text("plan"))
    values = form.texts_by_name()
    further = any(values.get(name) for name in (*settings.AROUND, *settings.LENGTH, *settings.PAUSES))
    body = (
        "<h1>What will it take?</h1>"
        '<p class="soft">Time, memory and cost of a step, before anything runs.</p>'
        + (trouble(problem) if problem else "")
        + '<form class="ask" method="post" action="/ask" enctype="multipart/form-data" hx-boost="true" '
        'hx-encoding="multipart/form-data" hx-indicator="#busy" hx-disabled-elt="find button" hx-disinherit="hx-disabled-elt hx-indicator">'
        + workload_fields(service, caller, values)
        + hardware_fields(chosen)
        + f'<fieldset><legend>Priced by</legend><div class="row">{settings.model_and_profile(service, caller, values)}</div>'
        + f"<details{' open' if further else ''}><summary>What surrounds the step, and a whole job</summary>"
        + settings.fields(settings.AROUND, values)
        + settings.fields({**settings.LENGTH, **settings.PAUSES}, values)
        + "</details></fieldset>"
        + '<div class="go"><button>Forecast</button><span id="busy" role="status">Working on it …</span></div></form>'
    )
    return page("Ask", body, caller=caller, here="/", status=problem.status if problem else 200)
