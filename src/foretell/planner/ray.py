"""A search on a Ray cluster: a task for each question, asked again elsewhere where a node is lost."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from foretell.errors import ForetellError, InputError
from foretell.planner.pool import Work
from foretell.ray_process import START, RayProcess, answers, check_installed, connect, head_is_gone
from foretell.units import Seconds

_TICK: Final[Seconds] = 0.1
_TRIES: Final = 5  # of a question whose node was lost


class RayRunner:
    """Questions answered by the processors of a cluster; what they share is sent to each node once."""

    def __init__(self, address: str, *, silence: Seconds = 20.0) -> None:
        """`silence`: until the head is given up."""
        check_installed("a search")
        self.address, self.silence = address, silence
        self.workers = 1  # until the cluster says how many
        self._process: RayProcess | None = None

    def each(self, work: Work, shared: Any, questions: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from self._each(self._connected(), work, shared, iter(questions))
        except (EOFError, OSError):
            self.close()
            raise ForetellError(head_is_gone(self.address)) from None
        except ForetellError:
            self.close()
            raise

    def close(self) -> None:
        """Leave the cluster; the next question joins it again."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _connected(self) -> Connection:
        if self._process is None:
            self._process = RayProcess("foretell.planner.ray:serve")
            self._process.link.send((self.address, self.silence))
            self.workers = self._hear(self._process.link, START).workers
        return self._process.link

    def _each(self, link: Connection, work: Work, shared: Any, left: Iterator[Any]) -> Iterator[Any]:
        link.send(_Share(work=work, shared=shared))
        running, over = 0, False
        while True:
            while not over and running < self.workers:
                if (one := next(left, _NONE)) is _NONE:
                    over = True
                else:
                    link.send(_Question(one=one))
                    running += 1
            if not running:
                return
            message = self._hear(link, self.silence)
            self.workers = message.workers  # nodes come and go
            if message.answered:
                running -= 1
                yield message.answer

    def _hear(self, link: Connection, patience: Seconds) -> _Message:
        if not link.poll(patience):
            raise EOFError
        message: _Message = link.recv()
        if message.error is not None:
            raise message.error
        return message


_NONE: Any = object()


# The process that Ray runs in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What the questions that follow are about."""

    work: Work
    shared: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    one: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """What `RayRunner` hears: an answer, or once per second that there is none yet."""

    workers: int = 1
    answered: bool = False
    answer: Any = None
    error: Exception | None = None


def serve(link: Connection) -> None:
    address, silence = link.recv()
    try:
        ray = connect(address)
    except InputError as error:
        link.send(_Message(error=error))
        return
    with contextlib.suppress(EOFError, OSError):  # the search is over
        _attend(link, _Tasks(ray), address, silence)
    ray.shutdown()


def _attend(link: Connection, tasks: _Tasks, address: str, silence: Seconds) -> None:
    looked = heard = time.monotonic()
    link.send(_Message(workers=tasks.workers()))
    while True:
        while link.poll(0):
            tasks.take(link.recv())
        for message in tasks.wait(_TICK):
            link.send(message)
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            if answers(tasks.head):
                heard = looked
                link.send(_Message(workers=tasks.workers()))
            elif looked - heard > silence:
                link.send(_Message(error=ForetellError(head_is_gone(address))))
                os._exit(1)  # Ray would wait for it in vain


class _Tasks:
    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.head = ray.get_runtime_context().gcs_address
        self._ask: Any = None
        self._shared: Any = None
        self._running: list[Any] = []

    def workers(self) -> int:
        return max(int(self.ray.cluster_resources().get("CPU", 1)), 1)

    def take(self, message: _Share | _Question) -> None:
        if isinstance(message, _Share):
            self._ask = self.ray.remote(num_cpus=1, max_retries=_TRIES)(message.work)
            self._shared = self.ray.put(message.shared)
        else:
            self._running.append(self._ask.remote(self._shared, message.one))

    def wait(self, seconds: Seconds) -> Iterator[_Message]:
        if not self._running:
            time.sleep(seconds)
            return
        ready, self._running = self.ray.wait(self._running, num_returns=1, timeout=seconds)
        for ref in ready:
            yield self._message_of(ref)

    def _message_of(self, ref: Any) -> _Message:
        try:
            return _Message(workers=self.workers(), answered=True, answer=self.ray.get(ref))
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, ForetellError) else ForetellError(_last_line(error))
            return _Message(error=cause)
        except self.ray.exceptions.RayError as error:
            return _Message(
                error=ForetellError(f"the Ray cluster lost a part of the search for good. {_last_line(error)}")
            )


def _last_line(error: Exception) -> str:
    last = str(error).strip().splitlines()[-1][:300]
    return f"On a node of the cluster: {last}. Every node needs the same versions of Foretell and Python."
