"""`foretell bench methods`: methods × sources × splits, all on the same rows, with what each fit consumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import torch

from foretell.errors import ForetellError, InputError, did_you_mean
from foretell.learn.workers import each
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Method, Query
from foretell.store.importers import Selection
from foretell_bench.graphs import Say, quiet
from foretell_bench.methods import COMPARED, compared
from foretell_bench.sources import emulated
from foretell_bench.sources import examples as sources
from foretell_bench.tables import classics, searches
from foretell_bench.tables.results import INPUTS, Line, errors, keep_lines, keep_rows, merge, read
from foretell_bench.tables.splits import Split, splits

Loader = Callable[[Path, Say, int | None], Selection[Example]]
STORES: Final[Mapping[str, Loader]] = MappingProxyType(
    {"h200": partial(sources.h200_steps, whole=True), "box": emulated.host_jobs, "box-cnns": emulated.host_jobs}
)
PUBLIC: Final[Mapping[str, Loader]] = MappingProxyType(
    {"cnn_many_gpus": partial(sources.cnn_many_gpus, precisions=("fp32",)), "timm_train": sources.timm_train,
     "ddp_step_times": sources.ddp_step_times,
     "llm_h100_sweep": sources.llm_h100_sweep, "mlperf_training": sources.mlperf_training}
)  # fmt: skip
SOURCES: Final[Mapping[str, Loader]] = MappingProxyType({**STORES, **PUBLIC})
TARGETS: Final = (STEP_TIME, JOB_TIME, DEVICE_TIME, MEMORY)
SEARCH: Final = "cherrypick"  # searches and does not predict, so it has a table of its own
BLACK_BOX: Final = frozenset(("ernest",))  # methods that must run the very workload they predict
# Rows of a source that are predicted by default, drawn evenly over architectures: graphs are read and forecasts made one by one.
ROWS: Final[Mapping[str, int]] = {"h200": 300, "box": 400, "box-cnns": 540, "cnn_many_gpus": 240, "timm_train": 48, "ddp_step_times": 240,
                                  "llm_h100_sweep": 144, "mlperf_training": 300}  # fmt: skip
_TIMED: Final = 5  # predictions that are made one by one, to time them
# Methods whose fits take longest begin first, so that none is left running alone in the end.
_LONG: Final = ("predictddl-operators", "scaledl", "dnnabacus", "driple", "whole-graph")


@dataclass(frozen=True, slots=True)
class Job:
    method: str
    source: str
    split: Split


def run(
    data: Path | None,
    stores: Path,
    *,
    only: Sequence[str] = (),
    chosen: Sequence[str] = (),
    rows: int | None = None,
    workers: int = 1,
    say: Say = quiet,
    keep: Callable[[Sequence[Line]], None] = lambda lines: None,
    keep_rows: Callable[[str, Selection[Example]], None] = lambda source, taken: None,
    done: Collection[tuple[str, str, str]] = (),
) -> list[Line]:
    """The table, but for the (source, split, method) that are done.

    `keep` is given the lines of each job as it ends, so that a run broken off leaves what it had; `keep_rows` what became
    of the rows of each source.
    """
    known = (*SOURCES, classics.SOURCE)
    for name in chosen:
        if name not in known:
            raise InputError(f"no source {name!r}. {did_you_mean(name, known)}Sources: {', '.join(known)}.")
    names = list(only) or list(COMPARED)
    for name in names:
        compared(name)  # a name that is not there is refused before an hour is spent
    loaded: dict[str, list[Example]] = {}
    jobs: list[Job] = []
    for source in [name for name in chosen if name in SOURCES] if chosen else SOURCES:
        place = stores / source if source in STORES else data
        if place is None or not place.exists():
            if chosen:
                raise InputError(f"{source} needs a folder: {'--stores' if source in STORES else '--data'}.")
            continue
        say(f"loading {source}")
        taken = SOURCES[source](place, say, rows or ROWS[source])
        keep_rows(source, taken)
        loaded[source] = [_with_targets(e) for e in taken.items if e.measured]
        fits = [Job(name, source, split) for split in splits(loaded[source]) for name in names]
        jobs += [job for job in fits if (source, job.split.name, job.method) not in done]
    jobs.sort(key=lambda job: _LONG.index(job.method) if job.method in _LONG else len(_LONG))
    found: list[Line] = []
    for number, (job, lines) in enumerate(each(compare, loaded, jobs, workers), 1):
        found += lines
        keep(lines)
        say(f"{number} of {len(jobs)} fits done: {job.method} on {job.split.name} rows of {job.source}")
    return found


def _with_targets(example: Example) -> Example:
    """What methods are fitted on: the targets compared, and the host's time, which is no target of any of them."""
    known = {
        target: value for target, value in example.measured.items() if target in (*TARGETS, HOST_TIME) and value > 0
    }
    return replace(example, measured=known)


def run_all(
    data: Path | None,
    stores: Path,
    save: Path,
    *,
    only: Sequence[str] = (),
    chosen: Sequence[str] = (),
    rows: int | None = None,
    workers: int = 1,
    say: Say = quiet,
    resume: bool = False,
) -> None:
    """The table, the classics and the searches, into one file of results; to resume is to leave out what it has."""
    there = read(save) if resume and save.is_file() else {}
    lines = [line for line in there.get("lines", ()) if line.get("inputs") == INPUTS]
    done = {(line["source"], line["split"], line["method"]) for line in lines}
    searched = {row["source"] for row in there.get("searches", ()) if "crashed" in row}  # older ones did not count them
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
            keep_rows=keep_rows(save),
            done=done,
        )
    store = stores / classics.SOURCE
    wanted = (not only or "dnnabacus" in only) and (not chosen or classics.SOURCE in chosen) and store.exists()
    if wanted and not {(classics.SOURCE, split, "dnnabacus") for split in classics.SPLITS} <= done:
        keep_lines(save)(classics.lines(store, say, workers))
    if (not only or SEARCH in only) and data is not None:
        for source in searches.SOURCES:
            if (not chosen or source in chosen) and source not in searched:
                found = [asdict(f) for f in searches.search(source, data, say, workers)]
                merge(save, "searches", found, lambda row: (row["source"], row["table"], row["method"]))


def compare(loaded: Mapping[str, Sequence[Example]], job: Job) -> list[Line]:
    """Fit on what is not left out, ask about what is."""
    torch.set_num_threads(1)  # fits run side by side, and are timed by what a processor spends
    examples, blind = loaded[job.source], job.method in BLACK_BOX and job.split.own
    train = [examples[i] for i in (job.split.own if blind else job.split.train)]
    return lines_of(compared(job.method)(), job, train, [examples[i] for i in job.split.test])


def lines_of(made: Method, job: Job, train: Sequence[Example], test: Sequence[Example]) -> list[Line]:
    wanted = [target for target in TARGETS if any(target in e.measured for e in test)]
    try:
        began = time.process_time()
        made.fit(train)
        fitted = time.process_time()
        answers = made.predict([e.query for e in test])
        milliseconds = _milliseconds(made, [e.query for e in test])
    except ForetellError as error:
        return [_line(job, target, test, len(train), why=str(error)) for target in wanted]
    timing = {
        "fit_seconds": fitted - began,
        "measuring_seconds": float(getattr(made, "spent_", sum(e.cost for e in train))),
        "milliseconds": milliseconds,
    }
    whys = "; ".join(sorted({answer.why for answer in answers if answer.why}))
    lines = []
    for target in wanted:
        answered = [
            (answer, e.measured[target]) for answer, e in zip(answers, test, strict=True) if target in e.measured
        ]
        pairs = [(answer.values[target], value) for answer, value in answered if target in answer.values]
        hits = [
            answer.low[target] <= value <= answer.high[target] for answer, value in answered if target in answer.low
        ]
        inside = sum(hits) / len(hits) if hits else None
        why = whys or ("" if pairs else f"it does not predict {target}")
        lines.append(_line(job, target, test, len(train), **errors(pairs), **timing, inside=inside, why=why[:300]))
    return lines


def _milliseconds(made: Method, queries: Sequence[Query]) -> float:
    """Milliseconds to an answer from a captured graph that is new to the method: the median of a few."""
    chosen = [q for q in queries if q.graph is not None] or list(queries)
    seconds = []
    for query in chosen[:: -(-len(chosen) // _TIMED)]:
        fresh = replace(query, graph=query.graph and replace(query.graph))
        began = time.process_time()
        made.predict([fresh])
        seconds.append(time.process_time() - began)
    return median(seconds) * 1e3


def _line(job: Job, target: str, test: Sequence[Example], trained: int, **values: Any) -> Line:
    rows = sum(target in e.measured for e in test)
    about: dict[str, Any] = {"method": job.method, "source": job.source, "split": job.split.name, "target": target}
    return Line(**about, rows=rows, trained=trained, **({"answered": 0} | values))
