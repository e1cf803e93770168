"""Steps that were measured beside their forecast: how far off, and since when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from foretell.measure.record import StepRow
from foretell.serve.database.tables import Measurement, StoredForecast
from foretell.units import Seconds
from foretell.watching.drift import Course, courses

_NEWEST: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measured step and what was predicted of it, with the forecast's 90 % interval."""

    graph: str
    workload: str
    cluster: str
    plan: str
    forecast: str
    model: str
    profile: str
    seconds: Seconds
    predicted: Seconds
    low: Seconds | None
    high: Seconds | None
    at: float


def compared(session: Session, team: str, most: int = _NEWEST) -> list[Compared]:
    """The newest first."""
    wanted = (
        select(Measurement, StoredForecast)
        .join(StoredForecast, Measurement.forecast_id == StoredForecast.id)
        .where(Measurement.team_id == team)
        .order_by(Measurement.created.desc())
        .limit(most)
    )
    return [_compared(*row) for row in session.execute(wanted)]


def drifts(steps: Sequence[Compared]) -> list[Course]:
    """What became of each kind of step, those that forecasts do not hold for any more first."""
    return courses(
        StepRow(
            point=f"{step.graph} {step.plan}", kind="watched", source=step.workload, settings="{}", plan=step.plan,
            cluster=step.cluster, model=step.model, profile=step.profile, step_seconds=step.seconds, graph=step.graph,
            predicted_seconds=step.predicted, predicted_low=step.low, predicted_high=step.high,
            date=datetime.fromtimestamp(step.at, UTC).isoformat(timespec="milliseconds"),
        )
        for step in steps
    )  # fmt: skip


def _compared(measured: Measurement, forecast: StoredForecast) -> Compared:
    step: dict[str, Any] = json.loads(forecast.answer)["step_time"]
    return Compared(
        graph=measured.graph, workload=forecast.workload, cluster=measured.cluster, plan=measured.plan, forecast=forecast.id,
        model=forecast.model, profile=forecast.question.get("profile") or "", seconds=measured.seconds,
        predicted=forecast.seconds, low=step.get("low"), high=step.get("high"), at=measured.created,
    )  # fmt: skip
