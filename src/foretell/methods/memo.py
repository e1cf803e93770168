"""What a graph says does not change: as long as it is around, it is read once, however many fits ask."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from foretell.graph import Graph

P = ParamSpec("P")
T = TypeVar("T")
_known: dict[tuple[Hashable, ...], tuple[weakref.ref[Graph], object]] = {}


def once(function: Callable[Concatenate[Graph, P], T]) -> Callable[Concatenate[Graph, P], T]:
    """A function of a graph, and of whatever else can be hashed, that remembers."""

    @wraps(function)
    def remembering(graph: Graph, /, *rest: P.args, **named: P.kwargs) -> T:
        key = (function, id(graph), *rest, *named.items())
        found = _known.get(key)
        if found is None or found[0]() is not graph:
            found = (weakref.ref(graph, lambda _: _known.pop(key, None)), function(graph, *rest, **named))
            _known[key] = found
        return cast("T", found[1])

    return remembering


@contextmanager
def anew() -> Iterator[None]:
    """Inside, everything is read again: for who measures what reading takes."""
    before = dict(_known)
    _known.clear()
    try:
        yield
    finally:
        _known.clear()
        _known.update({key: found for key, found in before.items() if found[0]() is not None})
