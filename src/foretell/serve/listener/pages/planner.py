"""`/planner`: which cluster and which plan, with time against cost to click on."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from foretell import hardware
from foretell.errors import ForetellError
from foretell.forecasting.job import JobLength
from foretell.hardware.device import TERMS
from foretell.serve.access.keys import Caller
from foretell.serve.jobs.of_graph import PlanRequest
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages import settings
from foretell.serve.listener.pages.forms import Form, checked, read_form
from foretell.serve.listener.pages.frame import choose, field, page, trouble
from foretell.serve.listener.pages.settings import Setting
from foretell.serve.listener.pages.workload import graph_or_wait, workload_fields
from foretell.serve.problems import Problem, of_error
from foretell.serve.service import Service
from foretell.units import parse_seconds

router = APIRouter()
_USUAL: Final = ("h100-sxm", "h200", "b200", "a100-80g-sxm", "l40s", "mi300x")
_JOB: Final[Mapping[str, Setting]] = {
    "samples": Setting(label="Samples to train on", hint="1.28e6"),
    "tokens": Setting(label="or tokens", hint="300e9"),
    "epochs": Setting(label="or epochs", hint="90"),
    "dataset": Setting(label="of so many samples", hint="1281167"),
}
_GOAL: Final[Mapping[str, Setting]] = {
    "deadline": Setting(label="Deadline", hint="36h"),
    "budget": Setting(label="Budget, dollars", hint="none"),
    "confidence": Setting(label="How surely", hint="0.9", note="A probability"),
}
_SPACE: Final[Mapping[str, Setting]] = {
    "max_devices": Setting(label="Devices, at most", hint="64"),
    "global_batch": Setting(label="Samples of a step", hint="any"),
    "micro_batches": Setting(label="Micro-batches to try", hint="1,2,4"),
    "plan": Setting(label="Decided already", hint="tp=8,zero=1"),
    "recompute": Setting(label="Recomputing to try", hint="none,selective,full", note="Or auto: as little as fits"),
    "search": Setting(label="Also try", hint="spot offload", note="Beside plans and batches"),
    "on": Setting(label="This cluster alone", hint="any", note="Like 4x8xh100-sxm"),
}
_PRICES: Final[Mapping[str, Setting]] = {
    "price": Setting(label="Prices of your own", hint="h100-sxm=1.9", note="Dollars per device and hour"),
    "region": Setting(
        label="In the region", hint="any",
        listed=lambda: sorted({offer.region for each in hardware.instances() for offer in each.offers if offer.region}),
    ),
}  # fmt: skip
_NAMES: Final = (
    *_JOB, *_GOAL, *_SPACE, *_PRICES, *settings.AROUND, *settings.PAUSES, "term", "instances", "others", "model", "profile",
)  # fmt: skip


@router.get("/planner")
def form(request: Request, service: ServiceDep, caller: Reader) -> Response:
    return _page(service, caller, Form(request.query_params))


@router.post("/planner")
async def send(request: Request, service: ServiceDep, caller: Member) -> Response:
    form = await read_form(request)
    try:
        search = _search(form, offers=(await form.file("offers")).decode("utf-8-sig", "replace"))
        if form.text("way") != "kept":  # first the graph, then the search
            where = await graph_or_wait(service, caller, form, "/planner", settings.given(form, _NAMES))
            return RedirectResponse(f"{where}&{urlencode({'gpus': form.texts('gpus')}, doseq=True)}", 303)
        if not form.text("graph"):
            raise Problem(422, "no graph was chosen.", next="Choose one, or ask by name.")
        chosen = checked(PlanRequest, graph=form.text("graph"), **search)
        job = await run_in_threadpool(service.begin, caller, "plan", chosen)
    except (Problem, ForetellError) as error:
        problem = error if isinstance(error, Problem) else of_error(error, form.texts_by_name())
        return await run_in_threadpool(lambda: _page(service, caller, form, problem))
    return RedirectResponse(f"/jobs/{job.id}", 303)


def _search(form: Form, *, offers: str) -> dict[str, Any]:
    """What POST /v1/plans takes, of what was written as on the command line."""
    counts = {name: form.number(name) for name in _JOB}
    length = JobLength.usual(**counts, spot="spot" in (form.text("term"), *form.text("search").split()))
    on, deadline = form.text("on"), form.text("deadline")
    gpus = [*form.texts("gpus"), *form.text("others").replace(",", " ").split()]
    return {
        "on": on, "gpus": [] if on else list(dict.fromkeys(gpus)), "max_devices": form.count("max_devices"),
        "deadline": parse_seconds(deadline) if deadline else None, "budget": form.number("budget"),
        "confidence": form.number("confidence"), "global_batch": form.count("global_batch"), "plan": form.text("plan"),
        "batches": form.counts("micro_batches"), "recompute": _recompute(form.text("recompute")),
        "prices": form.numbers_by_name("price"), "term": form.text("term"), "region": form.text("region"),
        "instances": bool(form.text("instances")), "search": form.text("search").replace(",", " ").split(),
        "offers": offers, "model": form.text("model"),
        "profile": form.text("profile"), "conditions": settings.conditions(form),
        "job": settings.job_request(settings.with_pauses(form, length)),
    }  # fmt: skip


def _recompute(text: str) -> list[str | float] | str | None:
    """`auto`, or words and parts like none,0.5; nothing is what a search usually tries."""
    if text in ("", "auto"):
        return text or None
    words = [word.strip() for word in text.split(",")]
    return [float(word) if word.isascii() and word.replace(".", "", 1).isdigit() else word for word in words]


def written(question: Mapping[str, Any]) -> str:
    """The search of a job as the rest of this page's address, to change some of it."""
    job, found = question.get("job") or {}, dict(question)
    found |= {name: job.get(name) or question.get(name) for name in ("samples", "tokens")}
    found["deadline"] = f"{question['deadline']:g}s" if question.get("deadline") else None
    found["micro_batches"] = ",".join(map(str, question.get("batches") or ()))
    found["price"] = " ".join(f"{name}={price:g}" for name, price in (question.get("prices") or {}).items())
    found["search"] = " ".join(question.get("search") or ())
    recompute = question.get("recompute") or ()
    found["recompute"] = recompute if isinstance(recompute, str) else ",".join(map(str, recompute))
    found |= settings.words_of(question)
    kept = {name: found[name] for name in ("graph", "gpus", *_NAMES) if found.get(name)}
    return urlencode(kept, doseq=True)


def _page(service: Service, caller: Caller, form: Form, problem: Problem | None = None) -> Response:
    values = form.texts_by_name()
    around = any(values.get(name) for name in (*settings.AROUND, *settings.PAUSES))
    body = (
        "<h1>Which cluster, which plan?</h1>"
        '<p class="soft">Searches devices, numbers of them and ways to parallelize; what no other beats in time and cost is drawn.</p>'
        + (trouble(problem) if problem else "")
        + '<form class="ask" method="post" action="/planner" enctype="multipart/form-data" hx-boost="true" '
        'hx-encoding="multipart/form-data" hx-indicator="#busy" hx-disabled-elt="find button" hx-disinherit="hx-disabled-elt hx-indicator">'
        + workload_fields(service, caller, values)
        + f"<fieldset><legend>The job</legend>{settings.fields(_JOB, values)}</fieldset>"
        + f"<fieldset><legend>What it must keep to</legend>{settings.fields(_GOAL, values)}</fieldset>"
        + f"<fieldset><legend>Among which devices</legend>{_devices(form)}</fieldset>"
        + f"<fieldset><legend>What may be chosen</legend>{settings.fields(_SPACE, values)}</fieldset>"
        + f"<fieldset><legend>At which prices</legend>{_prices(values)}</fieldset>"
        + f'<fieldset><legend>Priced by</legend><div class="row">{settings.model_and_profile(service, caller, values)}</div>'
        + f"<details{' open' if around else ''}><summary>What surrounds the step, and the job's pauses</summary>"
        + settings.fields({**settings.AROUND, **settings.PAUSES}, values)
        + "</details></fieldset>"
        + '<div class="go"><button>Search</button><span id="busy" role="status">Working on it …</span></div></form>'
        + '<p><a href="/history?kind=plans">What was searched before</a></p>'
    )
    return page("Plan", body, caller=caller, here="/planner", status=problem.status if problem else 200)


def _devices(form: Form) -> str:
    """The usual ones and one's own to tick, all others by name."""
    chosen, known = form.texts("gpus"), {device.name: device for device in hardware.devices()}
    own = sorted(hardware.own_devices())
    listed = dict.fromkeys([*own, *_USUAL, *chosen])
    boxes = "".join(
        f'<label class="tick"><input type="checkbox" name="gpus" value="{escape(name)}"{" checked" if name in chosen else ""}>'
        f"<span>{escape(known[name].title)}{'<small>your own</small>' if name in own else ''}</span></label>"
        for name in listed
        if name in known
    )
    others = Setting(
        label="Others", hint="l4, aws:p5.48xlarge", note="Devices or instances. With none chosen, all that can be rented.",
        listed=lambda: known,
    )  # fmt: skip
    mark = " checked" if form.text("instances") else ""
    every = (
        f'<label class="tick"><input type="checkbox" name="instances" value="yes"{mark}>'
        "<span>Every instance that rents them, each with its own network</span></label>"
    )
    return f'<div class="ticks">{boxes}</div>{settings.entry("others", others, form.text("others"))}{every}'


def _prices(values: Mapping[str, str]) -> str:
    term = field("Prices", choose("term", {term: term for term in TERMS}, values.get("term", "")))
    offers = '<input type="file" name="offers" accept=".csv,text/csv">'
    note = "What instances cost, as foretell plan --prices reads it."
    return f'<div class="row">{term}</div>{settings.fields(_PRICES, values)}{field("A table of prices", offers, note)}'
