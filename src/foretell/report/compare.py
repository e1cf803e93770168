"""Forecasts side by side: a table for the terminal, and a page with bars of throughput, time and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from rich.console import Group, RenderableType

from foretell.forecasting.compile_gain import CompileGain
from foretell.forecasting.result import Forecast
from foretell.report import findings
from foretell.report.charts import Lane, stacked_bars
from foretell.report.compiling import GAIN_HEADS, gain_figures, gain_section
from foretell.report.findings import Part
from foretell.report.page import document, figure, keys, section, table, write_page
from foretell.report.terminal import grid
from foretell.units import or_dash, show_bytes, show_dollars, show_rate, show_seconds, show_share

_WIDTH = 720
_HEADS = ("Step", "Samples/s", "Relative", "MFU", "Memory", "$/M samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A question and its forecast, or why there is none."""

    label: str
    forecast: Forecast | None = None
    why: str = ""
    gain: CompileGain | None = None  # of a compiled step, over the eager one

    def to_dict(self) -> dict[str, Any]:
        answer = {"label": self.label, "why": self.why, "forecast": self.forecast.to_dict() if self.forecast else None}
        return answer | ({"compiled": self.gain.to_dict()} if self.gain else {})


def rate(f: Forecast) -> float:
    """Samples per second, or steps where samples are not known."""
    return f.throughput.samples_per_second or 1 / f.step_time.seconds


def comparison_table(found: Sequence[Compared]) -> RenderableType:
    shown = grid("", *_HEADS, left=("",), wraps=("",))
    first = next(rate(a.forecast) for a in found if a.forecast)
    for row in found:
        shown.add_row(row.label, *_figures(row, first))
    gains = {row.label: row.gain for row in found if row.gain}
    return Group(shown, gain_section(gains)) if gains else shown


def _figures(row: Compared, first: float) -> tuple[str, ...]:
    f = row.forecast
    if f is None:
        return ("cannot be", "–", "–", "–", row.why[:60], "–")
    dollars, samples = f.cost.dollars_per_hour, f.throughput.samples_per_second
    each = dollars / 3600 / samples * 1e6 if dollars and samples else None
    return (
        show_seconds(f.step_time.seconds),
        or_dash(samples, show_rate),
        _relative(f, first),
        or_dash(f.throughput.mfu, show_share),
        show_bytes(f.memory.total) + ("" if f.memory.fits else ", does not fit"),
        or_dash(each, show_dollars),
    )


def _relative(f: Forecast, first: float) -> str:
    """Samples per second over the first's, with the 90 % interval of this one's step."""
    step, times = f.step_time, rate(f) / first
    if step.low is None or step.high is None:
        return f"{times:.2f}×"
    low, high = (times * step.seconds / end for end in (step.high, step.low))
    return f"{times:.2f}× ({low:.2f} to {high:.2f})"


def write_comparison(found: Sequence[Compared], path: str | os.PathLike[str]) -> None:
    write_page(comparison_page(found), path)


def comparison_page(found: Sequence[Compared]) -> str:
    first = next(rate(a.forecast) for a in found if a.forecast)
    heads = ("Question", *_HEADS)
    rows = [(escape(a.label), *map(escape, _figures(a, first))) for a in found]
    there = [(number, a.forecast) for number, a in enumerate(found, 1) if a.forecast]
    parts = {part.key: part.label for _, f in there for part in findings.time_parts(f)}
    gains = [(escape(a.label), *map(escape, gain_figures(a.gain))) for a in found if a.gain]
    body = [
        f"<h1>{len(found)} forecasts side by side</h1>",
        table(heads, rows),
        *([section("Compiled, beside the eager step", "", table(("Question", *GAIN_HEADS), gains))] if gains else []),
        figure(
            "Throughput",
            "Samples per second, relative to the first; numbers are rows of the table.",
            _rates(there, first),
        ),
        figure(
            "Where a sample's time goes",
            "Of the whole cluster, to one scale: steps have unequal batches.",
            _times(there),
            keys(parts),
        ),
    ]
    return document(
        "Forecasts side by side", "\n".join(body), kind="comparison", footer="Forecasts, before the job ran."
    )


def _rates(there: Sequence[tuple[int, Forecast]], first: float) -> str:
    lanes = [
        Lane(label=f"{number}", parts=[Part(key="forward", label="throughput", amount=rate(f) / first)])
        for number, f in there
    ]
    most = max(rate(f) / first for _, f in there)
    return stacked_bars(lanes, most, lambda x: f"{x:.2f}×", name="rates", title="Throughput", width=_WIDTH)


def _times(there: Sequence[tuple[int, Forecast]]) -> str:
    """Parts of steps, divided by their samples."""
    lanes = [
        Lane(label=f"{number}", parts=[replace(p, amount=p.amount / _samples(f)) for p in findings.time_parts(f)])
        for number, f in there
    ]
    longest = max(1 / rate(f) for _, f in there)
    return stacked_bars(lanes, longest, show_seconds, name="times", title="Where a sample's time goes", width=_WIDTH)


def _samples(f: Forecast) -> float:
    """Of a step; 1 where they are not known."""
    return rate(f) * f.step_time.seconds
