"""Pages for people: what was forecast beside what was measured, and the report of a forecast. Drawn here; no script runs."""

from __future__ import annotations

from html import escape
from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from foretell.report.page import document, section, table
from foretell.serve.access.guard import HEADERS
from foretell.serve.database.tables import Measurement, StoredForecast
from foretell.serve.listener.callers import Asked, Reader
from foretell.serve.questions import Id
from foretell.text import plain
from foretell.units import show_seconds, show_share

router = APIRouter(include_in_schema=False)
_SHOWN: Final = 100
# The reports' own styles are inside the page; scripts there are none.
_POLICY: Final = {
    "Content-Security-Policy": HEADERS["Content-Security-Policy"]
    .replace("script-src 'self'", "script-src 'none'")
    .replace("style-src 'self'", "style-src 'unsafe-inline'")
}
_HOW: Final = "foretell predict SOURCE --on CLUSTER --server ADDRESS"


def _page(text: str) -> HTMLResponse:
    return HTMLResponse(plain(text), headers=_POLICY)


@router.get("/")
def history(service: Asked, caller: Reader) -> HTMLResponse:
    """The newest forecasts of the team."""
    wanted = select(StoredForecast).filter_by(team_id=caller.team).order_by(StoredForecast.created.desc()).limit(_SHOWN)
    with service.database.reading() as session:
        forecasts = session.scalars(wanted).all()
        measured = select(Measurement).where(
            Measurement.team_id == caller.team, Measurement.forecast_id.in_([row.id for row in forecasts])
        )
        times = {row.forecast_id: row.seconds for row in session.scalars(measured.order_by(Measurement.created))}
    if not forecasts:
        body = section("Nothing yet", f"Ask for a forecast: {_HOW}", "")
    else:
        titles = ("Forecast", "Cluster", "Plan", "Fits", "Predicted", "Measured", "Error")
        rows = [_row(row, times.get(row.id)) for row in forecasts]
        body = section("History", "The newest first. Measured is the last step time that was sent back.",
                       table(titles, rows, words=("Cluster", "Plan", "Fits"), wide=("Plan", "Measured")))  # fmt: skip
    return _page(document("Forecasts", f"<h1>Forecasts</h1>\n{body}", kind="service"))


@router.get("/forecasts/{id}")
async def report(id: Id, service: Asked, caller: Reader) -> HTMLResponse:
    """The report that `foretell predict --html` writes."""
    return _page((await service.report(caller, id)).decode())


def _row(row: StoredForecast, seconds: float | None) -> tuple[str, ...]:
    error = (
        "–"
        if seconds is None
        else f"{'+' if row.seconds > seconds else '−'}{show_share(abs(row.seconds / seconds - 1))}"
    )
    return (
        f'<a href="/forecasts/{row.id}">{escape(row.workload)}</a>', escape(row.cluster), escape(row.plan),
        "yes" if row.fits else "no", show_seconds(row.seconds), "–" if seconds is None else show_seconds(seconds), error,
    )  # fmt: skip
