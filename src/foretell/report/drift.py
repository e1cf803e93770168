"""Watched jobs drawn: measured over predicted, window by window, for the terminal and as a page."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from foretell.report.charts import svg
from foretell.report.page import document, figure, write_page
from foretell.report.terminal import facts_table, section
from foretell.units import show_bytes, show_seconds, show_share
from foretell.watching.drift import Course, seconds_of

_ROWS: Final = 7  # of a chart in the terminal
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 240, 64, 30
_COLOURS: Final = {"holds": "green", "too few": "yellow", "off": "red", "changed": "red"}


def drift_dict(course: Course) -> dict[str, Any]:
    """What `foretell drift --json` prints of a kind of job."""
    drift, latest = course.drift, course.latest
    measured, predicted = seconds_of(course)
    low, high = (math.exp(bound) for bound in course.interval)
    since = None if drift.since is None else course.windows[drift.since]
    return {
        "workload": latest.workload,
        "source": latest.source,
        "settings": latest.settings,
        "cluster": latest.cluster,
        "plan": latest.plan,
        "profile": latest.profile or None,
        "model": latest.model,
        "device": latest.device_name,
        "windows": len(course.windows),
        "verdict": drift.verdict,
        "measured_seconds": measured,
        "predicted_seconds": predicted,
        "ratio": drift.ratio,
        "ratio_before": drift.before,
        "interval": {"low": low, "high": high},
        "since": None if since is None else {"date": since.date, "step": since.steps_before},
        "memory": _memory(course),
    }


def drift_report(courses: Sequence[Course], width: int) -> RenderableType:
    return Group(*(_course(course, width) for course in courses))


def write_drift(courses: Sequence[Course], path: str | os.PathLike[str]) -> None:
    body = "\n".join(
        figure(_title(course), f"{_verdict(course)} {_where(course)}", _chart(course, number))
        for number, course in enumerate(courses)
    )
    title = "Watched jobs"
    footer = "Measured over predicted, window by window; the band is the forecast's interval."
    write_page(document(title, f"<h1>{title}</h1>\n{body}", kind="drift", footer=footer), path)


def _title(course: Course) -> str:
    settings = json.loads(course.latest.settings or "{}")
    return " ".join([course.latest.source, *(f"{name}={value}" for name, value in settings.items())])


def _where(course: Course) -> str:
    row = course.latest
    priced = f"profile {row.profile}" if row.profile else "no profile"
    return " · ".join(part for part in (row.cluster, row.plan, priced, row.device_name) if part)


def _verdict(course: Course) -> str:
    """In a sentence."""
    drift = course.drift
    how = _off(drift.ratio)
    if drift.verdict == "too few":
        return f"Only {len(course.windows)} window{'s' * (len(course.windows) > 1)}: too few to say."
    if drift.since is None:
        return f"Holds: steps are {how}, inside the forecast's interval."
    row = course.windows[drift.since]
    when = f"since {row.date[:16]}, step {row.steps_before or 0:,}"
    if drift.before is None:
        return f"Does not hold: steps are {how}, outside the forecast's interval, from the first window on."
    if drift.verdict == "off":
        return (
            f"No longer holds: steps are {how}, outside the forecast's interval, {when}. Before, {_off(drift.before)}."
        )
    changed = f"{drift.ratio / drift.before - 1:+.0%}".replace("%", " %")
    return f"Changed by {changed} {when}: steps are {how}, still inside the forecast's interval."


def _off(ratio: float) -> str:
    """How far measured is from predicted."""
    if not 0.5 < ratio < 2:
        return f"{max(ratio, 1 / ratio):.1f} times {'slower' if ratio > 1 else 'faster'} than predicted"
    return f"{abs(ratio - 1) * 100:.0f} % {'slower' if ratio > 1 else 'faster'} than predicted"


def _memory(course: Course) -> dict[str, int] | None:
    measured, predicted = course.latest.peak_allocated, course.latest.predicted_allocated
    return {"measured": measured, "predicted": predicted} if measured and predicted else None


def _course(course: Course, width: int) -> RenderableType:
    measured, predicted = seconds_of(course)
    memory = _memory(course)
    allocated = (
        "" if memory is None else f"{show_bytes(memory['measured'])}, predicted {show_bytes(memory['predicted'])}"
    )
    facts = facts_table(
        (
            ("Verdict", Text(_verdict(course), style=_COLOURS[course.drift.verdict])),
            ("Step", f"{show_seconds(measured)}, predicted {show_seconds(predicted)}"),
            ("Peak allocated", allocated),
            ("Windows", f"{len(course.windows):,}, {course.windows[0].date[:16]} to {course.latest.date[:16]}"),
        )
    )
    return section(_title(course), Group(facts, Text(_plot(course, width - 12))), _where(course))


def _plot(course: Course, width: int) -> str:
    """Rows of text: a point for each stretch of windows, lines at the forecast and at its interval."""
    columns = _columns(course.logs, max(min(width, 100), 10))
    bottom, top = _reach(course)
    marks = {_row(bound, bottom, top): "·" for bound in course.interval} | {_row(0.0, bottom, top): "─"}
    rows = [[marks.get(row, " ")] * len(columns) for row in range(_ROWS)]
    for place, value in enumerate(columns):
        rows[_row(value, bottom, top)][place] = "●"
    values = [math.exp(top - (top - bottom) * row / (_ROWS - 1)) for row in range(_ROWS)]
    labels = [f"{value:.2f}×" for value in values]
    wide = max(map(len, labels))
    lines = [f"{label:>{wide}} {''.join(row)}" for label, row in zip(labels, rows, strict=True)]
    if course.drift.since is not None:
        place = course.drift.since * len(columns) // len(course.logs)
        lines.append(" " * (place + wide + 1) + "▲ since here")
    return "\n".join(lines)


def _columns(logs: Sequence[float], most: int) -> list[float]:
    """As many medians as there is room for."""
    count = min(len(logs), most)
    edges = [round(i * len(logs) / count) for i in range(count + 1)]
    return [statistics.median(logs[a:b]) for a, b in pairwise(edges)]


def _reach(course: Course) -> tuple[float, float]:
    """What a chart shows: all windows and the forecast, and its interval unless that would flatten the rest."""
    values = [*course.logs, 0.0, math.log(0.9), math.log(1.1)]
    bottom, top = min(values), max(values)
    low, high = course.interval
    room = top - bottom
    return max(low, bottom - room) if low < bottom else bottom, min(high, top + room) if high > top else top


def _row(value: float, bottom: float, top: float) -> int:
    share = (top - min(max(value, bottom), top)) / (top - bottom)
    return round(share * (_ROWS - 1))


def _chart(course: Course, number: int) -> str:
    bottom, top = _reach(course)
    floor = _HEIGHT - _BELOW

    def x(window: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 16) * window / max(len(course.logs) - 1, 1)

    def y(value: float) -> float:
        return 12 + (floor - 12) * (top - min(max(value, bottom), top)) / (top - bottom)

    low, high = course.interval
    band = f'x="{_LEFT}" y="{y(high):.1f}" width="{_WIDTH - _LEFT - 16}" height="{y(low) - y(high):.1f}"'
    drawn = [f'<rect {band} fill="var(--bar)" opacity="0.45"><title>the forecast\'s interval</title></rect>']
    for value in (bottom, 0.0, top):
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{math.exp(value):.2f}×</text>')
    points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(course.logs))
    drawn.append(f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/>')
    if course.drift.since is not None:
        at = x(course.drift.since)
        drawn.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="12" y2="{floor}"/>')
        drawn.append(f'<text class="limit-label" x="{at + 6:.1f}" y="{floor - 6}">since here</text>')
    for window, anchor in ((0, "start"), (len(course.logs) - 1, "end")):
        label = escape(course.windows[window].date[:16])
        drawn.append(f'<text x="{x(window):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    described = (
        f"{len(course.logs)} windows, {show_share(abs(course.drift.ratio - 1))} from the forecast. {_verdict(course)}"
    )
    name = f"drift-{number}"
    return svg(_WIDTH, _HEIGHT, "".join(drawn), name=name, title="Measured over predicted", description=described)
