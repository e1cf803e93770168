"""Where a search runs: in this process, or in several beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.util import Finalize
from typing import Any, Protocol

from foretell.errors import ForetellError
from foretell.supervisor import end_with_parent

Work = Callable[[Any, Any], Any]  # what is shared, what is asked


class Runner(Protocol):
    """Answers questions that share something large, in whichever order they are done."""

    workers: int

    def each(self, work: Work, shared: Any, questions: Iterable[Any]) -> Iterator[Any]:
        """`work(shared, one)` for each; what is asked is taken as workers become free, so it may follow from answers."""


class Processes:
    """Forks of this process, which share its memory; they stay, with what they remember, while what is shared does.

    One worker is this process itself.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, min(workers, os.cpu_count() or 1))
        self._pool: ProcessPoolExecutor | None = None
        self._of: Any = None

    def each(self, work: Work, shared: Any, questions: Iterable[Any]) -> Iterator[Any]:
        if self.workers < 2:
            yield from (work(shared, one) for one in questions)
            return
        pool, left, running = self._sharing(shared), iter(questions), set[Future[Any]]()
        try:
            while True:
                while len(running) < self.workers and (one := next(left, _NONE)) is not _NONE:
                    running.add(pool.submit(_in_worker, work, one))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            self.close()
            raise ForetellError(
                "a process of the search was ended, as the system does when memory is full. Search with one: workers=1."
            ) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes; the next question starts others."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = self._of = None

    def _sharing(self, shared: Any) -> ProcessPoolExecutor:
        if self._pool is None or self._of is not shared:
            self.close()
            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=get_context("fork"), initializer=_begin, initargs=(shared,)
            )
            self._of = shared
            # A process that was forked itself waits for its children at its end, and these wait for questions: end them first.
            Finalize(self, self._pool.shutdown, exitpriority=10)
        return self._pool


_NONE: Any = object()
_shared: Any = None  # what a worker was forked with


def _begin(shared: Any) -> None:
    global _shared
    _shared = shared
    end_with_parent()


def _in_worker(work: Work, one: Any) -> Any:
    return work(_shared, one)
