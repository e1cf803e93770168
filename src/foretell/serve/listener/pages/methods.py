"""`/forecasts/ID/methods`: what fitted methods say of a step, beside its forecast."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from foretell.report.page import table
from foretell.serve.database.tables import StoredForecast
from foretell.serve.listener.callers import Reader, ServiceDep
from foretell.serve.listener.pages.frame import page, part
from foretell.serve.problems import Problem
from foretell.serve.requests import Id, PredictionRequest
from foretell.units import or_dash, show_bytes, show_seconds

router = APIRouter()
_COLUMNS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "step_time": ("Step", show_seconds), "device_time": ("Device", show_seconds), "memory": ("Memory allocated", show_bytes),
}  # fmt: skip


def to_load(id: str) -> str:
    """Where the table comes to once the report is there: a method that has not been asked yet has much to load."""
    place = f"/forecasts/{id}/methods"
    return (
        f'<section id="methods" hx-get="{place}" hx-trigger="load" hx-swap="outerHTML"><h3>By fitted methods</h3>'
        f'<p role="status"><a href="{place}">Ask the fitted methods of this service</a></p></section>'
    )


@router.get("/forecasts/{id}/methods")
async def methods(id: Id, request: Request, service: ServiceDep, caller: Reader) -> Response:
    """Each fitted method of this service, asked about the step of a forecast."""
    found = await run_in_threadpool(service.stored, caller, id)
    question = PredictionRequest(graph=found.graph, on=found.cluster, plan=found.plan)
    predicted = []
    for each in service.methods.listed():
        try:
            predicted.append(await service.predict(caller, each.name, question))
        except Problem as problem:  # the others answer all the same
            predicted.append({"name": each.name, "method": each.method, "values": {}, "why": str(problem)})
    body = f'<section id="methods"><h3>By fitted methods</h3>{_table(found, predicted)}</section>'
    if request.headers.get("hx-request") == "true":
        return part(body)
    back = f'<p class="links"><a href="/forecasts/{id}">The forecast</a></p>'
    return page(f"{found.workload} by fitted methods", back + body, caller=caller)


def _table(found: StoredForecast, predicted: list[dict[str, Any]]) -> str:
    titles = ("Method", "Fitted as", *(title for title, _ in _COLUMNS.values()))
    missing = "".join(
        f'<p class="soft">{escape(each["name"])} says nothing: {escape(each["why"])}</p>'
        for each in predicted if not each["values"]
    )  # fmt: skip
    return table(titles, _rows(found, predicted), words=("Fitted as",)) + missing


def _rows(found: StoredForecast, predicted: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    answer = json.loads(found.answer)
    own = {target: answer[target]["seconds"] for target in ("step_time", "device_time")}
    yield _row("Foretell", "", own | {"memory": answer["memory"]["allocated"]})
    for each in predicted:
        yield _row(each["name"], each["method"], each["values"])


def _row(name: str, method: str, values: Mapping[str, float]) -> tuple[str, ...]:
    cells = (or_dash(values.get(target), show) for target, (_, show) in _COLUMNS.items())
    return (escape(name), escape(method), *cells)
