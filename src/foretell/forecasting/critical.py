"""The longest parts of a step's critical path: repeated blocks as one, and as often as micro-steps repeat."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.result import Critical
from foretell.graph import Graph
from foretell.program import Role
from foretell.simulate.timeline import WHOLE_PASS, OnPath, Span, Timeline
from foretell.units import Seconds

_PARTS: Final = 12
_BLOCK: Final = re.compile(r"\.\d+(?=\.|$)")  # the number of a repeated block, in a module's name
_Parts = dict[tuple[str, str], Seconds]  # by stream and name


def critical_path(
    timeline: Timeline, roles: Sequence[Role], around: Mapping[str, Seconds] | None = None
) -> tuple[Critical, ...]:
    """The longest first, then all shorter ones as one: they sum to the step, with what is `around` it by name."""
    parts = _of_several(timeline, roles) if timeline.path is None else _of_one_rank(timeline.path, roles[0])
    chain = sum(parts.values())
    # A chain begins with empty queues and has micro-steps once; of a step among others it has the same shares.
    scale = timeline.period / chain if chain else 0.0
    whole = {key: seconds * scale for key, seconds in parts.items() if seconds > 0}
    whole |= {("around", name): seconds for name, seconds in (around or {}).items() if seconds > 0}
    ordered = sorted(whole.items(), key=lambda part: -part[1])
    longest = [Critical(stream=stream, name=name, seconds=seconds) for (stream, name), seconds in ordered[:_PARTS]]
    if rest := ordered[_PARTS:]:
        name = f"{len(rest)} shorter part{'s' * (len(rest) > 1)}"
        longest.append(Critical(stream="all", name=name, seconds=sum(seconds for _, seconds in rest)))
    return tuple(longest)


def _of_one_rank(path: OnPath, role: Role) -> _Parts:
    """As it was found without looking at every span."""
    parts: _Parts = defaultdict(float)
    graph = role.graph
    names, part_of_op = graph.remember("parts", lambda: _op_parts(graph))
    for stream, seconds in (("host", path.host), ("device", path.device)):
        for name, together in zip(names, np.bincount(part_of_op, seconds * graph.runs, len(names)), strict=True):
            parts[stream, name] += float(together)
    for number in np.flatnonzero(path.collectives).tolist():
        parts["network", _without_number(role.collectives[number].name)] += float(path.collectives[number])
    return parts


def _of_several(timeline: Timeline, roles: Sequence[Role]) -> _Parts:
    """Stages of a pipeline have every micro-step drawn; other ranks have them once, as often as they run."""
    path = timeline.critical_path()
    drawn_each = any(span.task == WHOLE_PASS for span in timeline.spans)
    times = {} if drawn_each else {role.name: role.graph.op_times for role in roles}
    parts: _Parts = defaultdict(float)
    for span in path:
        runs = times.get(span.role, ())
        often = runs[span.task] if 0 <= span.task < len(runs) else 1
        parts[span.stream.partition(" ")[0], _without_number(_part_name(span))] += span.duration * often
    for before, after in pairwise(path):
        parts["host", "waiting for the host"] += max(after.start - before.end, 0.0)
    return parts


def _part_name(span: Span) -> str:
    if span.task == WHOLE_PASS and not span.kind and not span.module:
        return f"{span.phase if span.stream == 'device' else span.name} of {span.role}"
    if span.peer:
        return (
            f"{span.phase} from {span.peer} to {span.role}"
            if span.kind == "receive"
            else f"{span.phase} to {span.peer}"
        )
    return span.module or (span.name if span.kind else _outside(span.phase))


def _op_parts(graph: Graph) -> tuple[list[str], npt.NDArray[np.intp]]:
    """The names of parts, and the number of the one that each op belongs to."""
    named = {module: _without_number(module) for module in dict.fromkeys(op.module for op in graph.ops)}
    names = [named[op.module] or _outside(op.phase) for op in graph.ops]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return list(number), np.array([number[name] for name in names], dtype=np.intp)


def _outside(phase: str) -> str:
    return f"{phase} outside modules"


def _without_number(name: str) -> str:
    return _BLOCK.sub(".*", name)
