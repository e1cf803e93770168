"""Where a search runs: in this process, or in several beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from foretell.errors import ForetellError
from foretell.supervisor import end_with_parent

Work = Callable[[Any, Any], Any]  # what is shared, what is asked


class Runner(Protocol):
    """Answers questions that share something large, in whichever order they are done."""

    workers: int

    def each(self, work: Work, shared: Any, asked: Iterable[Any]) -> Iterator[Any]:
        """`work(shared, one)` for each; what is asked is taken as workers become free, so it may follow from answers."""


class Here:
    """One after another, in this process."""

    workers = 1

    def each(self, work: Work, shared: Any, asked: Iterable[Any]) -> Iterator[Any]:
        for one in asked:
            yield work(shared, one)


_shared: Any = None  # what forked workers inherit


class Processes:
    """Forks of this process, which share its memory."""

    def __init__(self, workers: int) -> None:
        self.workers = max(1, min(workers, os.cpu_count() or 1))

    def each(self, work: Work, shared: Any, asked: Iterable[Any]) -> Iterator[Any]:
        global _shared
        if self.workers < 2:
            yield from Here().each(work, shared, asked)
            return
        _shared, left, running = shared, iter(asked), set[Future[Any]]()
        try:
            with ProcessPoolExecutor(self.workers, mp_context=get_context("fork"), initializer=end_with_parent) as pool:
                while True:
                    while len(running) < self.workers and (one := next(left, _NONE)) is not _NONE:
                        running.add(pool.submit(_in_worker, work, one))
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
        except BrokenProcessPool:
            raise ForetellError(
                "a process of the search was ended, as the system does when memory is full. Search with one: workers=1."
            ) from None
        finally:
            _shared = None


_NONE: Any = object()


def _in_worker(work: Work, one: Any) -> Any:
    return work(_shared, one)
