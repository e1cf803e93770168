"""`foretell bench methods`: methods × sources × splits, all on the same rows, with what each fit consumed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from foretell.bench import box
from foretell.bench import examples as sources
from foretell.bench.rows import Say
from foretell.bench.splits import Split, splits
from foretell.errors import ForetellError, InputError, did_you_mean
from foretell.methods import METHODS, method
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Method
from foretell.units import Seconds

Loader = Callable[[Path, Say, int | None], list[Example]]
STORES: Final[Mapping[str, Loader]] = MappingProxyType({"h200": sources.h200_steps, "box": box.box_runs})
PUBLIC: Final[Mapping[str, Loader]] = MappingProxyType(
    {"cnn_many_gpus": sources.cnn_many_gpus, "timm_train": sources.timm_train, "ddp_step_times": sources.ddp_step_times,
     "llm_h100_sweep": sources.llm_h100_sweep, "mlperf_training": sources.mlperf_training}
)  # fmt: skip
SOURCES: Final[Mapping[str, Loader]] = MappingProxyType({**STORES, **PUBLIC})
TARGETS: Final = (STEP_TIME, JOB_TIME, DEVICE_TIME, MEMORY)
SEARCH: Final = "cherrypick"  # searches and does not predict, so it has a table of its own
BLACK_BOX: Final = frozenset(("ernest",))  # methods that must run the very workload they are asked about
# Rows of a source that are asked by default: graphs are captured and forecasts made one by one.
ROWS: Final[Mapping[str, int]] = {"h200": 260, "box": 400, "cnn_many_gpus": 192, "timm_train": 90, "ddp_step_times": 600,
                                  "llm_h100_sweep": 80, "mlperf_training": 300}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method on one split of one source; errors are fractions of what was measured."""

    method: str
    source: str
    split: str
    target: str
    rows: int  # that were asked
    answered: int
    trained: int  # rows it was fitted on
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    rmse: float | None = None  # of fractions
    rmse_absolute: float | None = None  # in the target's own unit
    fit_seconds: Seconds | None = None
    measuring_seconds: Seconds | None = None  # that the runs it learned from took
    milliseconds: float | None = None  # a prediction
    why: str = ""  # it did not answer, or not all

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.source, self.split, self.target, self.method


@dataclass(frozen=True, slots=True)
class Job:
    method: str
    source: str
    split: Split


def run(
    data: Path | None, stores: Path, *, only: Sequence[str] = (), chosen: Sequence[str] = (), rows: int | None = None,
    workers: int = 2, say: Say = sources.quiet, keep: Callable[[Sequence[Line]], None] = lambda lines: None,
) -> list[Line]:  # fmt: skip
    """The table. `keep` is told the lines of each job as it ends, so that a run broken off leaves what it had."""
    for name in chosen:
        if name not in SOURCES:
            raise InputError(f"no source {name!r}. {did_you_mean(name, SOURCES)}Sources: {', '.join(SOURCES)}.")
    names = list(only) or list(METHODS)
    for name in names:
        method(name)  # a name that is not there is told before an hour is spent
    found: list[Line] = []
    for source in chosen or SOURCES:
        place = stores / source if source in STORES else data
        if place is None or not place.exists():
            if chosen:
                raise InputError(f"{source} needs a folder: {'--stores' if source in STORES else '--data'}.")
            continue
        say(f"loading {source}")
        loaded = [_told(e) for e in SOURCES[source](place, say, rows or ROWS[source]) if e.measured]
        jobs = [Job(name, source, split) for split in splits(loaded) for name in names]
        for number, lines in enumerate(_each(loaded, jobs, workers), 1):
            found += lines
            keep(lines)
            say(f"{source}: {number} of {len(jobs)} fits done")
    return found


def _told(example: Example) -> Example:
    """What methods are fitted on: the targets compared, and the host's time, which is no target of any of them."""
    known = {
        target: value for target, value in example.measured.items() if target in (*TARGETS, HOST_TIME) and value > 0
    }
    return replace(example, measured=known)


def run_all(
    data: Path | None, stores: Path, save: Path, *, only: Sequence[str] = (), chosen: Sequence[str] = (),
    rows: int | None = None, workers: int = 2, say: Say = sources.quiet,
) -> None:  # fmt: skip
    """The table, the classics and the searches, into one file of results."""
    from foretell.bench import classics, searches

    names = [name for name in only if name != SEARCH]
    if names or not only:
        run(data, stores, only=names, chosen=chosen, rows=rows, workers=workers, say=say, keep=keep_lines(save))
    if (not only or "dnnabacus" in only) and (not chosen or "h200" in chosen) and (stores / "h200").exists():
        keep_lines(save)(classics.lines(stores / "h200", say))
    if (not only or SEARCH in only) and data is not None:
        found = searches.search(data, say, chosen)
        merge(save, "searches", [asdict(f) for f in found], lambda row: (row["source"], row["table"], row["method"]))


_loaded: Sequence[Example] = ()  # what forked workers inherit: graphs are too large to send


def _each(loaded: Sequence[Example], jobs: Sequence[Job], workers: int) -> Iterator[list[Line]]:
    global _loaded
    _loaded = loaded
    if workers < 2:
        yield from (compare(job) for job in jobs)
    else:
        with ProcessPoolExecutor(min(workers, os.cpu_count() or 1), mp_context=get_context("fork")) as pool:
            for future in as_completed([pool.submit(compare, job) for job in jobs]):
                yield future.result()
    _loaded = ()


def compare(job: Job) -> list[Line]:
    """Fit on what is not left out, ask about what is."""
    blind = job.method in BLACK_BOX and job.split.own
    train = [_loaded[i] for i in (job.split.own if blind else job.split.train)]
    return lines_of(method(job.method)(), job, train, [_loaded[i] for i in job.split.test])


def lines_of(made: Method, job: Job, train: Sequence[Example], test: Sequence[Example]) -> list[Line]:
    wanted = [target for target in TARGETS if any(target in e.measured for e in test)]
    try:
        began = time.perf_counter()
        made.fit(train)
        fitted = time.perf_counter()
        said = made.predict([e.query for e in test])
        asked = time.perf_counter()
    except ForetellError as error:
        return [_line(job, target, test, len(train), why=str(error)) for target in wanted]
    spent = float(getattr(made, "spent_", sum(e.cost for e in train)))
    whys = sorted({answer.why for answer in said if answer.why})
    lines = []
    for target in wanted:
        pairs = [(answer.values[target], e.measured[target]) for answer, e in zip(said, test, strict=True)
                 if target in answer.values and target in e.measured]  # fmt: skip
        timing = {
            "fit_seconds": fitted - began,
            "measuring_seconds": spent,
            "milliseconds": (asked - fitted) / len(test) * 1e3,
        }
        why = "; ".join(whys) or ("" if pairs else f"it does not predict {target}")
        lines.append(_line(job, target, test, len(train), **errors(pairs), **timing, why=why[:300]))
    return lines


def _line(job: Job, target: str, test: Sequence[Example], trained: int, **values: Any) -> Line:
    asked = sum(target in e.measured for e in test)
    return Line(method=job.method, source=job.source, split=job.split.name, target=target, rows=asked, trained=trained,
                **({"answered": 0} | values))  # fmt: skip


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of (predicted, measured)."""
    if not pairs:
        return {"answered": 0}
    predicted, measured = np.array(pairs, dtype=np.float64).T
    off = np.abs(predicted / measured - 1)
    return {
        "answered": len(pairs), "mean": float(off.mean()), "median": float(np.median(off)),
        "p90": float(np.quantile(off, 0.9)), "rmse": float(np.sqrt((off**2).mean())),
        "rmse_absolute": float(np.sqrt(((predicted - measured) ** 2).mean())),
    }  # fmt: skip


# Results: one file, in which a later run of some methods or sources replaces their lines.


def merge(path: Path, part: str, rows: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]) -> None:
    """Put rows into a part of the results, in place of those with the same key."""
    whole = read(path) if path.is_file() else {}
    kept = {key(row): row for row in whole.get(part, [])} | {key(row): dict(row) for row in rows}
    whole[part] = [kept[k] for k in sorted(kept, key=str)]
    body = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(_short(row)) for row in those) + "\n]" for name, those in whole.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + body + "\n}\n")


def keep_lines(path: Path) -> Callable[[Sequence[Line]], None]:
    def key(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in ("source", "split", "target", "method"))

    return lambda lines: merge(path, "lines", [asdict(line) for line in lines], key)


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} holds no results of this benchmark ({error}). Make some: foretell bench methods"
        ) from error
    return found


def _short(value: Any) -> Any:
    """Four digits say all there is."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value
