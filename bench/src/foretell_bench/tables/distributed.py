"""`foretell bench distributed`: measured steps of several devices against `foretell.forecast`, without and with a profile.

Every row is a question to `forecast`, as a user would ask it. A profile is fitted on rows that are not tested, as
`foretell adapt` fits it.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from foretell.errors import InputError, did_you_mean
from foretell.profile import Profile
from foretell.store.importers import Selection, public_file
from foretell.units import Seconds
from foretell_bench.asking import Answer, Asker
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources import (
    ddp_step_times,
    fsdp_mpt,
    llm_h100_sweep,
    megatron_memory,
    mlperf_training,
    vtrain_single_node,
)
from foretell_bench.sources.question import Measure, Question, evenly
from foretell_bench.tables.baselines import Baseline, ernest, per_sample
from foretell_bench.tables.figures import Figure, rank_correlation, relative_errors
from foretell_bench.tables.fitting import ENOUGH, Answered, ask_all

_MODULES: Final = (ddp_step_times, mlperf_training, llm_h100_sweep, vtrain_single_node, fsdp_mpt, megatron_memory)
QUESTIONS: Final[Mapping[str, Callable[[Path], Selection[Question]]]] = MappingProxyType(
    {module.SOURCE: module.questions for module in _MODULES}
)
_MEASURES: Final[Mapping[str, Sequence[Measure]]] = {module.SOURCE: module.MEASURES for module in _MODULES}
_BASELINES: Final[Mapping[str, tuple[str, Baseline]]] = {
    ddp_step_times.SOURCE: ("Ernest: step time, unseen placements, mean error", ernest),
    mlperf_training.SOURCE: ("seconds per sample alone: the same, mean error", per_sample),
}
MOST_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """What one source gave, when, and how long that took."""

    source: str
    figures: tuple[Figure, ...]
    profiles: tuple[Profile, ...] = ()
    seconds: Seconds = 0.0
    date: str = ""


def run(
    data: Path, only: Sequence[str] = (), say: Say = quiet, most: int = MOST_ROWS, *, workers: int = 1,
    answers: Path | None = None,
) -> Iterator[SourceFigures]:  # fmt: skip
    """The figures of every source in a folder of public measurements, or of some of them, as they are found."""
    if not data.is_dir():
        raise InputError(
            f"{data} is no folder. Give --data the folder of public measurements (docs/internals/data.md)."
        )
    for name in only:
        if name not in QUESTIONS:
            raise InputError(f"no source {name!r}. {did_you_mean(name, QUESTIONS)}Sources: {', '.join(QUESTIONS)}.")
    return _run(data, only, say, most, workers, answers)


def _run(
    data: Path, only: Sequence[str], say: Say, most: int, workers: int, answers: Path | None
) -> Iterator[SourceFigures]:  # fmt: skip
    for name, questions in QUESTIONS.items():
        if name in only or (not only and public_file(data, name)):
            began = time.monotonic()
            taken = questions(data)
            with Asker(workers, answers, lambda text, name=name: say(f"{name}: {text}")) as asker:  # type: ignore[misc]
                figures, profiles = _found(name, taken, most, asker)
            yield SourceFigures(
                source=name, figures=tuple(figures), profiles=tuple(profiles), seconds=time.monotonic() - began,
                date=date.today().isoformat(),
            )  # fmt: skip
        elif not only:
            missing = Figure(source=name, measure="not run", value=None, note="the folder has no such file")
            yield SourceFigures(source=name, figures=(missing,))


def _found(source: str, taken: Selection[Question], most: int, asker: Asker) -> tuple[list[Figure], list[Profile]]:
    chosen = evenly(taken.items, most, by=lambda q: (q.domain, q.part, q.crashed))
    answered, profiles = ask_all(source, chosen, asker)
    note = _count(taken, answered)
    figures = [_figure(source, measure, answered) for measure in _MEASURES[source]]
    if source in _BASELINES:
        figures.append(_baseline(source, answered))
    first = Figure(**{**asdict(figures[0]), "note": note})
    return [first, *figures[1:]], profiles


def _count(taken: Selection[Question], answered: Sequence[Answered]) -> str:
    """What became of every row of the file."""
    refused = Counter(_short(each.plain.why) for each in answered if each.plain.why)
    forecast = sum(not each.plain.why for each in answered)
    parts = [f"of {taken.rows:,} rows {forecast:,} were forecast"]
    if len(answered) < len(taken.items):
        parts.append(f"{len(taken.items) - len(answered):,} were not drawn")
    parts += [f"{count:,} left out, {why}" for why, count in sorted(taken.left_out.items(), key=lambda item: -item[1])]
    parts += [f"{count:,} refused: {why}" for why, count in refused.most_common()]
    lonely = sum(
        each.fitted is None
        for each in answered
        if each.question.tested and each.question.seconds and not each.plain.why
    )
    if lonely:
        parts.append(f"{lonely:,} have no profile, as fewer than {ENOUGH} rows of other parts were forecast")
    return "; ".join(parts)


def _short(why: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", why)[:90]


def _figure(source: str, measure: Measure, answered: Sequence[Answered]) -> Figure:
    rows = [each for each in answered if _counts(each, measure)]
    timed = measure.of in ("seconds", "rate", "communication")
    both = [each for each in rows if each.fitted is not None] if timed else rows
    plain = _value(measure, both or rows, lambda each: each.plain)
    value = _value(measure, both, lambda each: each.fitted or each.plain)
    return Figure(
        source=source, measure=measure.name, value=value, zero_shot=plain, bar=measure.bar,
        at_least=measure.statistic in ("rank", "right"), rows=len(both or rows),
    )  # fmt: skip


def _counts(each: Answered, measure: Measure) -> bool:
    """Whether a row says something of a measure."""
    question = each.question
    if measure.of == "crash":
        return not each.plain.why or each.plain.impossible
    if each.plain.why or not question.tested or (measure.readable and not question.readable):
        return False
    return bool({"seconds": question.seconds, "rate": question.seconds, "communication": question.communication,
                 "allocated": question.allocated}[measure.of])  # fmt: skip


def _value(measure: Measure, rows: Sequence[Answered], of: Callable[[Answered], Answer]) -> float | None:
    if not rows:
        return None
    if measure.of == "crash":
        return float(np.mean([(not of(each).fits) == each.question.crashed for each in rows]))
    pairs = np.array([_pair(measure, each.question, of(each)) for each in rows])
    if measure.statistic == "rank":
        return rank_correlation(pairs[:, 0].tolist(), pairs[:, 1].tolist())
    errors = relative_errors(pairs[:, 0].tolist(), pairs[:, 1].tolist())
    return float(np.median(errors) if measure.statistic == "median" else errors.mean())


def _pair(measure: Measure, question: Question, answer: Answer) -> tuple[float, float]:
    """Predicted and measured."""
    if measure.of == "allocated":
        return float(answer.allocated[question.reports]), float(question.allocated or 0)
    if measure.of == "communication":
        return answer.communication, question.communication or 0.0
    seconds = question.seconds or 0.0
    return (1 / answer.seconds, 1 / seconds) if measure.of == "rate" else (answer.seconds, seconds)


def _baseline(source: str, answered: Sequence[Answered]) -> Figure:
    """On the rows that have a profile, knowing what the profile knew."""
    name, baseline = _BASELINES[source]
    predicted, measured = list[float](), list[float]()
    tested = [each.question for each in answered if each.fitted is not None]
    for domain, part in dict.fromkeys((q.domain, q.part) for q in tested):
        known = [
            e.question for e in answered if e.question.domain == domain and e.question.part != part and not e.plain.why
        ]
        own = [q for q in tested if (q.domain, q.part) == (domain, part)]
        predicted += baseline(known, own)
        measured += [q.seconds or 0.0 for q in own]
    value = float(relative_errors(predicted, measured).mean()) if measured else None
    return Figure(source=source, measure=name, value=value, rows=len(measured))


def save(found: SourceFigures, path: Path) -> None:
    """Keep what a source gave; other sources there stay."""
    kept = {each.source: each for each in read(path)} if path.exists() else {}
    kept[found.source] = found
    lines = [json.dumps(asdict(kept[source])) for source in QUESTIONS if source in kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read(path: Path) -> list[SourceFigures]:
    from foretell.profile import Card, Intervals, Links, MemoryFactors, Purpose

    def profile(kept: Mapping[str, object]) -> Profile:
        kinds = {"purpose": Purpose, "links": Links, "memory": MemoryFactors, "intervals": Intervals}
        made = {name: kinds[name](**value) if name in kinds else value for name, value in kept.items()}  # type: ignore[arg-type]
        card = dict(kept["card"])  # type: ignore[call-overload]
        return Profile(**made | {"card": Card(**card | {"sources": tuple(card["sources"])})})  # type: ignore[arg-type]

    try:
        return [
            SourceFigures(**{**each, "figures": tuple(Figure(**f) for f in each["figures"]),
                     "profiles": tuple(map(profile, each.get("profiles", ())))})
            for each in json.loads(path.read_text())
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no results of this benchmark ({error}). Make some: foretell bench distributed --save"
        ) from error
