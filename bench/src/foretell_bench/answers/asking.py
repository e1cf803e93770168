"""Asks each question of the Foretell that is installed, and keeps what it answers, one JSON line per question."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foretell_bench.answers.questions import Question

if TYPE_CHECKING:
    import foretell

_DURATIONS: Final = ("step_time", "device_time", "host_time", "exposed_communication", "bubble", "trainer")
_MEMORY: Final = ("allocated", "reserved", "total", "capacity", "fit_probability")
_SCALED_DEVICES: Final = 64


def ask_all(asking: Sequence[Question], out: Path, *, workers: int, progress: Callable[[str], None]) -> None:
    """Ask every question and write the answers to `out`; questions of one step share its capture.

    Answers lie in a part file until all are there, so that a run that was stopped goes on where it was.
    """
    part = out.with_name(f"{out.name}.part")
    known = read_answers(part) if part.exists() else {}
    steps = [list(same) for _, same in groupby([q for q in asking if q.key not in known], key=_step)]
    done = len(known)
    with _own_cache(), part.open("a") as lines, _mapper(workers) as apply:
        for rows in apply(_ask_step, steps):
            lines.writelines(json.dumps(row) + "\n" for row in rows)
            lines.flush()
            done += len(rows)
            progress(f"{done:,} of {len(asking):,} questions answered")
    if out.suffix == ".gz":
        out.write_bytes(gzip.compress(part.read_bytes(), mtime=0))
        part.unlink()
    else:
        part.rename(out)


def read_answers(path: Path) -> dict[str, dict[str, Any]]:
    """The answers of a file by the text of their question."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = [json.loads(line) for line in lines]
    return {json.dumps(row["question"], sort_keys=True): row for row in rows}


def _step(question: Question) -> tuple[str, str]:
    return question.source, json.dumps(question.settings)


@contextmanager
def _own_cache() -> Iterator[None]:
    """A folder of captured graphs that ends with the run: graphs of another version must not answer."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("FORETELL_CACHE")
        os.environ["FORETELL_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("FORETELL_CACHE")
            if before is not None:
                os.environ["FORETELL_CACHE"] = before


@contextmanager
def _mapper(workers: int) -> Iterator[Callable[..., Iterator[list[dict[str, Any]]]]]:
    """`map` over processes, or in this one."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.map


def _ask_step(same: Sequence[Question]) -> list[dict[str, Any]]:
    return [{"question": asdict(question), **_answer(question)} for question in same]


def _answer(question: Question) -> dict[str, Any]:
    try:
        return _ASK[question.verb](question)
    except Exception as error:  # a version's own faults are answers too: the comparison shows them
        return {"error": f"{type(error).__name__}: {error}"}


def _graph(source: str, settings: str) -> foretell.Graph:
    captured = _captured(source, settings)
    if isinstance(captured, Exception):
        raise captured
    return captured


@lru_cache(maxsize=1)
def _captured(source: str, settings: str) -> foretell.Graph | Exception:
    """A step that cannot be captured is tried once, not once per question."""
    import foretell

    try:
        return foretell.capture_graph(source, json.loads(settings))
    except Exception as error:
        return error


def _forecast(question: Question) -> dict[str, Any]:
    import foretell

    conditions = foretell.Conditions(**question.conditions) if question.conditions else None
    graph = _graph(*_step(question))
    return _fields(foretell.forecast(graph, question.on, question.plan, conditions=conditions))


def _fit_batch(question: Question) -> dict[str, Any]:
    import foretell

    found = foretell.fit_batch(question.source, question.on, question.plan, settings=dict(question.settings))
    return {"batch": found.batch, **_fields(found.forecast)}


def _scale(question: Question) -> dict[str, Any]:
    import foretell

    points = foretell.scale(_graph(*_step(question)), question.on, question.plan, up_to=_SCALED_DEVICES)
    seconds = {f"step_time.seconds.at_{point.devices}": point.forecast.step_time.seconds for point in points}
    return {**seconds, "efficiency": points[-1].efficiency, **_fields(points[-1].forecast)}


_ASK: Final[Mapping[str, Callable[[Question], dict[str, Any]]]] = {
    "forecast": _forecast,
    "fit_batch": _fit_batch,
    "scale": _scale,
}


def _fields(answer: foretell.Forecast) -> dict[str, Any]:
    """The numbers that are compared, by the names of the public contract."""
    found = answer.to_dict()
    times = {f"{name}.{part}": found[name][part] for name in _DURATIONS for part in ("seconds", "low", "high")}
    memory = {f"memory.{name}": found["memory"][name] for name in _MEMORY}
    return {
        **times,
        **memory,
        "memory.ranks": [[rank["role"], rank["count"], rank["total"]] for rank in found["memory"]["ranks"]],
        "network.sent_bytes": found["network"]["sent_bytes"],
        "cost.dollars_per_step": found["cost"]["dollars_per_step"],
        "throughput.mfu": found["throughput"]["mfu"],
        "energy.joules_per_step": (found.get("energy") or {}).get("joules_per_step"),
        "plan": found["plan"],
        "caveats": len(found["caveats"]),
    }
