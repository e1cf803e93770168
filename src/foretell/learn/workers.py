"""One function on many things, in forked workers that share what is too large to send."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

from foretell.supervisor import end_with_parent

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Got = TypeVar("Got")
_shared: Any = None  # what forked workers inherit


def each(
    function: Callable[[Shared, Item], Got], shared: Shared, items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Got]]:
    """`function(shared, one)` for each item, as they are done; it must be a function of a module."""
    global _shared
    if workers < 2:
        yield from ((one, function(shared, one)) for one in items)
        return
    _shared = shared
    try:
        with ProcessPoolExecutor(
            min(workers, os.cpu_count() or 1), mp_context=get_context("fork"), initializer=end_with_parent
        ) as pool:
            futures = {pool.submit(_in_worker, function, one): one for one in items}
            for future in as_completed(futures):
                yield futures[future], future.result()
    finally:
        _shared = None


def _in_worker(function: Callable[[Any, Item], Got], one: Item) -> Got:
    return function(_shared, one)
