"""`/history`: what was forecast beside what was measured, plans that were searched, and all long work."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from foretell.report.page import table
from foretell.serve.access.keys import Caller
from foretell.serve.database.tables import Job, Key, Measurement, StoredForecast, StoredGraph
from foretell.serve.listener.callers import Reader, ServiceDep
from foretell.serve.listener.pages.frame import page
from foretell.units import or_dash, show_dollars, show_seconds, show_share

router = APIRouter()
Kind = Literal["forecasts", "plans", "jobs"]
_SHOWN: Final = 100
_KINDS: Final[dict[Kind, str]] = {"forecasts": "Forecasts", "plans": "Plans", "jobs": "All long work"}
_FORECASTS: Final = ("Forecast", "Cluster", "Plan", "Asked", "Fits", "Predicted", "Measured", "Error")
_PLANS: Final = ("Network", "Among", "Asked", "State", "Recommended", "Time", "Cost")
_JOBS: Final = ("What", "Of", "Asked", "State", "Took")
NOTHING: Final = (
    '<p class="empty">Nothing yet. <a href="/">Ask for a forecast</a>, or from a terminal: '
    "<code>foretell predict SOURCE --on CLUSTER --server ADDRESS</code></p>"
)


@router.get("/history")
def history(service: ServiceDep, caller: Reader, kind: Kind = "forecasts", before: float | None = None) -> Response:
    """The newest of the team, or those before a time."""
    links = "".join(
        f'<a href="/history?kind={each}"{" aria-current=page" if each == kind else ""}>{words}</a>'
        for each, words in _KINDS.items()
    )
    with service.database.reading() as session:
        drawn, oldest = {"forecasts": _forecasts, "plans": _plans, "jobs": _jobs}[kind](session, caller, before)
    older = f'<p><a href="/history?kind={kind}&amp;before={oldest!r}">Older</a></p>' if oldest else ""
    body = f'<h1>History</h1><nav class="kinds" aria-label="Kinds">{links}</nav>{drawn}{older}'
    return page("History", body, caller=caller, here="/history")


def signed(error: float) -> str:
    return f"{'+' if error > 0 else '−'}{show_share(abs(error))}"


def when(at: float) -> str:
    return f'<time title="UTC">{datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")}</time>'


def _newest(wanted: Select[Any], table: Any, before: float | None) -> Select[Any]:
    earlier = wanted if before is None else wanted.where(table.created < before)
    return earlier.order_by(table.created.desc()).limit(_SHOWN)


def _forecasts(session: Session, caller: Caller, before: float | None) -> tuple[str, float | None]:
    wanted = _newest(select(StoredForecast).filter_by(team_id=caller.team), StoredForecast, before)
    forecasts = session.scalars(wanted).all()
    if not forecasts:
        return NOTHING, None
    measured = select(Measurement).where(
        Measurement.team_id == caller.team, Measurement.forecast_id.in_([row.id for row in forecasts])
    )
    times = {row.forecast_id: row.seconds for row in session.scalars(measured.order_by(Measurement.created))}
    labels = {key.id: key.label for key in session.scalars(select(Key).filter_by(team_id=caller.team))}
    rows = [_row(row, times.get(row.id), labels.get(row.created_by, "")) for row in forecasts]
    shown = table(
        _FORECASTS, rows, words=("Cluster", "Plan", "Asked", "Fits"), wide=("Plan", "Asked", "Measured", "Fits")
    )
    note = (
        '<p class="soft">What was forecast, the newest first, and the last step time that was measured and sent back. '
        'Tick up to six to compare. <a href="/accuracy">How good are forecasts?</a></p>'
    )
    form = f'<form method="get" action="/compare">{shown}<p class="go sticky"><button>Compare</button></p></form>'
    return note + form, forecasts[-1].created if len(forecasts) == _SHOWN else None


def _row(row: StoredForecast, seconds: float | None, by: str) -> tuple[str, ...]:
    who = f"<small>{escape(by)}</small>" if by else ""
    name = escape(row.workload)
    tick = (
        f'<input type="checkbox" name="forecast" value="{row.id}" aria-label="Compare {name} on {escape(row.cluster)}">'
    )
    return (
        f'<span class="tick">{tick}<a href="/forecasts/{row.id}">{name}</a></span>', escape(row.cluster),
        escape(row.plan).replace(",", ",<wbr>"), f"{when(row.created)}{who}",
        '<span class="yes">yes</span>' if row.fits else '<span class="no">no</span>', show_seconds(row.seconds),
        "–" if seconds is None else show_seconds(seconds), "–" if seconds is None else signed(row.seconds / seconds - 1),
    )  # fmt: skip


def _names(session: Session, caller: Caller, jobs: list[Job]) -> dict[str, str]:
    """Of the graphs that jobs are about."""
    hashes = {job.question.get("graph") for job in jobs}
    kept = select(StoredGraph.hash, StoredGraph.name).where(
        StoredGraph.team_id == caller.team, StoredGraph.hash.in_(hashes)
    )
    return {row.hash: row.name for row in session.execute(kept)}


def _listed(session: Session, caller: Caller, before: float | None, **kind: str) -> tuple[list[Job], dict[str, str]]:
    jobs = list(session.scalars(_newest(select(Job).filter_by(team_id=caller.team, **kind), Job, before)))
    return jobs, _names(session, caller, jobs)


def _oldest(jobs: list[Job]) -> float | None:
    return jobs[-1].created if len(jobs) == _SHOWN else None


def _plans(session: Session, caller: Caller, before: float | None) -> tuple[str, float | None]:
    jobs, names = _listed(session, caller, before, kind="plan")
    if not jobs:
        return '<p class="empty">No plan was searched yet. <a href="/planner">Search one</a>.</p>', None
    rows = []
    for job in jobs:
        best = (json.loads(job.result)["recommended"] if job.result else None) or {}
        among = ", ".join(job.question.get("gpus") or [job.question.get("on") or "what can be rented"])
        cost = (best.get("cost") or {}).get("median")
        rows.append(
            (
                f'<a href="/jobs/{job.id}">{escape(names.get(job.question["graph"], "a graph"))}</a>', escape(among),
                when(job.created), escape(job.state),
                escape(f"{best['cluster']}, {best['plan']}").replace(",", ",<wbr>") if best else "–",
                show_seconds(best["time"]["median"]) if best else "–", or_dash(cost, show_dollars),
            )
        )  # fmt: skip
    words = ("Among", "Asked", "State", "Recommended")
    return table(_PLANS, rows, words=words, wide=("Among", "Asked", "State")), _oldest(jobs)


def _jobs(session: Session, caller: Caller, before: float | None) -> tuple[str, float | None]:
    jobs, names = _listed(session, caller, before)
    if not jobs:
        return '<p class="empty">No long work was begun yet.</p>', None
    verbs = {"plan": "Search", "scale": "Scaling", "capture": "Capture", "adapt": "Fit of a profile"}
    rows = [
        (
            f'<a href="/jobs/{job.id}">{escape(verbs.get(job.kind, job.kind))}</a>',
            escape(names.get(job.question.get("graph", "")) or job.question.get("source") or job.question.get("name") or ""),
            when(job.created), f"{escape(job.state)}<small>{escape(job.message[:200])}</small>",
            "–" if job.ended is None else show_seconds(max(job.ended - job.created, 0.0)),
        )
        for job in jobs
    ]  # fmt: skip
    return table(_JOBS, rows, words=("Of", "Asked", "State"), wide=("Asked",)), _oldest(jobs)
