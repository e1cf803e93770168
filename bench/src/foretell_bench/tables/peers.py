"""`foretell bench peers`: Foretell and other tools on the same published jobs, in one run; failures are counted on all sides."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.errors import InputError
from foretell.units import Seconds
from foretell_bench.graphs import Say, quiet
from foretell_bench.peers.tool import PeerAnswer, Tool, effort
from foretell_bench.peers.tools import tools
from foretell_bench.sources.published_steps import Job, jobs
from foretell_bench.tables.figures import Figure
from foretell_bench.tables.published_rows import may_be_looked_at

OURS: Final = "Foretell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one tool says of one job, against what was published."""

    tool: str
    job: str
    error: float | None = None  # of seconds per step: predicted over published, less one
    memory_error: float | None = None
    took: Seconds | None = None
    why: str = ""  # no answer, or none to what was published


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """All answers, and how many lines each tool's user writes."""

    answers: Sequence[Reply]
    lines: dict[str, int]


def run(
    data: Path,
    say: Say = quiet,
    *,
    llm_analysis: str | None = None,
    only_open: bool = False,
    most: int | None = None,
    keep: Path | None = None,
    workers: int = 1,
) -> Peers:
    """Every tool on every job; `keep` goes on where a run was stopped."""
    chosen = [j for j in jobs(data).items if not only_open or may_be_looked_at(j.source, j.id)]
    chosen = sorted(chosen, key=lambda j: j.ask.key)[:most]
    compared: Sequence[Tool] = tools(data, llm_analysis)
    known = {(s.tool, s.job): s for s in read(keep).answers} if keep is not None and keep.exists() else {}
    lines = {tool.name: effort(tool) for tool in compared}
    missing = [(j, frozenset(t.name for t in compared if (t.name, j.id) not in known)) for j in chosen]
    wanted = [(job, names) for job, names in missing if names]
    with ExitStack() as stack:
        for number, replies in enumerate(_replies(wanted, data, llm_analysis, workers, stack), start=1):
            known |= {(reply.tool, reply.job): reply for reply in replies}
            say(f"went through {number} of {len(wanted)} jobs")
            if keep is not None:
                save(Peers(answers=list(known.values()), lines=lines), keep)
    return Peers(answers=list(known.values()), lines=lines)


def _replies(
    wanted: Sequence[tuple[Job, frozenset[str]]], data: Path, llm_analysis: str | None, workers: int, stack: ExitStack
) -> Iterable[list[Reply]]:
    """Of each job, by the tools that are named: here, or in several processes, each job in one."""
    ask = partial(_of_job, data, llm_analysis)
    if workers == 1:
        return map(ask, wanted)
    spawning = multiprocessing.get_context("spawn")
    return stack.enter_context(ProcessPoolExecutor(workers, spawning)).map(ask, wanted)


def _of_job(data: Path, llm_analysis: str | None, wanted: tuple[Job, frozenset[str]]) -> list[Reply]:
    job, names = wanted
    return [_reply(tool, job) for tool in _tools(data, llm_analysis) if tool.name in names]


@lru_cache(maxsize=1)
def _tools(data: Path, llm_analysis: str | None) -> Sequence[Tool]:
    """Once for each process: they keep what they have found."""
    return tools(data, llm_analysis)


def _reply(tool: Tool, job: Job) -> Reply:
    try:
        found = tool.answer(job)
    except (ValueError, TypeError, KeyError, RuntimeError, AttributeError) as error:  # of a rival's own code
        found = PeerAnswer(why=f"{type(error).__name__}: {error}"[:200])
    time = found.seconds / job.seconds - 1 if found.seconds and job.seconds else None
    memory = found.memory / job.memory - 1 if found.memory and job.memory else None
    nothing = time is None and memory is None and not found.why
    why = "answers nothing that was published of it" if nothing else found.why
    return Reply(tool=tool.name, job=job.id, error=time, memory_error=memory, took=found.took, why=why)


def figures(found: Peers) -> list[Figure]:
    """Per tool: errors beside Foretell's on the same jobs, how many it answered, how long it took, what must be written."""
    made: list[Figure] = []
    ours = {s.job: s for s in found.answers if s.tool == OURS}
    for tool in dict.fromkeys(s.tool for s in found.answers):
        rows = [s for s in found.answers if s.tool == tool]
        for measure, name in (("error", "step time"), ("memory_error", "memory")):
            both = [(getattr(s, measure), getattr(ours[s.job], measure, None)) for s in rows if s.job in ours]
            same = [(theirs, own) for theirs, own in both if theirs is not None and own is not None]
            if same:
                made += _errors(tool, name, same)
        made.append(
            _plain(tool, "jobs with an answer", _answered(rows), len(rows), _around(rows, found.lines.get(tool)))
        )
    return made


def _answered(rows: Sequence[Reply]) -> float:
    return sum(r.error is not None or r.memory_error is not None for r in rows) / max(len(rows), 1)


def _took(rows: Sequence[Reply]) -> float | None:
    took = [r.took for r in rows if r.took is not None and not r.why]
    return float(np.median(took)) if took else None


def _around(rows: Sequence[Reply], lines: int | None) -> str:
    """Effort, seconds and failures, in words."""
    took, failed = _took(rows), Counter(r.why.partition(":")[0] for r in rows if r.why)
    parts = [f"{lines} lines to write"] if lines else []
    parts += [f"{took:.1f} s to an answer"] if took is not None else []
    return "; ".join([*parts, *(f"{count} {why}" for why, count in failed.most_common(4))])


def page_table(found: Peers) -> str:
    """One row per tool: errors with Foretell's on the same jobs, answers, effort and seconds."""
    heads = (
        "tool",
        "step time",
        "Foretell's",
        "jobs",
        "memory",
        "Foretell's",
        "jobs",
        "with an answer",
        "seconds",
        "lines",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    by_figure = {(f.source, f.measure): f for f in figures(found)}
    for tool in dict.fromkeys(r.tool for r in found.answers):
        rows = [r for r in found.answers if r.tool == tool]
        cells = [tool]
        for name in ("step time", "memory"):
            own = by_figure.get((tool, f"{name}, median error"))
            ours = own if tool == OURS else by_figure.get((tool, f"{name}, Foretell on the same jobs"))
            cells += [_percent(own), _percent(ours), f"{own.rows if own else 0}"]
        took = _took(rows)
        cells += [f"{_answered(rows):.0%}", "" if took is None else f"{took:.1f}", str(found.lines.get(tool) or "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _percent(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else f"{figure.value:.1%}"


def _errors(tool: str, name: str, same: Sequence[tuple[float, float]]) -> list[Figure]:
    theirs, own = (np.abs(np.array(side)) for side in zip(*same, strict=True))
    closer = float(np.mean(own < theirs))
    made = [_plain(tool, f"{name}, median error", float(np.median(theirs)), len(same))]
    if tool != OURS:
        made.append(_plain(tool, f"{name}, Foretell on the same jobs", float(np.median(own)), len(same)))
        made.append(_plain(tool, f"{name}, jobs on which Foretell is closer", closer, len(same)))
    return made


def _plain(source: str, measure: str, value: float, rows: int, note: str = "") -> Figure:
    return Figure(source=source, measure=measure, value=value, rows=rows, note=note)


def save(found: Peers, path: Path) -> None:
    kept = ",\n".join(json.dumps(asdict(s)) for s in found.answers)
    path.write_text(f'{{"lines": {json.dumps(found.lines)}, "answers": [\n{kept}\n]}}\n')


def read(path: Path) -> Peers:
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        return Peers(answers=[Reply(**each) for each in kept["answers"]], lines=kept["lines"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} holds no answers of peers ({error}). Make it: foretell bench peers --save") from error
