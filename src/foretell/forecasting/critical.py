"""The critical path in words: which modules and collectives the length of a step hangs on."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from foretell.forecasting.result import Critical
from foretell.simulate.timeline import Span, Timeline
from foretell.units import Seconds

_SHOWN: Final = 12


def critical_parts(timeline: Timeline) -> tuple[Critical, ...]:
    """The longest parts of the path, longest first; of micro-steps that repeat, the one that is drawn."""
    parts: dict[tuple[str, str], Seconds] = defaultdict(float)
    for span in timeline.critical_path():
        parts[span.stream.partition(" ")[0], _called(span)] += span.duration
    longest = sorted(parts.items(), key=lambda part: -part[1])[:_SHOWN]
    return tuple(Critical(stream=stream, name=name, seconds=seconds) for (stream, name), seconds in longest if seconds)


def _called(span: Span) -> str:
    if span.module or span.kind:
        return span.module or span.name
    whole_pass = " of micro-batch " in span.name
    return f"{span.phase} of {span.role}" if whole_pass else f"{span.phase} outside modules"
