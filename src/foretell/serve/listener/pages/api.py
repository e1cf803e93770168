"""`/docs`: the addresses for programs, drawn from /openapi.json with an example of each body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foretell.report.page import table
from foretell.serve.listener.pages.frame import page

router = APIRouter()
_TITLES: Final = {
    "graphs": "Graphs", "forecasts": "Forecasts", "jobs": "Long work", "measurements": "Measurements",
    "catalog": "What a question can name", "methods": "Fitted methods", "roles": "Before a question",
    "health": "For what watches the service",
}  # fmt: skip


@router.get("/docs")
def docs(request: Request) -> Response:
    """Open to all, as /openapi.json is: it has nothing of a team."""
    schema = request.app.openapi()
    groups: dict[str, list[str]] = {}
    for place, methods in schema["paths"].items():
        for method, about in methods.items():
            groups.setdefault(about.get("tags", [""])[0], []).append(_address(method.upper(), place, about, schema))
    found = "".join(
        f'<section><h2 id="{escape(tag)}">{escape(_TITLES.get(tag, tag))}</h2>{"".join(of)}</section>'
        for tag, of in groups.items()
    )
    links = "".join(f'<a href="#{escape(tag)}">{escape(_TITLES.get(tag, tag))}</a> ' for tag in groups)
    body = (
        "<h1>For programs</h1><p>Bodies and answers are JSON; a graph is sent as a file. Where the service has keys, send "
        "<code>Authorization: Bearer KEY</code>. All of this for machines: "
        '<a href="/openapi.json">/openapi.json</a>.</p>'
        f'<p class="links">{links}<a href="#schemas">Schemas</a></p>{found}{_schemas(schema)}'
    )
    return page("For programs", body, caller=None, here="/docs")


def _address(method: str, place: str, about: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    words = escape(about.get("description") or about["summary"]).replace("`", "")
    parts = [f'<h3><code class="method">{method}</code> <code>{escape(place)}</code></h3><p>{words}</p>']
    if parameters := about.get("parameters"):
        rows = [
            (f"<code>{escape(p['name'])}</code>", escape(p["in"]), escape(_kind(p["schema"])), escape(_words(p)))
            for p in parameters
        ]
        parts.append(table(("Parameter", "In", "Is", "About"), rows, words=("In", "Is", "About")))
    for media, body in about.get("requestBody", {}).get("content", {}).items():
        parts.append(_sent(method, place, media, body["schema"], schema))
    for status, answer in about["responses"].items():
        if status.startswith("2"):
            parts += [f"<p>Answers {status}: {words}</p>" for words in _answers(answer, schema)]
    return "".join(parts)


def _sent(method: str, place: str, media: str, body: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if media != "application/json":
        line = f"curl --data-binary @FILE.graph http://127.0.0.1:8760{place}"
        return f"<p>Send a file, <code>{escape(media)}</code>:</p><pre>{escape(line)}</pre>"
    name = _name(body)
    shown = "".join(
        f"<pre>curl -X {method} http://127.0.0.1:8760{escape(place)} -H 'Content-Type: application/json' -d '"
        f"{escape(json.dumps(example, indent=2))}'</pre>"
        for example in schema["components"]["schemas"].get(name, {}).get("examples", ())
    )
    return f'<p>Send <a href="#{escape(name)}">{escape(name)}</a>:</p>{shown}'


def _answers(answer: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    for media, about in answer.get("content", {}).items():
        name = _name(about["schema"]) or _name(about["schema"].get("items", {}))
        many = "a list of " if about["schema"].get("type") == "array" else ""
        known = name in schema["components"]["schemas"]
        shown = f'{many}<a href="#{escape(name)}">{escape(name)}</a>' if known else escape(media)
        yield (
            shown
            if known
            else f"{shown}. {escape(answer['description']).replace('`', '')}".removesuffix(" Successful Response")
        )


def _schemas(schema: Mapping[str, Any]) -> str:
    parts = ['<section><h2 id="schemas">Schemas</h2>']
    for name, about in schema["components"]["schemas"].items():
        rows = [
            (f"<code>{escape(field)}</code>", escape(_kind(of)), "yes" if field in about.get("required", ()) else "",
             escape(of.get("description", "")))
            for field, of in about.get("properties", {}).items()
        ]  # fmt: skip
        shown = "".join(f"<pre>{escape(json.dumps(each, indent=2))}</pre>" for each in about.get("examples", ()))
        words = escape(about.get("description", "")).replace("`", "")
        titles = ("Field", "Is", "Required", "About")
        parts.append(
            f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{words}</p>{table(titles, rows, words=titles)}{shown}'
        )
    return "".join(parts) + "</section>"


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _kind(schema: Mapping[str, Any]) -> str:
    """`a whole number or null`: what a value may be."""
    if choices := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_kind(each) for each in choices))
    if choices := schema.get("enum"):
        return " or ".join(map(str, choices))
    if name := _name(schema):
        return name
    kind = {"string": "text", "integer": "whole number", "array": "list", "object": "object", "null": "null"}
    found = kind.get(schema.get("type", ""), schema.get("type", "anything"))
    return f"{found} of {_kind(schema['items'])}" if found == "list" and schema.get("items") else found


def _words(parameter: Mapping[str, Any]) -> str:
    usual = parameter["schema"].get("default")
    words = str(parameter.get("description", ""))
    return f"{words} Usually {usual}.".strip() if usual not in (None, "") else words
