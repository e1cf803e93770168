"""`foretell bench published`: jobs that others published beside `foretell.forecast` as shipped, with nothing fitted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.errors import InputError
from foretell_bench.asking import Answer, Asker
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources.published_steps import Job, jobs
from foretell_bench.tables.figures import Figure

_SURE: Final = 0.1  # probability to fit below which a job that ran was called impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How far a forecast is from a published job: what was predicted over what was published, less one."""

    source: str
    regime: str
    device: str
    devices: int
    fused: bool
    error: float | None = None  # of seconds per step; None where they were not published, or nothing was forecast
    inside: bool | None = None  # the interval; None where the forecast has none
    memory_error: float | None = None
    fit_probability: float | None = None
    why: str = ""  # nothing was forecast


def run(data: Path, say: Say = quiet, *, workers: int = 1, answers: Path | None = None) -> list[Compared]:
    """Every job of the folder's file; those that no question could be made of say why."""
    taken = jobs(data)
    with Asker(workers, answers, say) as asker:
        found = asker([(job.ask, None) for job in taken.items])
    left_out = [_left_out(why) for why, count in taken.left_out.items() for _ in range(count)]
    return [*(_compared(job, answer) for job, answer in zip(taken.items, found, strict=True)), *left_out]


def _compared(job: Job, answer: Answer) -> Compared:
    row = Compared(
        source=job.source, regime=job.regime, device=job.device, devices=job.devices, fused="fused" in job.labels,
        why=answer.why,
    )  # fmt: skip
    if answer.why:
        return row
    sizes = {"allocated": max(answer.allocated, default=0), "reserved": answer.reserved, "smi": answer.total}
    predicted = sizes[job.memory_kind] if job.memory_kind else None
    inside = None
    if job.seconds and answer.low is not None and answer.high is not None:
        inside = answer.low <= job.seconds <= answer.high
    return replace(
        row, inside=inside, fit_probability=answer.fit_probability,
        error=answer.seconds / job.seconds - 1 if job.seconds else None,
        memory_error=predicted / job.memory - 1 if predicted and job.memory else None,
    )  # fmt: skip


def _left_out(why: str) -> Compared:
    return Compared(source="", regime="", device="", devices=0, fused=False, why=why)


def figures(rows: Sequence[Compared]) -> list[Figure]:
    """The whole table, then by class of job, source and device; refusals are counted in the notes."""
    found = _of("all jobs", rows)
    groups: Sequence[tuple[str, Callable[[Compared], str]]] = (
        ("class", lambda r: r.regime), ("source", lambda r: r.source), ("device", lambda r: r.device)
    )  # fmt: skip
    for kind, key in groups:
        for name in sorted({key(r) for r in rows if r.source}):
            found += _of(f"{kind}: {name}", [r for r in rows if r.source and key(r) == name], briefly=True)
    return found


def _of(name: str, rows: Sequence[Compared], *, briefly: bool = False) -> list[Figure]:
    times = _errors(r.error for r in rows)
    memory = _errors(r.memory_error for r in rows)
    refused = Counter(r.why.split(":")[0] if r.source else r.why for r in rows if r.why)
    note = "; ".join(f"{count} {why}" for why, count in refused.most_common())
    made = [
        _figure(name, "step time, median error", np.median, times, note),
        _figure(name, "step time, mean error", np.mean, times),
    ]
    if len(memory):
        made.append(_figure(name, "memory, median error", np.median, memory))
    if briefly:
        return [figure for figure in made if figure.rows or figure.note]
    ran = [r for r in rows if r.fit_probability is not None]
    sure = sum((r.fit_probability or 0.0) < _SURE for r in ran)
    inside = [r.inside for r in rows if r.inside is not None]
    return [
        *made,
        _figure(name, "memory, mean error", np.mean, memory),
        Figure(source=name, measure="ran, but called impossible", value=sure / max(len(ran), 1), rows=len(ran)),
        Figure(
            source=name, measure="inside the 90% interval", value=float(np.mean(inside)) if inside else None,
            rows=len(inside), at_least=True,
        ),
    ]  # fmt: skip


def _figure(
    source: str, measure: str, statistic: Callable[[np.ndarray], Any], errors: np.ndarray, note: str = ""
) -> Figure:
    value = float(statistic(np.abs(errors))) if len(errors) else None
    return Figure(source=source, measure=measure, value=value, rows=len(errors), note=note)


def _errors(values: Iterable[float | None]) -> np.ndarray:
    return np.array([value for value in values if value is not None], dtype=float)


def save(rows: Sequence[Compared], path: Path) -> None:
    path.write_text("\n".join(["[", ",\n".join(json.dumps(asdict(r)) for r in rows), "]"]) + "\n")


def read(path: Path) -> list[Compared]:
    try:
        kept: list[Mapping[str, Any]] = json.loads(path.read_text())
        return [Compared(**row) for row in kept]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{path} holds no published jobs ({error}). Make it: foretell bench published --save"
        ) from error
