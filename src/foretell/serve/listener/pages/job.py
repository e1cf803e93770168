"""Long work as people see it: how far it is, then what came out; drawn anew every second until it has ended."""

from __future__ import annotations

import json
from html import escape
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from foretell.serve.database.tables import Job
from foretell.serve.jobs.queue import ENDED
from foretell.serve.listener.callers import Asked, Reader
from foretell.serve.listener.pages.frame import page, part, trouble
from foretell.serve.problems import Problem
from foretell.serve.questions import Id

router = APIRouter()
_NEXT: Final = ("/ask", "/planner")  # where a capture can lead


@router.get("/captures/{id}")
def capture(id: Id, request: Request, service: Asked, caller: Reader) -> Response:
    """A network being captured; once it is there, the question goes on."""
    job = service.jobs.queue.get(caller, id)
    query = dict(request.query_params)
    if job.state == "done" and job.kind == "capture":
        then = query.pop("then", _NEXT[0])
        graph = json.loads(job.result or "{}")["hash"]
        return _go(request, f"{then if then in _NEXT else _NEXT[0]}?{urlencode({'graph': graph} | query)}")
    return _shown(request, job, f"/captures/{id}?{urlencode(query)}", f"Capturing {job.question.get('source', '')}")


@router.get("/jobs/{id}")
def work(id: Id, request: Request, service: Asked, caller: Reader) -> Response:
    """What a job found, as a page with an address or as a part of one."""
    job = service.jobs.queue.get(caller, id)
    if job.state == "done" and job.picture is None and job.kind == "plan":
        return _go(request, "/planner")
    return _shown(request, job, f"/jobs/{id}", {"plan": "Searching", "scale": "Scaling"}.get(job.kind, "Working"))


def waiting(job: Job, address: str, title: str) -> str:
    """Asks again by itself; the words are read out as they change."""
    said = job.message or {"queued": "It waits for its turn.", "running": "It has begun."}.get(job.state, job.state)
    again = f'hx-get="{escape(address)}" hx-trigger="load delay:1s" hx-swap="outerHTML"'
    return (
        f'<section class="wait" {again}><h2>{escape(title)} …</h2><p role="status">{escape(said)}</p>'
        f'<noscript><p><a href="{escape(address)}">Look again</a></p></noscript></section>'
    )


def _shown(request: Request, job: Job, address: str, title: str) -> Response:
    is_part = request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true"
    if job.state not in ENDED:
        body = waiting(job, address, title)
    elif job.state == "done":
        body = job.picture or f"<pre>{escape(job.result or '')}</pre>"
    else:
        next = "Change the question, or ask again."
        body = trouble(Problem(422, f"the job {job.state}. {job.message}", next=next))
        body += '<p><a href="/">Ask again</a></p>'
    return part(body) if is_part else page(title, body)


def _go(request: Request, address: str) -> Response:
    """On to another page, also from within a part of one."""
    if request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true":
        return Response(status_code=204, headers={"HX-Redirect": address})
    return RedirectResponse(address, 303)
