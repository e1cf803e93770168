"""A pipeline's schedule drawn: a row for each stage, a box for each pass with the number of its micro-batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

from foretell.report import ticks
from foretell.report.charts import svg
from foretell.simulate.timeline import WHOLE_PASS, Span, Timeline
from foretell.units import Seconds, show_seconds

_ROW, _GAP, _LEFT, _TOP = 24, 4, 70, 22
_LETTER: Final = 7.0  # pixels of a digit
_BATCH: Final = re.compile(r" of micro-batch (\d+)")
_MAX_STAGES: Final = 64
_APART: Final = 130  # pixels between two ticks


class Pass(NamedTuple):
    """What one stage does for one micro-batch, or its update."""

    stage: str
    phase: str
    micro_batch: int | None
    start: Seconds
    end: Seconds
    name: str


def passes(spans: Sequence[Span]) -> list[Pass]:
    """Of all stages. A pass that is drawn op by op is one box: its ops follow each other on one device in one phase."""
    found: list[Pass] = []
    open_at: dict[str, int] = {}  # stage → the pass of ops that is still growing
    for span in sorted((s for s in spans if s.stream == "device"), key=lambda s: s.start):
        if span.task == WHOLE_PASS:
            batch = _BATCH.search(span.name)
            number = int(batch[1]) if batch else None
            found.append(Pass(span.role, span.phase, number, span.start, span.end, span.name))
            open_at.pop(span.role, None)
            continue
        at = open_at.get(span.role)
        if at is not None and found[at].phase == span.phase:
            found[at] = found[at]._replace(end=max(found[at].end, span.end))
            continue
        open_at[span.role] = len(found)
        number = None if span.phase == "optimizer" else 0  # only the first micro-batch is drawn op by op
        name = "update" if number is None else f"{span.phase} of micro-batch 0"
        found.append(Pass(span.role, span.phase, number, span.start, span.end, name))
    return found


def is_pipeline(timeline: Timeline) -> bool:
    return any(span.task == WHOLE_PASS for span in timeline.spans)


def schedule_chart(timeline: Timeline, *, name: str, width: int) -> str:
    boxes = passes(timeline.spans)
    stages = list(dict.fromkeys(span.role for span in timeline.spans))[:_MAX_STAGES]
    end = max((box.end for box in boxes), default=0.0) or 1.0
    scale = (width - _LEFT) / end
    height = _TOP + len(stages) * (_ROW + _GAP)
    drawn = [_tick(_LEFT + at * scale, label, height) for at, label in ticks.seconds(0.0, end, width // _APART)]
    for number, stage in enumerate(sorted(stages, key=_number)):
        top = _TOP + number * (_ROW + _GAP)
        drawn.append(f'<text x="0" y="{top + _ROW / 2 + 4}">{escape(stage[:10])}</text>')
        drawn += _boxes([box for box in boxes if box.stage == stage], top, scale)
    described = f"{len(stages)} stages, {len(boxes)} passes drawn of a step of {show_seconds(timeline.period)}."
    return svg(width, height, "".join(drawn), name=name, title="Schedule of the pipeline", description=described)


def _number(stage: str) -> tuple[int, str]:
    digits = re.search(r"\d+", stage)
    return (int(digits[0]) if digits else 0, stage)


def _boxes(boxes: Sequence[Pass], top: float, scale: float) -> Iterator[str]:
    for box in boxes:
        left, wide = _LEFT + box.start * scale, (box.end - box.start) * scale
        label = "" if box.micro_batch is None else f"{box.micro_batch}"
        title = escape(f"{box.name}: {show_seconds(box.end - box.start)}, from {show_seconds(box.start)}")
        yield (
            f'<rect class="segment" x="{left:.1f}" y="{top}" width="{max(wide - 0.6, 0.4):.1f}" height="{_ROW}" '
            f'fill="var(--c-{box.phase})"><title>{title}</title></rect>'
        )
        if label and wide > _LETTER * len(label) + 3:
            yield (
                f'<text class="on-colour" x="{left + wide / 2:.1f}" y="{top + _ROW / 2 + 4}" '
                f'text-anchor="middle">{label}</text>'
            )


def _tick(x: float, label: str, height: float) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{height}"/>'
        f'<text x="{x:.1f}" y="{_TOP - 8}" text-anchor="middle">{escape(label)}</text>'
    )
