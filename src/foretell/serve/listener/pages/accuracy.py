"""`/accuracy`: how far forecasts were off for this team, and what the models were fitted on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from foretell.cost.model import names
from foretell.report import ticks
from foretell.report.charts import svg
from foretell.report.page import figure, section, table
from foretell.serve.listener.callers import Reader, ServiceDep
from foretell.serve.listener.pages.frame import page
from foretell.serve.listener.pages.history import signed
from foretell.serve.listener.pages.over_time import over_time
from foretell.serve.measured import Compared, compared, drifts
from foretell.serve.task_checker import card
from foretell.units import show_seconds, show_share

router = APIRouter()
_SIDE, _LEFT, _BELOW = 440, 64, 40
_WIDTH: Final = 720


@router.get("/accuracy")
def accuracy(service: ServiceDep, caller: Reader) -> Response:
    with service.database.reading() as session:
        steps = compared(session, caller.team)
    own = _own(steps) + over_time(steps) + _drift(steps) if steps else _NOTHING
    return page("Accuracy", f"<h1>How good are forecasts?</h1>{own}{_models()}", caller=caller, here="/accuracy")


_NOTHING: Final = (
    '<p class="empty">No step of this team was measured beside its forecast yet. Send what steps take: '
    "<code>foretell.watch(…, server=ADDRESS)</code> in a training loop, or <code>Client.measured</code>.</p>"
)


def _own(steps: Sequence[Compared]) -> str:
    errors = [abs(step.predicted / step.seconds - 1) for step in steps]
    inside = [step.low <= step.seconds <= step.high for step in steps if step.low is not None and step.high is not None]
    middle, mean = show_share(statistics.median(errors)), show_share(statistics.fmean(errors))
    words = f"{len(steps)} measured steps: {middle} median error, {mean} mean"
    if inside:
        words += f"; {show_share(sum(inside) / len(inside))} inside the 90 % interval"
    groups: dict[str, list[Compared]] = {}
    for step in steps:
        groups.setdefault(step.cluster, []).append(step)
    rows = [
        (
            escape(cluster), f"{len(of)}", show_share(statistics.median(abs(s.predicted / s.seconds - 1) for s in of)),
            slower_or_faster(statistics.median(s.predicted / s.seconds - 1 for s in of)),
        )
        for cluster, of in groups.items()
    ]  # fmt: skip
    return (
        figure("Measured against predicted", f"{words}. On the line they are equal.", _chart(steps))
        + section("By cluster", "Medians.", table(("Cluster", "Steps", "Error", "Predicted"), rows))
    )  # fmt: skip


def slower_or_faster(error: float) -> str:
    """`12 % too slow`, `59 % too fast`: what is predicted, beside what was measured."""
    return f"{show_share(abs(error))} too {'slow' if error > 0 else 'fast'}" if round(error, 3) else "as measured"


def _drift(steps: Sequence[Compared]) -> str:
    rows = [
        (
            escape(course.latest.source), escape(course.latest.cluster), escape(course.latest.plan), f"{len(course.windows)}",
            course.drift.verdict, signed(course.drift.ratio - 1),
        )
        for course in drifts(steps)
    ]  # fmt: skip
    titles = ("Step", "Cluster", "Plan", "Times measured", "Forecasts", "Longer by")
    note = (
        "Whether forecasts still hold: off is outside of the interval, changed is not what the job was like at first."
    )
    return section(
        "Drift", note, table(titles, rows, words=("Cluster", "Plan", "Forecasts"), wide=("Plan", "Times measured"))
    )


def _chart(steps: Sequence[Compared]) -> str:
    """Both axes in logarithms; a dot leads to its forecast."""
    times = [t for step in steps for t in (step.seconds, step.predicted)]
    low, high = math.log(min(times) / 1.3), math.log(max(times) * 1.3)

    def at(seconds: float) -> float:
        return (math.log(seconds) - low) / (high - low)

    def x(seconds: float) -> float:
        return _LEFT + at(seconds) * (_WIDTH - _LEFT - 8)

    def y(seconds: float) -> float:
        return (_SIDE - _BELOW) * (1 - at(seconds))

    ends = math.exp(low), math.exp(high)
    drawn = [
        f'<line class="axis" x1="{x(ends[0]):.1f}" y1="{y(ends[0]):.1f}" x2="{x(ends[1]):.1f}" y2="{y(ends[1]):.1f}"/>',
        f'<text x="{_WIDTH - 8}" y="{_SIDE - 8}" text-anchor="end">measured</text><text x="0" y="12">predicted</text>',
    ]
    for tick, label in ticks.seconds_by_ratio(*ends, 6):
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        drawn.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{_SIDE - _BELOW}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>')
        drawn.append(f'<text x="{x(tick):.1f}" y="{_SIDE - _BELOW + 20}" text-anchor="middle">{label}</text>')
    for step in steps:
        label = f"{step.workload} on {step.cluster}: predicted {show_seconds(step.predicted)}, measured {show_seconds(step.seconds)}"
        dot = (
            f'<circle cx="{x(step.seconds):.1f}" cy="{y(step.predicted):.1f}" r="5" fill="var(--accent)" opacity="0.8">'
        )
        drawn.append(f'<a href="/forecasts/{step.forecast}">{dot}<title>{escape(label)}</title></circle></a>')
    described = f"{len(steps)} steps, each measured and predicted."
    title = "Measured against predicted"
    return svg(_WIDTH, _SIDE, "".join(drawn), name="accuracy", title=title, description=described, scaled=True)


def _models() -> str:
    rows = []
    for name in names():
        about = card(name)
        if about:
            others = about.get("other_devices") or about.get("elsewhere", {})  # its name in 0.1
            rows.append(
                (
                    escape(name), escape(str(about.get("device", "–"))), f"{about.get('steps', 0):,}",
                    f"{about.get('architectures', 0):,}", f"{about.get('ops', 0):,}", f"{len(others):,}",
                )
            )  # fmt: skip
    titles = ("Model", "Measured on", "Steps", "Networks", "Ops", "Other devices")
    note = "What shipped models were fitted on. How they fare on what they have not seen is in the documentation, under accuracy."
    return section("Models", note, table(titles, rows, words=("Measured on",), wide=("Networks", "Ops")))
