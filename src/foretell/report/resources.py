"""What a step takes of its resources over time, as Driple looks at jobs: device, memory bandwidth, network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from foretell.cost.roofline import work_of
from foretell.forecasting.result import Forecast, Use
from foretell.report.charts import svg
from foretell.simulate.timeline import WHOLE_PASS, Span
from foretell.units import show_bandwidth, show_seconds, show_share

_POINTS: Final = 160
_HEIGHT, _LEFT, _GAP = 52, 92, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How much of one resource is used in each of equal parts of the step; 1 is `most`."""

    label: str
    key: str
    values: tuple[float, ...]
    use: Use
    show: Callable[[float], str]


def resource_series(forecast: Forecast, points: int = _POINTS) -> tuple[Series, ...]:
    """Of the drawn rank. Shapes come from its timeline, heights from what the forecast says of each resource's peak."""
    spans, uses = _first_rank(forecast), forecast.resources
    device = [span for span in spans if span.stream == "device"]
    network = [span for span in spans if span.stream.startswith("network")]
    moved = _moved(forecast, device)
    whole = forecast.timeline.makespan or 1.0
    busy = _binned(device, [1.0] * len(device), whole, points)
    found = [
        Series(
            label="device", key="forward", values=tuple(min(v, 1.0) for v in busy), use=uses.device, show=show_share
        ),
        Series(
            label="memory", key="activations", use=uses.memory_bandwidth, show=show_share,
            values=_shaped(device, moved, whole, points),
        ),
    ]  # fmt: skip
    if network:
        sent = [span.nbytes for span in network]
        found.append(
            Series(
                label="network", key="communication", use=uses.network_tx, show=show_bandwidth,
                values=_shaped(network, sent, whole, points),
            )
        )  # fmt: skip
    return tuple(found)


def resource_chart(series: Sequence[Series], *, name: str, width: int) -> str:
    drawn = []
    for number, each in enumerate(series):
        top = number * (_HEIGHT + _GAP)
        bottom, across = top + _HEIGHT, (width - _LEFT) / len(each.values)
        steps = []
        for i, value in enumerate(each.values):
            y = bottom - value * _HEIGHT
            steps += [f"{_LEFT + i * across:.1f},{y:.1f}", f"{_LEFT + (i + 1) * across:.1f},{y:.1f}"]
        title = f"{each.label}: active {show_seconds(each.use.active_seconds)}, at most {each.show(each.use.peak)}"
        drawn += [
            f'<text x="0" y="{top + 12}">{escape(each.label)}</text>',
            f'<text x="0" y="{top + 28}">{escape(each.show(each.use.peak))}</text>',
            f'<polygon class="segment" points="{_LEFT},{bottom} {" ".join(steps)} {width},{bottom}" '
            f'fill="var(--c-{each.key})"><title>{escape(title)}</title></polygon>',
            f'<line class="axis" x1="{_LEFT}" x2="{width}" y1="{bottom}" y2="{bottom}"/>',
        ]
    described = "; ".join(
        f"{each.label}: active {show_seconds(each.use.active_seconds)}, idle {show_seconds(each.use.idle_seconds)}"
        for each in series
    )
    height = len(series) * (_HEIGHT + _GAP) - _GAP + 4
    return svg(width, height, "".join(drawn), name=name, title="Resources over the step", description=described)


def _first_rank(forecast: Forecast) -> list[Span]:
    spans = forecast.timeline.spans
    return [span for span in spans if span.role == spans[0].role]


def _moved(forecast: Forecast, spans: Sequence[Span]) -> list[float]:
    """Bytes of memory that each span moves: an op's own; of a whole pass, what its phase moves in as many passes."""
    roles = {rank.role.name: rank.role.graph for rank in forecast.ranks}
    graph = roles.get(spans[0].role, forecast.graph) if spans else forecast.graph
    traffic = [work_of(op.signature).traffic for op in graph.ops]
    by_phase: dict[str, float] = {}
    for op, nbytes, times in zip(graph.ops, traffic, graph.op_times, strict=True):
        by_phase[op.phase] = by_phase.get(op.phase, 0.0) + nbytes * times
    whole = [span for span in spans if span.task == WHOLE_PASS]
    seconds: dict[str, float] = {}
    for span in whole:
        seconds[span.phase] = seconds.get(span.phase, 0.0) + span.duration
    return [
        by_phase.get(s.phase, 0.0) * s.duration / (seconds[s.phase] or 1.0) if s.task == WHOLE_PASS
        else traffic[s.task] if s.task < len(traffic) else 0.0
        for s in spans
    ]  # fmt: skip


def _shaped(spans: Sequence[Span], amounts: Sequence[float], whole: float, points: int) -> tuple[float, ...]:
    """Amounts per second, the highest being 1."""
    rates = [amount / span.duration if span.duration > 0 else 0.0 for span, amount in zip(spans, amounts, strict=True)]
    values = _binned(spans, rates, whole, points)
    most = max(values, default=0.0)
    return tuple(value / most if most else 0.0 for value in values)


def _binned(spans: Sequence[Span], heights: Sequence[float], whole: float, points: int) -> list[float]:
    """The mean height over each part of the step."""
    each = whole / points
    found = [0.0] * points
    for span, height in zip(spans, heights, strict=True):
        first, last = int(span.start / each), min(int(span.end / each), points - 1)
        for i in range(min(first, points - 1), last + 1):
            inside = min(span.end, (i + 1) * each) - max(span.start, i * each)
            found[i] += max(inside, 0.0) / each * height
    return found
