"""Every method and the product on the same folds and seeds of each source, with a prediction for every row.

A seed deals the groups of a source (architectures; where there are few of them, clusters or plans) into folds, and is the method's own
too. A fold's fit learns from the open rows of all other groups and predicts the fold's own, open and blind ones alike, so that
blind rows cost no fits and whoever scores the open part has not seen them. A black box learns from runs of the very workloads
that it predicts, which nobody is scored on.
"""

from __future__ import annotations

import gzip
import inspect
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from foretell.errors import ForetellError
from foretell.learn.workers import each
from foretell.methods.protocol import DEVICE_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Method
from foretell.methods.scaledl.layers import LayerSettings
from foretell.methods.scaledl.network import NetworkSettings
from foretell_bench.graphs import Say, quiet
from foretell_bench.methods import COMPARED, compared
from foretell_bench.sources.drawn import LEARNED_FROM, SourceRows
from foretell_bench.tables.splits import own_runs

FOLDS: Final = 5
SEEDS: Final = 3
PRODUCT: Final = "foretell"
TARGETS: Final = (STEP_TIME, JOB_TIME, DEVICE_TIME, MEMORY)
BLACK_BOX: Final = frozenset(("ernest",))  # methods that must run the very workload they predict
_FEW: Final = 2 * FOLDS  # groups, with fewer of which a fold would leave out all that is like it
_NO_MODEL: Final = "roofline"  # what a forecast starts from where the shipped model has seen the rows


class Task(NamedTuple):
    source: str
    method: str
    seed: int
    fold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One method on one fold: what it predicted of open and of blind rows, by their place; absent where it has no answer."""

    source: str
    method: str
    seed: int
    fold: int
    trained: int
    seconds: float  # of a processor, to fit
    opened: Mapping[int, Mapping[str, float]]
    blind: Mapping[int, Mapping[str, float]]
    why: str = ""

    @property
    def task(self) -> Task:
        return Task(self.source, self.method, self.seed, self.fold)


def groups(drawn: SourceRows) -> Callable[[Example], Hashable]:
    """What is left out together: architectures; where there are few of them, clusters, and else what runs on them."""
    ways: tuple[Callable[[Example], Hashable], ...] = (
        lambda e: e.query.architecture,
        lambda e: str(e.query.cluster),
        lambda e: f"{e.query.plan} on {e.query.cluster}",
    )
    return next((way for way in ways if len({way(e) for e in drawn.opened}) >= _FEW), ways[-1])


def dealt(names: Sequence[str], seed: int) -> dict[str, int]:
    """Group → its fold."""
    order = np.random.default_rng(seed).permutation(len(names))
    return {name: int(place) % FOLDS for name, place in zip(sorted(names), order, strict=True)}


def folds_of(drawn: SourceRows, seed: int) -> tuple[list[int], list[int]]:
    """Of the open rows, and of the blind ones."""
    group = groups(drawn)
    names = {repr(group(e)) for e in (*drawn.opened, *drawn.blind)}
    fold = dealt(sorted(names), seed)
    opened, blind = ([fold[repr(group(e))] for e in rows] for rows in (drawn.opened, drawn.blind))
    return opened, blind


def maker(source: str, name: str, seed: int) -> Method:
    """The method with this seed, where it has one; the product with no model that has learned from the rows it is tested about."""
    made = compared(name)
    known = inspect.signature(made).parameters
    chosen: dict[str, Any] = {"seed": seed} if "seed" in known else {}
    if "layers" in known and "network" in known:  # ScaleDL's parts are drawn apart
        chosen = {"layers": LayerSettings(seed=seed), "network": NetworkSettings(seed=seed)}
    if name == PRODUCT and source in LEARNED_FROM:
        chosen["model"] = _NO_MODEL
    return partial(made, **chosen)()


def tasks(sources: Sequence[str], methods: Sequence[str], seeds: int = SEEDS) -> Iterator[Task]:
    """Seed by seed, so that a run broken off has the same seeds of all."""
    for seed in range(seeds):
        for method in methods:
            for source in sources:
                yield from (Task(source, method, seed, fold) for fold in range(FOLDS))


def fit(loaded: Mapping[str, SourceRows], task: Task) -> Fit:
    torch.set_num_threads(1)
    drawn = loaded[task.source]
    opened, blind = folds_of(drawn, task.seed)
    tested = [i for i, fold in enumerate(opened) if fold == task.fold]
    train = [e for e, fold in zip(drawn.opened, opened, strict=True) if fold != task.fold]
    if task.method in BLACK_BOX:
        own, _ = own_runs(drawn.opened, tested)
        train, tested = [drawn.opened[i] for i in sorted(own)], [i for i in tested if i not in own]
    hidden = [i for i, fold in enumerate(blind) if fold == task.fold]
    about: dict[str, Any] = {**task._asdict(), "trained": len(train)}
    began = time.process_time()
    try:
        made = maker(task.source, task.method, task.seed).fit(train)
        seconds = time.process_time() - began
        queries = [drawn.opened[i].query for i in tested] + [drawn.blind[i].query for i in hidden]
        answers = made.predict(queries)
    except ForetellError as error:
        return Fit(**about, seconds=time.process_time() - began, opened={}, blind={}, why=str(error)[:300])
    values = [{t: answer.values[t] for t in TARGETS if t in answer.values} for answer in answers]
    found = (
        {i: v for i, v in zip(places, some, strict=True) if v}
        for places, some in ((tested, values[: len(tested)]), (hidden, values[len(tested) :]))
    )
    why = "; ".join(sorted({answer.why for answer in answers if answer.why}))[:300]
    return Fit(**about, seconds=round(seconds, 3), opened=next(found), blind=next(found), why=why)


def run(
    loaded: Mapping[str, SourceRows], save: Path, *, only: Sequence[str] = (), seeds: int = SEEDS, workers: int = 1,
    longest: float = 1e9, say: Say = quiet,
) -> None:  # fmt: skip
    """Every fit that the file does not have; none is begun after `longest` seconds."""
    there = {found.task for found in read(save)} if save.exists() else set()
    wanted = [task for task in tasks(list(loaded), list(only) or list(COMPARED), seeds) if task not in there]
    end = time.monotonic() + longest
    for number, (task, found) in enumerate(each(partial(_fit_before, end), loaded, wanted, workers), 1):
        if found is None:
            continue
        with save.open("a", encoding="utf-8") as file:
            file.write(line_of(found) + "\n")
        say(
            f"{number} of {len(wanted)}: {task.method} on fold {task.fold} of {task.source}, seed {task.seed}, {found.seconds:.0f} s"
        )


def _fit_before(end: float, loaded: Mapping[str, SourceRows], task: Task) -> Fit | None:
    return fit(loaded, task) if time.monotonic() < end else None


def line_of(found: Fit) -> str:
    rows = {
        part: {str(i): {t: float(f"{v:.5g}") for t, v in values.items()} for i, values in getattr(found, part).items()}
        for part in ("opened", "blind")
    }
    about = {**found.task._asdict(), "trained": found.trained, "seconds": found.seconds, "why": found.why}
    return json.dumps(about | rows, separators=(",", ":"))


def read(path: Path) -> list[Fit]:
    """From a file of lines, packed or not; the last of a task counts."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    found = (one for line in text.splitlines() if line and "method" in (one := json.loads(line)))
    fits = (
        Fit(**{**one, **{part: {int(i): v for i, v in one[part].items()} for part in ("opened", "blind")}})
        for one in found
    )
    return list({one.task: one for one in fits}.values())
