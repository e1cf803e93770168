"""`/compare?forecast=ID&forecast=ID`: answers side by side with their intervals, relative to the first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from foretell.report import ticks
from foretell.report.charts import svg
from foretell.report.page import figure, section, table
from foretell.serve.database.tables import StoredForecast
from foretell.serve.listener.callers import Reader, ServiceDep
from foretell.serve.listener.pages.ask import MAX_COMPARED
from foretell.serve.listener.pages.frame import page
from foretell.serve.problems import Problem
from foretell.serve.requests import Id
from foretell.units import or_dash, show_bytes, show_dollars, show_rate, show_seconds, show_share

router = APIRouter()
_WIDTH, _LEFT, _ROW, _BELOW = 720, 40, 34, 30
_TITLES: Final = ("", "Step", "90 % interval", "Relative", "Samples/s", "MFU", "Memory", "$ per hour")


@router.get("/compare")
def compare(service: ServiceDep, caller: Reader, forecast: Annotated[list[Id] | None, Query()] = None) -> Response:
    """An address of its own, which can be shared."""
    ids = list(dict.fromkeys(forecast or ()))
    if not 2 <= len(ids) <= MAX_COMPARED:
        raise Problem(
            422, f"{len(ids)} forecasts were chosen.", got=len(ids), allowed=f"2 to {MAX_COMPARED}",
            next="Tick them in History, or ask for several clusters at once.",
        )  # fmt: skip
    found = [service.stored(caller, id) for id in ids]
    answers = [json.loads(row.answer) for row in found]
    return page("Side by side", _body(found, answers), caller=caller, here="/history")


def _body(found: Sequence[StoredForecast], answers: Sequence[dict[str, Any]]) -> str:
    rows = [
        (_name(number, row), *_figures(each, answers[0]))
        for number, (row, each) in enumerate(zip(found, answers, strict=True), 1)
    ]
    same = len({row.graph for row in found}) == 1
    about = f"{escape(found[0].workload)}: the same step." if same else "Steps differ, and their batches may too."
    titles = ("Forecast", *_TITLES[1:])
    caption = "Step times; a dot is the median, its bar the 90 % interval. Bars that overlap may well be equal."
    return (
        f'<h1>{len(found)} forecasts side by side</h1><p class="soft">{about} Relative is throughput, to the first.</p>'
        + table(titles, rows, words=("90 % interval",), wide=("MFU", "$ per hour", "Samples/s"))
        + figure("With their intervals", caption, _chart(answers))
        + section("Memory of the heaviest rank", "Of what a program can use there.", _memory(found, answers))
        + '<p class="links"><a href="/history">Choose others</a></p>'
    )


def _name(number: int, row: StoredForecast) -> str:
    profile = row.question.get("profile")
    further = escape(f"{row.workload}; {row.plan}{f'; profile {profile}' if profile else ''}")
    return f'<a href="/forecasts/{row.id}">{number}. {escape(row.cluster)}</a><small>{further}</small>'


def _rate(answer: dict[str, Any]) -> float:
    """Samples per second, or steps where samples are not known."""
    return float(answer["throughput"]["samples_per_second"] or 1 / answer["step_time"]["seconds"])


def _figures(answer: dict[str, Any], first: dict[str, Any]) -> tuple[str, ...]:
    step, memory, throughput = answer["step_time"], answer["memory"], answer["throughput"]
    known = step["low"] is not None and step["high"] is not None
    relative = _rate(answer) / _rate(first)
    fits = "" if memory["fits"] else '<small class="no">does not fit</small>'
    between = f" ({relative * step['seconds'] / step['high']:.2f} to {relative * step['seconds'] / step['low']:.2f})"
    return (
        show_seconds(step["seconds"]), f"{show_seconds(step['low'])} to {show_seconds(step['high'])}" if known else "none",
        f"{relative:.2f}×{between if known else ''}", or_dash(throughput["samples_per_second"], show_rate),
        or_dash(throughput["mfu"], show_share), show_bytes(memory["total"]) + fits,
        or_dash(answer["cost"]["dollars_per_hour"], show_dollars),
    )  # fmt: skip


def _chart(answers: Sequence[dict[str, Any]]) -> str:
    """A row per answer, seconds to the right from zero."""
    steps = [each["step_time"] for each in answers]
    most = float(max(step["high"] or step["seconds"] for step in steps)) * 1.05
    height = _ROW * len(steps) + _BELOW

    def x(seconds: float) -> float:
        return _LEFT + seconds / most * (_WIDTH - _LEFT - 16)

    drawn = []
    for at, label in ticks.seconds(0.0, most, 6):
        drawn.append(f'<line class="grid" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="0" y2="{height - _BELOW}"/>')
        drawn.append(f'<text x="{x(at):.1f}" y="{height - 10}" text-anchor="middle">{escape(label)}</text>')
    for number, step in enumerate(steps, 1):
        y = _ROW * (number - 0.5)
        drawn.append(f'<text x="0" y="{y + 4:.1f}">{number}.</text>')
        if step["low"] is not None and step["high"] is not None:
            drawn.append(
                f'<line class="interval" x1="{x(step["low"]):.1f}" x2="{x(step["high"]):.1f}" y1="{y}" y2="{y}"/>'
            )
        drawn.append(f'<circle cx="{x(step["seconds"]):.1f}" cy="{y}" r="5" fill="var(--accent)"/>')
    described = "; ".join(f"{n}: {show_seconds(step['seconds'])}" for n, step in enumerate(steps, 1))
    title = "Step times with their intervals"
    return svg(_WIDTH, height, "".join(drawn), name="compared", title=title, description=described, scaled=True)


def _memory(found: Sequence[StoredForecast], answers: Sequence[dict[str, Any]]) -> str:
    parts = list(dict.fromkeys(name for each in answers for name in each["memory"]["breakdown"]))
    rows = [
        (escape(name.replace("_", " ")), *(show_bytes(each["memory"]["breakdown"].get(name, 0)) for each in answers))
        for name in parts
    ]
    rows.append(("of", *(show_bytes(each["memory"]["capacity"]) for each in answers)))
    return table(("Part", *(f"{n}. {escape(row.cluster)}" for n, row in enumerate(found, 1))), rows)
