"""`/history`: what was forecast beside what was measured."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy import select

from foretell.report.page import table
from foretell.serve.database.tables import Key, Measurement, StoredForecast
from foretell.serve.listener.callers import Reader, ServiceDep
from foretell.serve.listener.pages.frame import page
from foretell.units import show_seconds, show_share

router = APIRouter()
_SHOWN: Final = 100
_TITLES: Final = ("Forecast", "Cluster", "Plan", "Asked", "Fits", "Predicted", "Measured", "Error")


@router.get("/history")
def history(service: ServiceDep, caller: Reader) -> Response:
    """The newest forecasts of the team."""
    wanted = select(StoredForecast).filter_by(team_id=caller.team).order_by(StoredForecast.created.desc()).limit(_SHOWN)
    with service.database.reading() as session:
        forecasts = session.scalars(wanted).all()
        measured = select(Measurement).where(
            Measurement.team_id == caller.team, Measurement.forecast_id.in_([row.id for row in forecasts])
        )
        times = {row.forecast_id: row.seconds for row in session.scalars(measured.order_by(Measurement.created))}
        labels = {key.id: key.label for key in session.scalars(select(Key).filter_by(team_id=caller.team))}
    if not forecasts:
        body = '<p class="empty">Nothing yet. <a href="/">Ask for a forecast</a>, or from a terminal: '
        body += "<code>foretell predict SOURCE --on CLUSTER --server ADDRESS</code></p>"
    else:
        rows = [_row(row, times.get(row.id), labels.get(row.created_by, "")) for row in forecasts]
        shown = table(
            _TITLES, rows, words=("Cluster", "Plan", "Asked", "Fits"), wide=("Plan", "Asked", "Measured", "Fits")
        )
        note = '<p class="soft">What was forecast, the newest first, and the last step time that was measured and sent back. '
        body = f'{note}<a href="/accuracy">How good are forecasts?</a></p>{shown}'
    return page("History", f"<h1>History</h1>\n{body}", caller=caller, here="/history")


def signed(error: float) -> str:
    return f"{'+' if error > 0 else '−'}{show_share(abs(error))}"


def _row(row: StoredForecast, seconds: float | None, by: str) -> tuple[str, ...]:
    when = datetime.fromtimestamp(row.created, UTC).strftime("%Y-%m-%d %H:%M")
    who = f"<small>{escape(by)}</small>" if by else ""
    return (
        f'<a href="/forecasts/{row.id}">{escape(row.workload)}</a>', escape(row.cluster),
        escape(row.plan).replace(",", ",<wbr>"), f'<time title="UTC">{when}</time>{who}',
        '<span class="yes">yes</span>' if row.fits else '<span class="no">no</span>', show_seconds(row.seconds),
        "–" if seconds is None else show_seconds(seconds), "–" if seconds is None else signed(row.seconds / seconds - 1),
    )  # fmt: skip
