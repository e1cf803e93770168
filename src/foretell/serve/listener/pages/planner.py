"""`/planner`: which cluster and which plan, with time against cost to click on."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from foretell import hardware
from foretell.errors import ForetellError
from foretell.hardware.device import TERMS
from foretell.report.page import table
from foretell.serve.access.keys import Caller
from foretell.serve.database.tables import Job, StoredGraph
from foretell.serve.jobs.of_graph import PlanRequest
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages.forms import checked, read_form
from foretell.serve.listener.pages.frame import choose, field, number, page, trouble
from foretell.serve.listener.pages.picture import profile_field
from foretell.serve.listener.pages.workload import graph_or_wait, workload_fields
from foretell.serve.problems import Problem, of_error
from foretell.serve.requests import Text
from foretell.serve.service import Service

router = APIRouter()
_USUAL: Final = ("h100-sxm", "h200", "b200", "a100-80g-sxm", "l40s", "mi300x")
_GIVEN: Final = (
    "max_devices", "tokens", "samples", "deadline_hours", "budget", "global_batch", "plan", "term", "region", "profile",
)  # fmt: skip
_SHOWN: Final = 20


@router.get("/planner")
def form(request: Request, service: ServiceDep, caller: Reader, graph: Text = "") -> Response:
    return _page(service, caller, graph, dict(request.query_params), request.query_params.getlist("gpus"))


@router.post("/planner")
async def send(request: Request, service: ServiceDep, caller: Member) -> Response:
    form = await read_form(request)
    given = {name: text for name in _GIVEN if (text := form.text(name))}
    gpus = form.texts("gpus")
    try:
        if form.text("way") != "kept":  # first the graph, then the search
            where = await graph_or_wait(service, caller, form, "/planner", given)
            return RedirectResponse(f"{where}&{urlencode({'gpus': gpus}, doseq=True)}", 303)
        hours = form.number("deadline_hours")
        search = checked(
            PlanRequest, graph=form.text("graph"), gpus=gpus or [_USUAL[0]], max_devices=form.count("max_devices"),
            tokens=form.number("tokens"), samples=form.number("samples"), budget=form.number("budget"),
            deadline=None if hours is None else hours * 3600, global_batch=form.count("global_batch"),
            plan=form.text("plan"), term=form.text("term"), region=form.text("region"), profile=form.text("profile"),
        )  # fmt: skip
        job = await run_in_threadpool(service.begin, caller, "plan", search)
    except (Problem, ForetellError) as error:
        problem = error if isinstance(error, Problem) else of_error(error)
        return await run_in_threadpool(lambda: _page(service, caller, form.text("graph"), given, gpus, problem))
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _page(
    service: Service, caller: Caller, graph: str, given: dict[str, str], gpus: list[str], problem: Problem | None = None
) -> Response:
    chosen = gpus or [_USUAL[0]]
    names = [*_USUAL, *(name for name in gpus if name not in _USUAL)]
    boxes = "".join(
        f'<label class="tick"><input type="checkbox" name="gpus" value="{escape(name)}"{" checked" if name in chosen else ""}>'
        f"<span>{escape(hardware.device(name).title)}</span></label>"
        for name in names
        if name in {device.name for device in hardware.devices()}
    )
    limits = {
        "max_devices": ("Devices, at most", "64", "1", 16_384),
        "tokens": ("Tokens to train on", "1e9", "any", 1e18),
        "samples": ("or samples", "", "any", 1e18),
        "global_batch": ("Samples of a step", "any", "1", 1e9),
        "deadline_hours": ("Deadline, hours", "none", "any", 1e6),
        "budget": ("Budget, dollars", "none", "any", 1e12),
    }
    fields = "".join(
        field(shown, number(name, given.get(name, ""), least=0, most=most, step=step, hint=hint))
        for name, (shown, hint, step, most) in limits.items()
    )
    body = (
        "<h1>Which cluster, which plan?</h1>"
        '<p class="soft">Searches devices, numbers of them and ways to parallelize; what no other beats in time and cost is drawn.</p>'
        + (trouble(problem) if problem else "")
        + '<form class="ask" method="post" action="/planner" enctype="multipart/form-data" hx-boost="true" '
        'hx-encoding="multipart/form-data" hx-indicator="#busy" hx-disabled-elt="find button">'
        + workload_fields(service, caller, graph)
        + f'<fieldset><legend>Among which devices</legend><div class="ticks">{boxes}</div></fieldset>'
        + f'<fieldset><legend>The job</legend><div class="row">{fields}</div></fieldset>'
        + f'<fieldset><legend>What it pays and keeps to</legend><div class="row">{_terms(service, caller, given)}</div></fieldset>'
        + '<div class="go"><button>Search</button><span id="busy" role="status">Working on it …</span></div></form>'
        + _before(service, caller)
    )
    return page("Plan", body, caller=caller, here="/planner", status=problem.status if problem else 200)


def _terms(service: Service, caller: Caller, given: dict[str, str]) -> str:
    """Prices, and what is decided already."""
    regions = sorted({offer.region for each in hardware.instances() for offer in each.offers if offer.region})
    listed = "".join(f'<option value="{escape(region)}"></option>' for region in regions)
    region = (
        f'<input name="region" list="regions" value="{escape(given.get("region", ""))}" maxlength="200" '
        f'placeholder="any" spellcheck="false"><datalist id="regions">{listed}</datalist>'
    )
    plan = f'<input name="plan" value="{escape(given.get("plan", ""))}" maxlength="1000" placeholder="tp=8" spellcheck="false">'
    profiles = [each["name"] for each in service.profiles.listed(caller.team)]
    return (
        field("Prices", choose("term", {term: term for term in TERMS}, given.get("term", "")))
        + field("In the region", region)
        + field("Decided already", plan)
        + profile_field(profiles, given.get("profile", ""))
    )


def _before(service: Service, caller: Caller) -> str:
    """Searches of the team, the newest first."""
    wanted = select(Job).filter_by(team_id=caller.team, kind="plan").order_by(Job.created.desc()).limit(_SHOWN)
    with service.database.reading() as session:
        jobs = session.scalars(wanted).all()
        hashes = {job.question["graph"] for job in jobs}
        kept = select(StoredGraph.hash, StoredGraph.name).where(
            StoredGraph.team_id == caller.team, StoredGraph.hash.in_(hashes)
        )
        names = {row.hash: row.name for row in session.execute(kept)}
    if not jobs:
        return ""
    rows = [
        (
            f'<a href="/jobs/{job.id}">{escape(names.get(job.question["graph"], "?"))}</a>',
            escape(", ".join(job.question.get("gpus") or [job.question.get("on") or ""])),
            f"{job.question.get('max_devices', '')}",
            escape(job.state),
        )
        for job in jobs
    ]
    return "<h3>Searched before</h3>" + table(("Network", "Among", "Up to", "State"), rows, words=("Among", "State"))
