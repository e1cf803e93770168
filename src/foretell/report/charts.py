"""Charts as inline SVG, drawn by hand: bars of parts, and memory over the step. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from foretell.report.findings import Part
from foretell.report.memory import MemorySeries
from foretell.units import GIB, KIB, MIB, TIB, Bytes, show_bytes, show_share

_LETTER = 6.6  # width of a 12-pixel letter, near enough to keep labels apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One bar: its label, and parts laid end to end."""

    label: str
    parts: Sequence[Part]


def stacked_bars(
    lanes: Sequence[Lane],
    whole: float,
    show: Callable[[float], str],
    *,
    name: str,
    title: str,
    width: int,
    limit: Part | None = None,
) -> str:
    """Bars to one scale, `whole` as wide as the chart; a part's tooltip gives its number, `limit` is a line across."""
    thick, gap, left = 34, 12, 64 if len(lanes) > 1 else 0
    scale = (width - left) / whole if whole else 0.0
    drawn = [
        bar
        for row, lane in enumerate(lanes)
        for bar in _bar(lane, row * (thick + gap), thick, left, width - left, whole, show)
    ]
    described = "; ".join(
        f"{lane.label}: " + ", ".join(f"{part.label} {show(part.amount)}" for part in lane.parts) for lane in lanes
    )
    height = len(lanes) * (thick + gap) - gap
    if limit is not None:
        x = left + limit.amount * scale
        at, anchor = (x + 6, "start") if x < width / 2 else (x - 6, "end")
        label = escape(f"{limit.label} {show(limit.amount)}")
        drawn.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="-4" y2="{height + 22}"/>')
        drawn.append(f'<text class="limit-label" x="{at:.1f}" y="{height + 19}" text-anchor="{anchor}">{label}</text>')
        height += 24
    return svg(width, height, "".join(drawn), name=name, title=title, description=described)


def _bar(
    lane: Lane, top: float, thick: float, left: float, width: float, whole: float, show: Callable[[float], str]
) -> Iterator[str]:
    if left:
        yield f'<text x="0" y="{top + thick / 2 + 4}">{escape(lane.label)}</text>'
    at = float(left)
    for part in lane.parts:
        share = part.amount / whole if whole else 0.0
        tooltip = f"{part.label}: {show(part.amount)} ({show_share(share)})"
        yield (
            f'<rect class="segment" x="{at:.2f}" y="{top}" width="{max(share * width - 1, 0.6):.2f}" '
            f'height="{thick}" fill="var(--c-{part.key})"><title>{escape(tooltip)}</title></rect>'
        )
        at += share * width
    yield f'<rect class="outline" x="{left}" y="{top}" width="{width}" height="{thick}"/>'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """The plotting area and the two scales."""

    left: float
    top: float
    right: float
    bottom: float
    ops: int
    most: Bytes

    def x(self, position: float) -> float:
        return self.left + (self.right - self.left) * position / max(self.ops - 1, 1)

    def y(self, nbytes: float) -> float:
        return self.bottom - (self.bottom - self.top) * nbytes / self.most


def memory_over_step(series: MemorySeries, *, room: Bytes, place: str, name: str, width: int, height: int) -> str:
    """Layers of bytes after each op, the peak marked, and a line where the allocator's room ends."""
    near = 0 < room <= series.peak_allocated * 2.5  # a far limit would flatten the hill to nothing
    most = max(series.peak_allocated, room if near else 0) * 1.16
    plot = _Plot(left=58, top=14, right=width - 2, bottom=height - 30, ops=series.ops, most=round(most) or 1)
    drawn = (
        *_gridlines(plot),
        *_layers(series, plot),
        _crest(series, plot),
        *_phases(series, plot),
        *(_limit(plot, room) if near else ()),
        *_peak(series, plot, place),
    )
    described = (
        f"Peak {show_bytes(series.peak_allocated)} at op {series.peak + 1} of {series.ops}, in {place}; "
        f"the allocator has room for {show_bytes(max(room, 0))}."
    )
    return svg(width, height, "".join(drawn), name=name, title="Memory over the step", description=described)


def _gridlines(plot: _Plot) -> Iterator[str]:
    for value in byte_ticks(plot.most):
        y = plot.y(value)
        kind = "grid" if value else "axis"
        yield f'<line class="{kind}" x1="{plot.left}" x2="{plot.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = show_bytes(value) if value else "0"
        yield f'<text x="{plot.left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def byte_ticks(most: Bytes, wanted: int = 5) -> list[int]:
    """Round numbers of bytes from 0 up: 1, 2 or 5 times a power of ten of the fitting binary unit."""
    unit = next((u for u in (TIB, GIB, MIB, KIB) if most >= u), 1)
    step = most / unit / wanted
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    nice = next(m for m in (1, 2, 5, 10) if m * power >= step) * power
    return [round(i * nice * unit) for i in range(int(most / unit / nice) + 1)]


def _layers(series: MemorySeries, plot: _Plot) -> Iterator[str]:
    floor = [0] * len(series.positions)
    for layer in series.layers:
        roof = [low + more for low, more in zip(floor, layer.nbytes, strict=True)]
        there = [f"{plot.x(p):.1f},{plot.y(b):.1f}" for p, b in zip(series.positions, roof, strict=True)]
        back = [f"{plot.x(p):.1f},{plot.y(b):.1f}" for p, b in zip(series.positions, floor, strict=True)]
        tooltip = f"{layer.label}: at most {show_bytes(max(layer.nbytes))}"
        yield (
            f'<polygon class="segment" points="{" ".join(there)} {" ".join(reversed(back))}" '
            f'fill="var(--c-{layer.key})"><title>{escape(tooltip)}</title></polygon>'
        )
        floor = roof


def _crest(series: MemorySeries, plot: _Plot) -> str:
    points = (f"{plot.x(p):.1f},{plot.y(b):.1f}" for p, b in zip(series.positions, series.allocated, strict=True))
    return f'<polyline class="crest" points="{" ".join(points)}"/>'


def _phases(series: MemorySeries, plot: _Plot) -> Iterator[str]:
    for stretch in series.stretches:
        start, end = plot.x(stretch.start), plot.x(stretch.end - 1)
        label = stretch.phase + (f" ×{stretch.times}" if stretch.times > 1 else "")
        yield f'<line class="axis" x1="{start:.1f}" x2="{start:.1f}" y1="{plot.bottom}" y2="{plot.bottom + 6}"/>'
        if end - start > _LETTER * len(label):
            middle = (start + end) / 2
            yield f'<text x="{middle:.1f}" y="{plot.bottom + 20}" text-anchor="middle">{escape(label)}</text>'


def _limit(plot: _Plot, room: Bytes) -> Iterator[str]:
    y = plot.y(room)
    yield f'<line class="limit" x1="{plot.left}" x2="{plot.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
    label = f"room for {show_bytes(room)}"
    yield f'<text class="limit-label halo" x="{plot.right}" y="{y - 6:.1f}" text-anchor="end">{label}</text>'


def _peak(series: MemorySeries, plot: _Plot, place: str) -> Iterator[str]:
    if series.peak < 0:
        return
    x, y = plot.x(series.peak), plot.y(series.peak_allocated)
    amount = f"peak {show_bytes(series.peak_allocated)}"
    room = max(int((plot.right - plot.left) / _LETTER) - len(amount) - 6, 8)
    where = place if len(place) <= room else "…" + place[-room + 1 :]
    half = (len(amount) + len(where) + 4) * _LETTER / 2
    middle = min(max(x, plot.left + half), plot.right - half)
    yield f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    yield (
        f'<text class="halo" x="{middle:.1f}" y="{y - 12:.1f}" text-anchor="middle">'
        f'<tspan class="strong">{escape(amount)}</tspan>{escape(f" in {where}")}</text>'
    )


def svg(
    width: float,
    height: float,
    body: str,
    *,
    name: str,
    title: str,
    description: str,
    standalone: bool = False,
    scaled: bool = False,
) -> str:
    """A drawing with a name and a description for those who hear it; `standalone` where it is a file of its own.

    `scaled`: there is no other for a phone, which has its letters larger instead.
    """
    kind = 'xmlns="http://www.w3.org/2000/svg" ' if standalone else 'class="scaled" ' if scaled else ""
    role = "group" if "<a " in body else "img"  # links in a picture are to be found
    return (
        f'<svg {kind}viewBox="0 0 {width} {height}" role="{role}" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f"{body}</svg>"
    )
