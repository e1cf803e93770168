"""A step's timeline drawn: a row for each stream of each rank, any part of it as large as the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from foretell.report import ticks
from foretell.report.charts import svg
from foretell.simulate.timeline import Span, Timeline
from foretell.units import Seconds, show_seconds

_ROW, _GAP, _TOP = 26, 8, 22
_LEAST_LEFT: Final = 92  # pixels for the names of rows
_LETTER: Final = 6.6  # pixels of one letter
_MAX_ROWS: Final = 24
_MAX_LETTERS: Final = 40
_FINEST: Final = 0.7  # pixels: what is narrower is drawn together with its neighbours
_ORDER: Final = ("host", "device", "network")
_APART: Final = 130  # pixels between two ticks, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a step, in shares of it."""

    begin: float = 0.0
    end: float = 1.0

    @property
    def width(self) -> float:
        return self.end - self.begin

    def zoomed(self, factor: float) -> Window:
        """Around its middle; at most the whole."""
        half = min(self.width * factor, 1.0) / 2
        middle = min(max((self.begin + self.end) / 2, half), 1 - half)
        return Window(begin=middle - half, end=middle + half)

    def moved(self, part: float) -> Window:
        """By a part of its own width, as far as there is something."""
        by = min(max(part * self.width, -self.begin), 1 - self.end)
        return Window(begin=self.begin + by, end=self.end + by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zoom:
    """A server that draws any part: `page` is the report's address, `part` the timeline's alone."""

    page: str
    part: str
    window: Window

    def links(self, place: str) -> str:
        """Ways to other parts: plain links, which htmx takes for the timeline alone; a script may read where we are."""
        now = self.window
        ways = {
            "Zoom in": now.zoomed(0.5),
            "Zoom out": now.zoomed(2.0),
            "Earlier": now.moved(-0.5),
            "Later": now.moved(0.5),
            "All": Window(),
        }
        data = f'data-begin="{now.begin:.9f}" data-end="{now.end:.9f}" data-part="{escape(self.part)}"'
        items = "".join(
            f'<a href="{escape(self.page)}?{_query(to)}" hx-get="{escape(self.part)}?{_query(to)}" hx-target="{place}">{name}</a>'
            for name, to in ways.items()
        )
        return f'<p class="zoom" {data}>{items}</p>'


def _query(window: Window) -> str:
    return f"begin={window.begin:.9f}&amp;end={window.end:.9f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Where a part of a step lies in a drawing: right of the names of its rows."""

    left: int
    width: int
    begin: Seconds
    end: Seconds

    @property
    def scale(self) -> float:
        """Pixels of a second."""
        return (self.width - self.left) / ((self.end - self.begin) or 1.0)

    def at(self, moment: Seconds) -> float:
        """The pixel of a moment, or of the nearest that is drawn."""
        return self.left + (min(max(moment, self.begin), self.end) - self.begin) * self.scale


@dataclass(slots=True)
class _Block:
    """Spans that follow each other too closely to be told apart, drawn as one."""

    left: float
    right: float
    spans: list[Span]


def timeline_chart(timeline: Timeline, *, name: str, width: int, window: Window | None = None) -> str:
    window = window or Window()
    whole = timeline.makespan or 1.0
    rows = _rows(timeline.spans)
    names = _names(list(rows))
    left = max(_LEAST_LEFT, round(_LETTER * max(map(len, names), default=0)) + 8)
    axis = _Axis(left=left, width=width, begin=window.begin * whole, end=window.end * whole)
    height = _TOP + max(len(rows), 1) * (_ROW + _GAP)
    drawn = list(_ticks(axis, _TOP + len(rows) * (_ROW + _GAP), max((width - left) // _APART, 1)))
    for number, (row, label) in enumerate(zip(rows, names, strict=True)):
        top = _TOP + number * (_ROW + _GAP)
        drawn.append(f'<text x="0" y="{top + _ROW / 2 + 4}">{escape(label)}</text>')
        seen = (span for span in rows[row] if span.end > axis.begin and span.start < axis.end)
        drawn += [_block(block, row[1], top) for block in _blocks(seen, axis)]
        drawn.append(f'<rect class="outline" x="{left}" y="{top}" width="{width - left}" height="{_ROW}"/>')
    shown = f"From {show_seconds(axis.begin)} to {show_seconds(axis.end)}"
    described = f"{shown} of {show_seconds(whole)}; {len(rows)} streams."
    return svg(width, height, "".join(drawn), name=name, title="Timeline of the step", description=described)


def _rows(spans: Sequence[Span]) -> dict[tuple[str, str], list[Span]]:
    found: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        found.setdefault((span.role, span.stream), []).append(span)
    roles = list(dict.fromkeys(role for role, _ in found))
    order = sorted(found, key=lambda row: (roles.index(row[0]), _ORDER.index(row[1].partition(" ")[0]), row[1]))
    return {row: sorted(found[row], key=lambda span: span.start) for row in order[:_MAX_ROWS]}


def _names(rows: Sequence[tuple[str, str]]) -> list[str]:
    """What each row is of: streams alone where there is one role."""
    alone = len({role for role, _ in rows}) == 1
    return [stream if alone else f"{role} {stream}" for role, stream in rows]


def _blocks(spans: Iterator[Span], axis: _Axis) -> Iterator[_Block]:
    block: _Block | None = None
    for span in spans:
        left, right = axis.at(span.start), axis.at(span.end)
        narrow = right - left < _FINEST and (block is None or block.right - block.left < 3 * _FINEST)
        if block is not None and left - block.right < _FINEST and narrow and span.phase == block.spans[-1].phase:
            block.right = max(block.right, right)
            block.spans.append(span)
            continue
        if block is not None:
            yield block
        block = _Block(left, right, [span])
    if block is not None:
        yield block


def _block(block: _Block, stream: str, top: float) -> str:
    first, last = block.spans[0], block.spans[-1]
    kind = stream.partition(" ")[0]
    key = {"host": "host", "network": "communication"}.get(kind, first.phase)
    more = f" and {len(block.spans) - 1:,} more" if len(block.spans) > 1 else ""
    what = f"{first.name.removeprefix('aten.')}{more}, {show_seconds(sum(span.duration for span in block.spans))}"
    where = f" in {first.module}" if first.module else ""
    label = ""
    if (fits := int((block.right - block.left) / _LETTER)) >= 4 and last is first:
        shown = first.name.removeprefix("aten.")[: min(fits, _MAX_LETTERS)]
        label = f'<text class="on-colour" x="{block.left + 3:.1f}" y="{top + _ROW / 2 + 4}">{escape(shown)}</text>'
    return (
        f'<rect class="segment" x="{block.left:.1f}" y="{top}" width="{max(block.right - block.left, 0.4):.1f}" '
        f'height="{_ROW}" fill="var(--c-{key})"><title>{escape(what + where)}, at {show_seconds(first.start)}</title></rect>'
        + label
    )


def _ticks(axis: _Axis, bottom: float, count: int) -> Iterator[str]:
    for at, label in ticks.seconds(axis.begin, axis.end, count):
        x = axis.at(at)
        along = (at - axis.begin) / (axis.end - axis.begin)
        anchor = "start" if along < 0.02 else "end" if along > 0.98 else "middle"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{bottom:.0f}"/>'
        yield f'<text x="{x:.1f}" y="12" text-anchor="{anchor}">{label}</text>'
