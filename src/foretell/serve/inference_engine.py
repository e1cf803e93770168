"""PredictDDL's inference engine: workers that price questions, each in a process that can be ended when it takes too long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from foretell import errors
from foretell.errors import ForetellError, InputError
from foretell.serve.problems import Problem
from foretell.serve.ray_workers import RayWorkers
from foretell.serve.requests import ForecastRequest, PredictionRequest
from foretell.serve.settings import Settings
from foretell.serve.worker import CHANGED, MEMORY, MISSING, pack, unpack
from foretell.supervisor import Child, ChildEnded
from foretell.units import Seconds

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_TRIES: Final = 4  # of a question on a Ray cluster, whose nodes come and go
_START: Final[Seconds] = 120.0  # to load what it needs, on a busy machine
_QUICK: Final = 16  # threads for what nobody has to wait for


class Process(Protocol):
    """A worker's process as the engine sees it: a `Child` of this one, or one on a Ray cluster."""

    def send(self, message: bytes) -> None: ...
    def receive(self, limit: Seconds) -> bytes: ...
    @property
    def has_ended(self) -> bool: ...
    def close(self) -> None: ...


def _fresh() -> Process:
    return Child.fresh("foretell.serve.worker:serve", memory=MEMORY)


class InferenceEngine:
    """A thread for each question waits for its turn, then for its answer; questions beyond a limit are sent away at once. With
    `ray`, workers are on a cluster."""

    def __init__(self, settings: Settings, start: Callable[[], Process] | None = None) -> None:
        self._settings = settings
        self._cluster = None if settings.ray is None else RayWorkers(settings.ray)
        self._start = start or (_fresh if self._cluster is None else self._cluster.start)
        self._tries = 1 if self._cluster is None else _TRIES
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._pending = 0
        self._closed = False
        self._turns = _Turns(settings.workers)
        # One thread sees a question through, so it is not handed on; those in line leave some for what is known already.
        self.threads = ThreadPoolExecutor(settings.waiting + _QUICK, "foretell-engine")

    @property
    def waiting(self) -> int:
        """Questions that are in work or wait for it."""
        return self._pending

    def warm(self) -> None:
        """Have every worker started before the first question."""
        for worker in [self._take("") for _ in range(self._settings.workers)]:
            self._give_back(worker)

    def read(self, data: bytes) -> dict[str, Any]:
        """What a graph's file is about, or a GraphFileError."""
        return self._ask({"do": "read"}, "", lambda: data, send=True)[0]

    def forecast(
        self,
        question: ForecastRequest,
        key: str,
        profile: Path | None,
        load: Callable[[], bytes],
        devices: Mapping[str, str] = _NONE,
    ) -> tuple[dict[str, Any], bytes]:
        """A few facts, and the answer as JSON. `load` gives the graph's file, where no worker has it at hand; `devices` are
        those of the team's own."""
        return self._ask(_head("forecast", question, key, profile, devices), question.graph, load)

    def draw(
        self,
        question: ForecastRequest,
        key: str,
        profile: Path | None,
        load: Callable[[], bytes],
        *,
        devices: Mapping[str, str] = _NONE,
        **how: str | bool | tuple[float, float],
    ) -> str:
        """The report of the same forecast, or a part of its timeline, as HTML; `how` is its id, `window` and `whole`."""
        head = _head("draw", question, key, profile, devices) | how
        return self._ask(head, question.graph, load)[1].decode()

    def predict(
        self,
        question: PredictionRequest,
        folder: Path,
        load: Callable[[], bytes],
        devices: Mapping[str, str] = _NONE,
    ) -> dict[str, Any]:
        """What a fitted method says of a step: values by target, their intervals, and why there is none."""
        head = {
            "do": "predict", "question": question.model_dump(), "folder": str(folder), "devices": dict(devices),
        }  # fmt: skip
        return self._ask(head, question.graph, load)[0]

    def embed(self, data: bytes) -> list[float]:
        """PredictDDL's embedding of a network."""
        vector: list[float] = self._ask({"do": "embed"}, "", lambda: data, send=True)[0]["vector"]
        return vector

    def close(self) -> None:
        self._closed = True
        with self._lock:
            workers, self._all = list(self._all), set()
        self._turns.end()
        for worker in workers:
            worker.child.close()
        if self._cluster is not None:
            self._cluster.close()
        self.threads.shutdown(wait=True, cancel_futures=True)

    def _ask(
        self, head: dict[str, Any], graph: str, load: Callable[[], bytes], *, send: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        with self._waiting(), self._turns.one():
            return self._answer(head, graph, load, send)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A question is sent away where too many wait."""
        with self._lock:
            if self._pending >= self._settings.waiting:
                raise Problem(
                    503, f"{self._pending} questions are in work or wait.", next="Ask again in a second.",
                    headers={"Retry-After": "1"},
                )  # fmt: skip
            self._pending += 1
        try:
            yield
        finally:
            with self._lock:
                self._pending -= 1

    def _answer(
        self, head: dict[str, Any], graph: str, load: Callable[[], bytes], send: bool
    ) -> tuple[dict[str, Any], bytes]:
        for left in reversed(range(self._tries)):
            worker = self._ready(graph)
            try:
                reply, body = worker.ask(pack(head, load() if send else b""), self._settings.seconds)
                if reply.get(MISSING):
                    reply, body = worker.ask(pack(head, load()), self._settings.seconds)
                break
            except TimeoutError:
                self._drop(worker)
                raise Problem(
                    504, f"this took longer than {self._settings.seconds:g} s and was stopped.",
                    next="Ask about a smaller graph, or fewer stages and micro-steps.",
                ) from None  # fmt: skip
            except ChildEnded as ended:
                self._drop(worker)
                if not left:  # else its node was lost, and another answers
                    raise Problem(
                        500,
                        f"the process that answered {ended.how}.",
                        next="Report it, with the graph and the question.",
                    ) from None
            except BaseException:
                self._drop(worker)  # it may still be sending
                raise
        if graph:
            worker.knows.add(graph)
        self._give_back(worker)
        if reply.get(CHANGED):
            raise Problem(
                503, "the profile, the catalog or the files of Foretell changed while this was priced.",
                next="Ask again; where it stays so, start the service again.", headers={"Retry-After": "1"},
            )  # fmt: skip
        if "error" in reply:
            raise _named(reply["error"])(reply["text"])
        return reply, body

    def _ready(self, graph: str) -> _Worker:
        why = ""
        for _ in range(self._tries):
            try:
                return self._take(graph)
            except ChildEnded as ended:  # on a cluster with its node: the next one is placed elsewhere
                why = str(ended)
            except (InputError, TimeoutError) as error:
                why = str(error) or f"it was not ready within {_START:g} s."
                break
        raise Problem(
            503, f"no process to answer could be started: {why}", next="Ask again later.", headers={"Retry-After": "5"}
        )

    def _take(self, graph: str) -> _Worker:
        """An idle worker, one that has the graph at hand where there is one; none that has ended while it waited."""
        with self._lock:
            ended = [worker for worker in self._idle if worker.child.has_ended]
            self._idle = [worker for worker in self._idle if worker not in ended]
            found = next((w for w in self._idle if graph in w.knows), None) or (self._idle[-1] if self._idle else None)
            if found is not None:
                self._idle.remove(found)
        for worker in ended:
            self._drop(worker)
        if found is not None:
            return found
        worker = _Worker(self._start())
        with self._lock:
            self._all.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        with suppress(OSError):
            worker.child.close()


class _Turns:
    """So many at a time, in the order in which they came: whoever is done calls the next one."""

    def __init__(self, most: int) -> None:
        self._free, self._ended = most, False
        self._line: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        mine = threading.Lock()
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                mine.acquire()
                self._line.append(mine)
        mine.acquire()  # at once, or when it is called
        try:
            if self._ended:
                raise Problem(503, "the service ends.", next="Ask again later.", headers={"Retry-After": "5"})
            yield
        finally:
            with self._lock:
                if self._line:
                    self._line.popleft().release()
                else:
                    self._free += 1

    def end(self) -> None:
        """Nobody gets a turn any more."""
        self._ended = True


class _Worker:
    def __init__(self, child: Process) -> None:
        self.child = child
        self.knows: set[str] = set()  # graphs that it had at hand; it may have forgotten some
        self.child.receive(_START)

    def ask(self, message: bytes, limit: Seconds) -> tuple[dict[str, Any], bytes]:
        self.child.send(message)
        return unpack(self.child.receive(limit))


def _head(
    do: str, question: ForecastRequest, key: str, profile: Path | None, devices: Mapping[str, str]
) -> dict[str, Any]:
    named = None if profile is None else str(profile)
    return {"do": do, "question": question.model_dump(), "key": key, "profile": named, "devices": dict(devices)}


def _named(name: str) -> type[ForetellError]:
    kind = getattr(errors, name, InputError)
    return kind if isinstance(kind, type) and issubclass(kind, ForetellError) else InputError
