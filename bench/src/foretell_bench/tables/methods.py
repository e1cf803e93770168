"""`foretell bench methods`: methods × sources × splits, all on the same rows, with what each fit consumed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from foretell.errors import ForetellError, InputError, did_you_mean
from foretell.methods import METHODS, method
from foretell.methods.memo import anew
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Method, Query
from foretell.units import Seconds
from foretell_bench.sources import box
from foretell_bench.sources import examples as sources
from foretell_bench.sources.rows import Say
from foretell_bench.tables.splits import Split, splits

Loader = Callable[[Path, Say, int | None], list[Example]]
STORES: Final[Mapping[str, Loader]] = MappingProxyType(
    {"h200": partial(sources.h200_steps, whole=True), "box": box.box_runs}
)
PUBLIC: Final[Mapping[str, Loader]] = MappingProxyType(
    {"cnn_many_gpus": partial(sources.cnn_many_gpus, precisions=("fp32",)), "timm_train": sources.timm_train,
     "ddp_step_times": sources.ddp_step_times,
     "llm_h100_sweep": sources.llm_h100_sweep, "mlperf_training": sources.mlperf_training}
)  # fmt: skip
SOURCES: Final[Mapping[str, Loader]] = MappingProxyType({**STORES, **PUBLIC})
TARGETS: Final = (STEP_TIME, JOB_TIME, DEVICE_TIME, MEMORY)
SEARCH: Final = "cherrypick"  # searches and does not predict, so it has a table of its own
BLACK_BOX: Final = frozenset(("ernest",))  # methods that must run the very workload they are asked about
# Rows of a source that are asked by default, drawn evenly over architectures: graphs are read and forecasts made one by one.
ROWS: Final[Mapping[str, int]] = {"h200": 140, "box": 400, "cnn_many_gpus": 160, "timm_train": 48, "ddp_step_times": 240,
                                  "llm_h100_sweep": 72, "mlperf_training": 300}  # fmt: skip
_TIMED: Final = 5  # predictions that are made one by one, to time them


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
    inside: float | None = None  # part of the rows within the method's own 90 % interval, where it gives one
    fit_seconds: Seconds | None = None  # of a processor; graphs that an earlier fit has read are not read again
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
    workers: int = 1, say: Say = sources.quiet, keep: Callable[[Sequence[Line]], None] = lambda lines: None,
    done: Collection[tuple[str, str, str]] = (),
) -> list[Line]:  # fmt: skip
    """The table, but for the (source, split, method) that are done.

    `keep` is told the lines of each job as it ends, so that a run broken off leaves what it had.
    """
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
        jobs = [Job(name, source, split) for split in splits(loaded) for name in names
                if (source, split.name, name) not in done]  # fmt: skip
        for number, (job, lines) in enumerate(_each(loaded, jobs, workers), 1):
            found += lines
            keep(lines)
            say(f"{source}: {number} of {len(jobs)} fits done, {job.method} on {job.split.name} rows")
    return found


def _told(example: Example) -> Example:
    """What methods are fitted on: the targets compared, and the host's time, which is no target of any of them."""
    known = {
        target: value for target, value in example.measured.items() if target in (*TARGETS, HOST_TIME) and value > 0
    }
    return replace(example, measured=known)


def run_all(
    data: Path | None, stores: Path, save: Path, *, only: Sequence[str] = (), chosen: Sequence[str] = (),
    rows: int | None = None, workers: int = 1, say: Say = sources.quiet, resume: bool = False,
) -> None:  # fmt: skip
    """The table, the classics and the searches, into one file of results; to resume is to leave out what it has."""
    from foretell_bench.tables import classics, searches

    there = read(save) if resume and save.is_file() else {}
    done = {(line["source"], line["split"], line["method"]) for line in there.get("lines", ())}
    searched = {row["source"] for row in there.get("searches", ())}
    names = [name for name in only if name != SEARCH]
    if names or not only:
        run(
            data,
            stores,
            only=names,
            chosen=chosen,
            rows=rows,
            workers=workers,
            say=say,
            keep=keep_lines(save),
            done=done,
        )
    store = stores / "h200"
    asked = (not only or "dnnabacus" in only) and (not chosen or "h200" in chosen) and store.exists()
    if asked and not {("h200", split, "dnnabacus") for split in classics.SPLITS} <= done:
        keep_lines(save)(classics.lines(store, say))
    if (not only or SEARCH in only) and data is not None:
        for source in searches.SOURCES:
            if (not chosen or source in chosen) and source not in searched:
                found = [asdict(f) for f in searches.search(source, data, say)]
                merge(save, "searches", found, lambda row: (row["source"], row["table"], row["method"]))


_loaded: Sequence[Example] = ()  # what forked workers inherit: graphs are too large to send


def _each(loaded: Sequence[Example], jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Line]]]:
    global _loaded
    _loaded = loaded
    if workers < 2:
        yield from ((job, compare(job)) for job in jobs)
    else:
        with ProcessPoolExecutor(min(workers, os.cpu_count() or 1), mp_context=get_context("fork")) as pool:
            futures = {pool.submit(compare, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
    _loaded = ()


def compare(job: Job) -> list[Line]:
    """Fit on what is not left out, ask about what is."""
    blind = job.method in BLACK_BOX and job.split.own
    train = [_loaded[i] for i in (job.split.own if blind else job.split.train)]
    return lines_of(method(job.method)(), job, train, [_loaded[i] for i in job.split.test])


def lines_of(made: Method, job: Job, train: Sequence[Example], test: Sequence[Example]) -> list[Line]:
    wanted = [target for target in TARGETS if any(target in e.measured for e in test)]
    try:
        began = time.process_time()
        made.fit(train)
        fitted = time.process_time()
        said = made.predict([e.query for e in test])
        milliseconds = _a_prediction(made, [e.query for e in test])
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
            "milliseconds": milliseconds,
        }
        why = "; ".join(whys) or ("" if pairs else f"it does not predict {target}")
        held = [answer.low[target] <= e.measured[target] <= answer.high[target] for answer, e in zip(said, test, strict=True)
                if target in answer.low and target in e.measured]  # fmt: skip
        inside = sum(held) / len(held) if held else None
        lines.append(_line(job, target, test, len(train), **errors(pairs), **timing, inside=inside, why=why[:300]))
    return lines


def _a_prediction(made: Method, queries: Sequence[Query]) -> float:
    """Milliseconds to an answer from a captured graph that is new to the method: the median of a few."""
    chosen = [q for q in queries if q.graph is not None] or list(queries)
    took = []
    for query in chosen[:: -(-len(chosen) // _TIMED)]:
        with anew():
            began = time.process_time()
            made.predict([query])
            took.append(time.process_time() - began)
    return median(took) * 1e3


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


def beside(folder: Path) -> dict[str, dict[str, Any]]:
    """Results of the methods' own benchmarks, where they lie beside the table's."""
    files = {name: folder / f"{name}.json" for name in ("scaledl", "predictddl", "driple")}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def _short(value: Any) -> Any:
    """Four digits say all there is."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value
