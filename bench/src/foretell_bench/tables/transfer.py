"""`foretell bench transfer`: how wrong forecasts are after a few step times of a new device, cluster or trainer.

Everything of ours goes through `foretell.forecast`, with a profile that `fit_profile` makes of the step times drawn. Rivals
get the same rows. Tested rows are of architectures or sizes that none of the drawn rows has.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import foretell
from foretell.cost.model import DEFAULT, ROOFLINE
from foretell.errors import ForetellError, InputError, did_you_mean
from foretell.graph import Graph
from foretell.learn.adapt.choose import choose_steps
from foretell.learn.adapt.fit import fit_profile
from foretell.learn.adapt.steps import Prepared, Step
from foretell.profile import Profile
from foretell.store.importers import public_file
from foretell.units import Seconds
from foretell_bench.graphs import Say, quiet
from foretell_bench.research.few_rows import Rivals, seen
from foretell_bench.rounding import short
from foretell_bench.sources.adapted import SETTINGS
from foretell_bench.sources.settings import Fold, Row, Setting

Floats = npt.NDArray[np.float64]
OURS, STARTED, ZERO_SHOT, ROOFLINE_ALONE = "profile", "profile from another", "zero-shot", "roofline"
NONE, RANDOM, DESIGNED = "none", "random", "D-optimal"  # how rows were drawn
SEEDS: Final = 5
_ENOUGH: Final = 4  # rows to fit a profile on


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method after so many step times, over all seeds and tested rows; errors are fractions of what was measured."""

    source: str
    name: str
    method: str
    drawn: str
    number: int
    open: float | None  # mean error over rows whose names allow choosing by them
    blind: float | None
    mean: float
    spread: tuple[float, float]  # of the mean, over seeds
    rows: int
    inside: float | None = None  # part of the rows within the 90 % interval
    width: float | None = None  # high ÷ low, the median
    fit_seconds: Seconds | None = None
    measured_seconds: Seconds | None = None  # of the steps that were drawn, each once


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferErrors:
    """Lines of one or more settings, and the rows that could not be used."""

    lines: Sequence[Line]
    left_out: dict[str, dict[str, int]]  # setting → why a row was not used → rows


class _Case:
    """A row that could be forecast, with its graph and what is predicted of it before anything was measured."""

    def __init__(self, row: Row, graph: Graph) -> None:
        self.row, self.graph = row, graph
        self.step = Prepared.of(
            Step(workload=graph, on=row.cluster, plan=row.plan, seconds=row.seconds, software=row.software)
        )
        self.zero = self.ask(None)
        self.roofline = foretell.forecast(graph, row.cluster, row.plan, model=ROOFLINE).step_time.seconds
        self.seen = seen(row, graph)

    def ask(self, profile: Profile | None) -> tuple[float, float, float]:
        """Seconds and their interval, which may have no number."""
        row = self.row
        conditions = None if profile else foretell.Conditions(software=row.software)  # a profile knows its own
        answer = foretell.forecast(
            self.graph, row.cluster, row.plan, model=DEFAULT, profile=profile, conditions=conditions
        )
        found = answer.step_time
        low, high = (np.nan if end is None else end for end in (found.low, found.high))
        return found.seconds, low, high


class _Draws:
    """Predictions by (method, how drawn, number, seed), each tested row once over the folds."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))

    def add(
        self, key: tuple[str, str, int], seed: int, tested: Sequence[_Case], predicted: Any, cost: Any = None
    ) -> None:
        table = np.array(predicted, dtype=np.float64)
        if table.ndim == 1:
            table = np.stack([table, np.full_like(table, np.nan), np.full_like(table, np.nan)], 1)
        measured = np.array([case.row.seconds for case in tested])
        blind = np.array([case.row.blind for case in tested])
        self.found[key][seed].append((table, measured, blind, cost))

    def lines(self, setting: Setting) -> Iterator[Line]:
        for (method, drawn, number), seeds in self.found.items():
            yield _line(setting, method, drawn, number, seeds)


def _line(setting: Setting, method: str, drawn: str, number: int, seeds: dict[int, list[Any]]) -> Line:
    parts = [part for those in seeds.values() for part in those]
    table, measured, blind = (np.concatenate([part[i] for part in parts]) for i in range(3))
    errors = np.abs(table[:, 0] / measured - 1)
    means = [np.concatenate([np.abs(part[0][:, 0] / part[1] - 1) for part in those]).mean() for those in seeds.values()]
    known = ~np.isnan(table[:, 1])
    costs = [part[3] for part in parts if part[3] is not None]
    return Line(
        source=setting.source, name=setting.name, method=method, drawn=drawn, number=number,
        open=_mean(errors[~blind]), blind=_mean(errors[blind]), mean=float(errors.mean()),
        spread=(float(min(means)), float(max(means))), rows=len(errors) // len(seeds),
        inside=_mean(((table[:, 1] <= measured) & (measured <= table[:, 2]))[known]),
        width=float(np.median(table[known, 2] / table[known, 1])) if known.any() else None,
        fit_seconds=float(np.mean([c[0] for c in costs])) if costs else None,
        measured_seconds=float(np.mean([c[1] for c in costs])) if costs else None,
    )  # fmt: skip


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def run(
    data: Path, only: Sequence[str] = (), say: Say = quiet, *, workers: int = 1, seeds: int = SEEDS,
    numbers: Sequence[int] = (),
) -> Iterator[TransferErrors]:  # fmt: skip
    """What every setting of a folder of public measurements gives, or those of some sources, as they are found."""
    if not data.is_dir():
        raise InputError(
            f"{data} is no folder. Give --data the folder of public measurements (docs/internals/data.md)."
        )
    for name in only:
        if name not in SETTINGS:
            raise InputError(f"no source {name!r}. {did_you_mean(name, SETTINGS)}Sources: {', '.join(SETTINGS)}.")
    sources = [name for name in SETTINGS if name in only or (not only and public_file(data, name))]
    return _run(data, sources, say, workers, seeds, numbers)


def _run(
    data: Path, sources: Sequence[str], say: Say, workers: int, seeds: int, numbers: Sequence[int]
) -> Iterator[TransferErrors]:
    settings = [(source, place) for source in sources for place in range(len(SETTINGS[source](data)))]
    if workers == 1:
        for source, place in settings:
            yield _Run(SETTINGS[source](data)[place], say, seeds, numbers).found()
        return
    spawning = multiprocessing.get_context("spawn")  # this process may hold threads of other libraries
    with ProcessPoolExecutor(workers, spawning) as pool:
        rows = {row.key: row for source in sources for setting in SETTINGS[source](data) for row in setting.rows}
        for number, _ in enumerate(pool.map(_kept, rows.values(), chunksize=4)):
            say(f"{number} of {len(rows)} rows captured")
        yield from _side_by_side(pool, data, settings, say, seeds, numbers)


def _kept(row: Row) -> None:
    """Captured, and kept where the next process finds it."""
    with suppress(ForetellError):
        row.load()


def _side_by_side(
    pool: ProcessPoolExecutor, data: Path, settings: Sequence[tuple[str, int]], say: Say, seeds: int,
    numbers: Sequence[int],
) -> Iterator[TransferErrors]:  # fmt: skip
    """Every number of step times of a setting in a process; the largest take longest, and begin first."""
    numbers_of = {each: numbers or SETTINGS[each[0]](data)[each[1]].numbers for each in settings}
    tasks = sorted(((number, *each) for each, those in numbers_of.items() for number in those), reverse=True)
    running = {
        pool.submit(_one, data, source, place, seeds, number): (source, place) for number, source, place in tasks
    }
    found: dict[tuple[str, int], list[TransferErrors]] = defaultdict(list)
    for number, done in enumerate(as_completed(running), 1):
        say(f"{number} of {len(running)} numbers of step times")
        those = found[running[done]]
        those.append(done.result())
        if len(those) == len(numbers_of[running[done]]):
            yield _joined(those)


def _joined(found: Sequence[TransferErrors]) -> TransferErrors:
    """Of one setting; what none of its numbers changes is there once."""
    lines = {(line.method, line.drawn, line.number): line for each in found for line in each.lines}
    return TransferErrors(lines=list(lines.values()), left_out=found[0].left_out)


def _one(data: Path, source: str, place: int, seeds: int, number: int) -> TransferErrors:
    return _Run(SETTINGS[source](data)[place], quiet, seeds, (number,)).found()


class _Run:
    """One setting: all its folds, draws and methods."""

    def __init__(self, setting: Setting, say: Say, seeds: int, numbers: Sequence[int] = ()) -> None:
        self.setting, self.say = setting, say
        self.numbers = numbers or setting.numbers
        self.ways = [*((RANDOM, seed) for seed in range(seeds)), (DESIGNED, 0)]
        self.draws, self.left_out = _Draws(), dict(setting.left_out)
        self._known: dict[str, _Case | None] = {}  # a row may be drawn in one fold and tested in another

    def found(self) -> TransferErrors:
        others = self._cases(self.setting.others)
        start = fit_profile([case.step for case in others], name="another") if len(others) >= _ENOUGH else None
        for fold in self.setting.folds:
            self._fold(fold, others, start)
        left_out = {why: count for why, count in self.left_out.items() if count}
        return TransferErrors(
            lines=list(self.draws.lines(self.setting)),
            left_out={f"{self.setting.source}: {self.setting.name}": left_out},
        )

    def _fold(self, fold: Fold, others: Sequence[_Case], start: Profile | None) -> None:
        drawn, tested = self._cases(fold.drawn), self._cases(fold.tested)
        if len(drawn) < _ENOUGH or not tested:
            return
        self.draws.add((ZERO_SHOT, NONE, 0), 0, tested, [case.zero for case in tested])
        self.draws.add((ROOFLINE_ALONE, NONE, 0), 0, tested, [case.roofline for case in tested])
        everywhere = [*drawn, *tested]
        formulas = {
            ROOFLINE_ALONE: [case.roofline for case in everywhere],
            ZERO_SHOT: [case.zero[0] for case in everywhere],
        }
        known = [[case.seen for case in those] for those in (drawn, tested, others)]
        rivals = Rivals(known[0], known[1], known[2], formulas)
        for number in self.numbers:
            if number <= len(drawn):
                for way, seed in self.ways:
                    self._tell(f"{number} step times, {way}, {seed}")
                    self._draw(way, number, seed, drawn, tested, rivals, start)

    def _draw(
        self, way: str, number: int, seed: int, drawn: Sequence[_Case], tested: Sequence[_Case], rivals: Rivals,
        start: Profile | None,
    ) -> None:  # fmt: skip
        chosen = _chosen(way, drawn, number, seed)
        running = sum(drawn[i].row.seconds for i in chosen)
        for name, before in ((OURS, None), *([(STARTED, start)] if start else ())):
            began = time.process_time()
            profile = fit_profile([drawn[i].step for i in chosen], name="step times", start=before)
            cost = time.process_time() - began, running
            self.draws.add((name, way, number), seed, tested, [case.ask(profile) for case in tested], cost)
        began = time.process_time()
        for name, predicted in rivals.predict(chosen):
            self.draws.add((name, way, number), seed, tested, predicted, (time.process_time() - began, running))
            began = time.process_time()

    def _cases(self, rows: Sequence[Row]) -> list[_Case]:
        for number, row in enumerate(rows, start=1):
            self._tell(f"{number} of {len(rows)} rows")
            if row.key not in self._known:
                self._known[row.key] = self._case(row)
        return [case for row in rows if (case := self._known[row.key]) is not None]

    def _case(self, row: Row) -> _Case | None:
        try:
            if (graph := row.load()) is not None:
                return _Case(row, graph)
            why = "that today's libraries no longer build"
        except ForetellError as error:
            why = f"refused, {type(error).__name__}"
        self.left_out[why] = self.left_out.get(why, 0) + 1
        return None

    def _tell(self, text: str) -> None:
        self.say(f"{self.setting.source} {self.setting.name}: {text}")


def _chosen(way: str, drawn: Sequence[_Case], number: int, seed: int) -> list[int]:
    if way == DESIGNED:
        return choose_steps([case.step for case in drawn], number)
    return sorted(np.random.default_rng([seed, number]).choice(len(drawn), number, replace=False).tolist())


def save(found: TransferErrors, path: Path) -> None:
    """Keep what was found; other settings there stay."""
    kept = read(path) if path.exists() else TransferErrors(lines=[], left_out={})
    names = {(line.source, line.name) for line in found.lines}
    lines = [line for line in kept.lines if (line.source, line.name) not in names] + list(found.lines)
    left_out = {**kept.left_out, **found.left_out}
    order = list(SETTINGS)
    lines.sort(key=lambda line: order.index(line.source))
    written = ",\n".join(json.dumps(short(asdict(line))) for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"left_out": {json.dumps(left_out)}, "lines": [\n{written}\n]}}\n')


def read(path: Path) -> TransferErrors:
    try:
        kept = json.loads(path.read_text())
        lines = [Line(**{**line, "spread": tuple(line["spread"])}) for line in kept["lines"]]
        return TransferErrors(lines=lines, left_out=kept["left_out"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no results of this benchmark ({error}). Make some: foretell bench transfer --save"
        ) from error
