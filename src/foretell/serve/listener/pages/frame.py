"""The frame of every page: files of our own alone, a bar of links, and errors as pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from foretell.report.page import Frame, document
from foretell.serve.access.keys import Caller
from foretell.serve.listener.pages.static import address
from foretell.serve.problems import Problem
from foretell.text import plain

_BAR: Final = {
    "/": "Forecast",
    "/planner": "Plan",
    "/history": "History",
    "/devices": "Devices",
    "/accuracy": "Accuracy",
    "/docs": "API",
}
# htmx: no styles of its own, nothing evaluated, errors shown where the answer would be.
_HTMX: Final = (
    '{"includeIndicatorStyles":false,"allowEval":false,"allowScriptTags":false,"selfRequestsOnly":true,'
    '"historyCacheSize":0,"responseHandling":[{"code":"204","swap":false},{"code":"[2345]..","swap":true}]}'
)


def page(title: str, body: str, *, caller: Caller | None, here: str = "", status: int = 200) -> Response:
    """A whole page; `body` is HTML already, `here` its place in the bar, which says who is signed in."""
    links = "".join(
        f'<a href="{place}"{" aria-current=page" if place == here else ""}>{name}</a>' for place, name in _BAR.items()
    )
    head = (
        f"<meta name=\"htmx-config\" content='{_HTMX}'>\n"
        f'<link rel="stylesheet" href="{address("page.css")}">\n<link rel="stylesheet" href="{address("service.css")}">\n'
        f'<script defer src="{address("htmx.min.js")}"></script>\n<script defer src="{address("page.js")}"></script>'
    )
    who = ""
    if caller is not None and caller.signed_in:
        who = (
            f'<form class="who" method="post" action="/signout"><span>{escape(caller.team_name)}</span>'
            '<button class="plain">Sign out</button></form>'
        )
    brand = '<a class="brand" href="/">Foretell</a>'
    above = f'<a class="skip" href="#content">To the content</a><nav aria-label="Pages">{brand}{links}{who}</nav>\n'
    inside = f'<div id="content" tabindex="-1">{body}</div>'
    text = document(title, inside, kind="service", frame=Frame(head=head, above=above))
    return HTMLResponse(plain(text), status)


def part(text: str, status: int = 200) -> Response:
    """A piece of a page that htmx puts in its place."""
    return HTMLResponse(plain(text), status)


def trouble(problem: Problem) -> str:
    """What went wrong, above the form that it is about."""
    body: dict[str, Any] = problem.body
    allowed = f" Allowed: {escape(str(body['allowed']))}." if body["allowed"] else ""
    what = body["what"][:1].upper() + body["what"][1:]
    return (
        f'<section class="trouble" role="alert"><strong>{escape(body["title"])}</strong>'
        f"<p>{escape(what)}{allowed} {escape(body['next'])}</p></section>"
    )


def problem_page(request: Request, problem: Problem) -> Response | None:
    """For somebody with a browser; None for programs, whose answers are JSON."""
    if request.url.path.startswith("/v1/") or "text/html" not in request.headers.get("accept", ""):
        return None
    if request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true":
        return part(trouble(problem))
    if problem.status == 401:
        there = f"{request.url.path}?{request.url.query}".rstrip("?")
        return sign_in_page(there if request.method == "GET" else "/")
    title = problem.body["title"]
    body = f'<h1>{escape(title)}</h1>{trouble(problem)}<p><a href="/">Ask for a forecast</a></p>'
    return page(title, body, caller=getattr(request.state, "caller", None), status=problem.status)


def sign_in_page(then: str, *, refused: bool = False) -> Response:
    """The form for a key; it leads on to the page that was asked for, after a wrong key too."""
    key = '<input name="key" type="password" required autofocus autocomplete="current-password" maxlength="200">'
    body = (
        "<h1>Sign in</h1><p>This service belongs to teams. Show a key of yours: whoever runs it makes one with "
        "<code>foretell serve key TEAM</code>.</p>"
        + (
            '<p class="no" role="alert">This key is not in use. Look whether all of it was copied.</p>'
            if refused
            else ""
        )
        + f'<form class="ask" method="post" action="/signin"><input type="hidden" name="then" value="{escape(then)}">'
        + f'{field("Key", key)}<div class="go"><button>Sign in</button></div></form>'
    )
    return page("Sign in", body, caller=None, status=401)


def field(label: str, control: str, note: str = "") -> str:
    """A control with its name; HTML already, the note too."""
    return f'<label class="field"><span>{label}</span>{control}{f"<small>{note}</small>" if note else ""}</label>'


def number(
    name: str, value: str = "", *, least: float = 1, most: float = 65536, step: str = "1", hint: str = ""
) -> str:
    return (
        f'<input type="number" name="{name}" value="{escape(value)}" min="{least:g}" max="{most:g}" step="{step}" '
        f'placeholder="{escape(hint)}" inputmode="decimal">'
    )


def choose(name: str, options: Mapping[str, str], chosen: str = "", *, extra: str = "") -> str:
    items = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(shown)}</option>'
        for value, shown in options.items()
    )
    return f'<select name="{name}" {extra}>{items}</select>'
