"""Long work as people see it: how far it is, then what came out; drawn anew every second until it has ended."""

from __future__ import annotations

import contextlib
import json
from html import escape
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from foretell.serve.access.keys import Caller
from foretell.serve.database.tables import Job
from foretell.serve.jobs.queue import ENDED
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages.frame import page, part, trouble
from foretell.serve.problems import Problem
from foretell.serve.requests import Id

router = APIRouter()
_NEXT: Final = ("/ask", "/planner")  # where a capture can lead
_TITLES: Final = {"plan": "Searching", "scale": "Scaling", "capture": "Capturing", "adapt": "Fitting a profile"}


@router.get("/captures/{id}")
def capture(id: Id, request: Request, service: ServiceDep, caller: Reader) -> Response:
    """A network being captured; once it is there, the question goes on."""
    job = service.jobs.queue.get(caller, id)
    query = dict(request.query_params)
    if job.state == "done" and job.kind == "capture":
        then = query.pop("then", _NEXT[0])
        graph = json.loads(job.result or "{}")["hash"]
        return _go(request, f"{then if then in _NEXT else _NEXT[0]}?{urlencode({'graph': graph} | query)}")
    title = f"Capturing {job.question.get('source', '')}"
    return _shown(request, caller, job, f"/captures/{id}?{urlencode(query)}", title)


@router.get("/jobs/{id}")
def work(id: Id, request: Request, service: ServiceDep, caller: Reader) -> Response:
    """What a job found, as a page with an address or as a part of one."""
    job = service.jobs.queue.get(caller, id)
    if job.state == "done" and job.kind == "capture":
        return _go(request, f"/?graph={json.loads(job.result or '{}')['hash']}")
    return _shown(request, caller, job, f"/jobs/{id}", _TITLES.get(job.kind, "Working"))


@router.post("/jobs/{id}/cancel")
def cancel(id: Id, service: ServiceDep, caller: Member) -> Response:
    with contextlib.suppress(Problem):  # it has ended meanwhile, which its page says
        service.jobs.queue.cancel(caller, id)
    return RedirectResponse(f"/jobs/{id}", 303)


@router.post("/jobs/{id}/resume")
def resume(id: Id, service: ServiceDep, caller: Member) -> Response:
    with contextlib.suppress(Problem):
        service.jobs.queue.resume(caller, id)
        service.jobs.wake()
    return RedirectResponse(f"/jobs/{id}", 303)


def waiting(job: Job, address: str, title: str) -> str:
    """Asks again by itself; the words are read out as they change."""
    words = job.message or {"queued": "It waits for its turn.", "running": "It has begun."}.get(job.state, job.state)
    again = f'hx-get="{escape(address)}" hx-trigger="load delay:1s" hx-swap="outerHTML"'
    return (
        f'<section class="wait" {again}><h2>{escape(title)} …</h2><p role="status">{escape(words)}</p>'
        f'<noscript><p><a href="{escape(address)}">Look again</a></p></noscript>'
        f"{_button(job, 'cancel', 'Cancel')}</section>"
    )


def _button(job: Job, do: str, words: str) -> str:
    return f'<form method="post" action="/jobs/{job.id}/{do}"><button class="plain">{words}</button></form>'


def _shown(request: Request, caller: Caller, job: Job, address: str, title: str) -> Response:
    is_part = request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true"
    if job.state not in ENDED:
        body = waiting(job, address, title)
    elif job.state == "done":
        body = job.picture or f"<pre>{escape(job.result or '')}</pre>"
    elif job.state == "cancelled":
        body = f'<section class="wait"><h2>{escape(title)} was cancelled</h2>{_button(job, "resume", "Begin again")}</section>'
    else:
        problem = Problem(422, job.message or "the job failed.", next="Change the question, or begin again.")
        body = f'{trouble(problem)}{_button(job, "resume", "Begin again")}<p><a href="/">Ask something else</a></p>'
    return part(body) if is_part else page(title, body, caller=caller)


def _go(request: Request, address: str) -> Response:
    """On to another page, also from within a part of one."""
    if request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true":
        return Response(status_code=204, headers={"HX-Redirect": address})
    return RedirectResponse(address, 303)
