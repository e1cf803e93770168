"""Asks `foretell.forecast` many questions, in several processes and each once; answers are kept, so a run can be resumed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import foretell
from foretell.errors import ForetellError, InputError, NotModelled, PlanError
from foretell.learn.uncertainty.jobs import step_error
from foretell.profile import Profile
from foretell.units import Bytes, Seconds
from foretell_bench.graphs import Model, Say, captured, graph_of, quiet
from foretell_bench.sources.question import Ask

S = TypeVar("S")
T = TypeVar("T")
_CHUNK: Final = 4  # questions that a process takes at a time: neighbours share a graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a forecast says, or why there is none."""

    seconds: Seconds = 0.0
    trainer: Seconds = 0.0  # the part of them that a trainer adds
    communication: Seconds = 0.0
    low: Seconds | None = None  # of the interval of seconds, where the forecast has one
    high: Seconds | None = None
    allocated: tuple[Bytes, ...] = ()  # by the first stage, the second, …
    reserved: Bytes = 0  # of the heaviest rank
    total: Bytes = 0
    fit_probability: float = 0.0
    fits: bool = False
    shorter: float | None = None  # how far the step may be off for all that its parts say, where that was asked for
    longer: float | None = None
    why: str = ""
    impossible: bool = False  # as the plan cannot be, rather than cannot be forecast


def answer(ask: Ask, profile: Profile | None) -> Answer:
    try:
        graph, conditions = graph_of(ask.model), foretell.Conditions(trainer=ask.trainer, software=ask.software)
        found = foretell.forecast(graph, ask.cluster, ask.plan, profile=profile, conditions=conditions)
        parts = step_error(graph, ask.cluster, ask.plan) if ask.parts else None
    except (InputError, ForetellError) as error:
        refused = isinstance(error, PlanError) and not isinstance(error, NotModelled)
        return Answer(why=f"{type(error).__name__}: {error}", impossible=refused)
    return Answer(
        seconds=found.step_time.seconds, trainer=found.trainer.seconds, fits=found.memory.fits,
        communication=found.exposed_communication.seconds,
        low=found.step_time.low, high=found.step_time.high, allocated=tuple(rank.allocated for rank in found.memory.ranks),
        reserved=found.memory.reserved, total=found.memory.total, fit_probability=found.memory.fit_probability,
        shorter=parts.shorter if parts else None, longer=parts.longer if parts else None,
    )  # fmt: skip


class Asker:
    """Use it in a `with`. Answers go to a file of JSON lines, if one is given, and are taken from there."""

    def __init__(self, workers: int = 1, answers: Path | None = None, say: Say = quiet) -> None:
        self.workers, self.path, self.say = workers, answers, say
        self._known: dict[str, Answer] = dict(_read(answers)) if answers is not None and answers.exists() else {}
        self._stack = ExitStack()
        self._pool: Executor | None = None

    def __enter__(self) -> Self:
        if self.workers > 1:
            spawning = multiprocessing.get_context("spawn")  # this process may hold threads of other libraries
            self._pool = self._stack.enter_context(ProcessPoolExecutor(self.workers, spawning))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    def capture(self, models: Iterable[Model]) -> None:
        """Every graph that will be needed, each once, whichever process asks for it later."""
        wanted = {json.dumps(each, sort_keys=True): each for model in set(models) for each in model.captures()}
        for number, _ in enumerate(self._map(_capture, wanted.values()), start=1):
            self.say(f"captured {number} of {len(wanted)} graphs")

    def __call__(self, asks: Sequence[tuple[Ask, Profile | None]]) -> list[Answer]:
        keys = [_key(ask, profile) for ask, profile in asks]
        new = {key: each for key, each in zip(keys, asks, strict=True) if key not in self._known}
        if new:
            ordered = dict(sorted(new.items(), key=lambda item: item[1][0].key))  # those of one model stand together
            self.capture(ask.model for ask, _ in ordered.values())
            found = self._map(_answer, ordered.values())
            for number, (key, each) in enumerate(zip(ordered, found, strict=True), start=1):
                self._keep(key, each)
                self.say(f"forecast {number} of {len(new)}")
        return [self._known[key] for key in keys]

    def _map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterable[T]:
        if self._pool is None:
            return map(function, items)
        return self._pool.map(function, items, chunksize=_CHUNK)

    def _keep(self, key: str, each: Answer) -> None:
        self._known[key] = each
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, **asdict(each)}) + "\n")


def _answer(each: tuple[Ask, Profile | None]) -> Answer:
    return answer(*each)


def _capture(each: tuple[str, dict[str, str]]) -> None:
    try:
        captured(*each)
    except ForetellError:
        return  # who asks for it learns why


def _key(ask: Ask, profile: Profile | None) -> str:
    labels = ("name", "purpose", "card")  # of a profile, and change no answer
    numbers = None if profile is None else {k: v for k, v in asdict(profile).items() if k not in labels}
    return hashlib.sha256(json.dumps([ask.key, numbers, foretell.__version__]).encode()).hexdigest()[:24]


def _read(path: Path) -> Iterable[tuple[str, Answer]]:
    """A line that was cut off when a run was stopped is asked again."""
    for line in path.read_text().splitlines():
        try:
            kept = json.loads(line)
            yield kept.pop("key"), Answer(**{**kept, "allocated": tuple(kept["allocated"])})
        except (ValueError, TypeError, KeyError):
            continue
