"""Long work as people see it: how far it is, then what came out; drawn anew every second until it has ended."""

from __future__ import annotations

import contextlib
import json
from html import escape
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from foretell.planner.handover import TOOLS, hand_over
from foretell.planner.result import Choice
from foretell.serve.access.keys import Caller
from foretell.serve.database.tables import Job
from foretell.serve.jobs.queue import ENDED
from foretell.serve.listener.callers import Member, Reader, ServiceDep
from foretell.serve.listener.pages.frame import choose, field, page, part, trouble
from foretell.serve.listener.pages.planner import written
from foretell.serve.problems import Problem
from foretell.serve.requests import Id, Text

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
        body = (job.picture or f"<pre>{escape(job.result or '')}</pre>") + (_of_plan(job) if job.kind == "plan" else "")
    elif job.state == "cancelled":
        body = f'<section class="wait"><h2>{escape(title)} was cancelled</h2>{_button(job, "resume", "Begin again")}</section>'
    else:
        problem = Problem(422, job.message or "the job failed.", next="Change the question, or begin again.")
        body = f'{trouble(problem)}{_button(job, "resume", "Begin again")}<p><a href="/">Ask something else</a></p>'
    return part(body) if is_part else page(title, body, caller=caller)


@router.get("/jobs/{id}/files")
def hand_over_file(
    id: Id, service: ServiceDep, caller: Reader, tool: Text, choice: int = 0, command: Text = ""
) -> Response:
    """A choice of a search as the file of a tool that runs it, to download."""
    job = service.jobs.queue.get(caller, id)
    choices = _choices(job)
    if not 0 <= choice < len(choices):
        raise Problem(
            404, f"there is no choice {choice} of this search.", got=choice, next=f"Choose one at /jobs/{id}."
        )
    name = json.loads(job.result or "{}")["workload"]
    text = hand_over(Choice.from_dict(choices[choice]), tool, command=command or "train.py", name=name)
    file = {"Content-Disposition": f'attachment; filename="{TOOLS[tool].file}"'}
    return Response(text, media_type="text/plain; charset=utf-8", headers=file)


def _choices(job: Job) -> list[dict[str, Any]]:
    """The recommended one, then the front."""
    if job.kind != "plan" or not job.result:
        return []
    found = json.loads(job.result)
    best = found["recommended"]
    return [*([best] if best else []), *(each for each in found["front"] if each != best)]


def _of_plan(job: Job) -> str:
    """Links and files of a search: the question again, JSON, and the choice for the tools that run it."""
    links = (
        f'<p class="links"><a href="/planner?{escape(written(job.question))}">Change the question</a> '
        f'<a href="/v1/plans/{job.id}">As JSON</a></p>'
    )
    choices = {str(n): f"{each['cluster']}, {each['plan']}" for n, each in enumerate(_choices(job))}
    if not choices:
        return links
    tools = {name: f"{tool.title} ({tool.file})" for name, tool in TOOLS.items()}
    command = '<input name="command" value="train.py" maxlength="1000" spellcheck="false" autocapitalize="off">'
    return (
        '<section id="files"><h3>Hand it over</h3><p class="soft">The plan as a file for the tool that runs it.</p>'
        f'<form class="files" method="get" action="/jobs/{job.id}/files">'
        + field("Plan", choose("choice", choices))
        + field("For", choose("tool", tools))
        + field("What the ranks run", command)
        + f'<div class="go"><button>Download</button></div></form></section>{links}'
    )


def _go(request: Request, address: str) -> Response:
    """On to another page, also from within a part of one."""
    if request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true":
        return Response(status_code=204, headers={"HX-Redirect": address})
    return RedirectResponse(address, 303)
