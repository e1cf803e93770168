"""Processes that a script starts itself to train in: the first of them runs here, the others are the plan's.

Others, such as those that play an environment or read files, are started as they are.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Final
from weakref import WeakKeyDictionary

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session

_TRAINS: Final = frozenset(("init_process_group", "backward", "init_distributed"))
_DEPTH: Final = 5  # of calls that are followed to see whether a function trains


def install(session: Session) -> None:
    _spawn_inline()
    _start_inline(session)


def _spawn_inline() -> None:
    """`spawn(fn, nprocs=8)` runs the first rank here."""
    from torch import multiprocessing as processes

    class Over:
        """Processes that have ended."""

        def join(self, *args: Any, **kwargs: Any) -> bool:
            return True

        def pids(self) -> list[int]:
            return []

    def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), *rest: Any, **kwargs: Any) -> Over:
        fn(0, *args)
        return Over()

    for owner in (processes, sys.modules["torch.multiprocessing.spawn"]):  # which the function's name hides
        for name in ("spawn", "start_processes"):
            replace(owner, name, spawn)


def _start_inline(session: Session) -> None:
    """Of `Process(target=train, args=(rank, …))` the lowest rank runs here, when the script waits for one of them or ends."""
    start, join, ended = BaseProcess.start, BaseProcess.join, BaseProcess.is_alive
    waiting: dict[BaseProcess, None] = {}  # the script may keep none of them
    done: WeakKeyDictionary[BaseProcess, None] = WeakKeyDictionary()

    def start_later(self: Any) -> None:
        if trains(getattr(self, "_target", None), getattr(self, "_args", ())):
            waiting[self] = None
        else:
            start(self)
            session.processes.append(self)

    def run_first(self: Any, timeout: Any = None) -> None:
        if self not in waiting and self not in done:
            return join(self, timeout)
        if self in waiting:
            first = min(waiting, key=_rank)
            others = list(waiting)
            waiting.clear()
            done.update(dict.fromkeys(others))
            first.run()
        return None

    def is_alive(self: Any) -> bool:
        return False if self in done else self in waiting or ended(self)

    def run_rest() -> None:
        if waiting:
            run_first(next(iter(waiting)))

    session.at_end.append(run_rest)
    for name, function in {"start": start_later, "join": run_first, "is_alive": is_alive}.items():
        replace(BaseProcess, name, function)


def _rank(process: Any) -> int:
    """The first number that it is given, as scripts number their processes."""
    given = (*getattr(process, "_args", ()), *getattr(process, "_kwargs", {}).values())
    return next((value for value in given if type(value) is int), 0)


def trains(function: Any, arguments: Sequence[Any] = ()) -> bool:
    """Whether a function of the script's, or one that it calls or is given, makes a backward pass or joins a group."""
    seen: set[types.CodeType] = set()
    return any(_TRAINS & set(_names(f, seen, _DEPTH)) for f in (function, *arguments) if callable(f))


def _names(function: Any, seen: set[types.CodeType], depth: int) -> Iterator[str]:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None or code in seen or not depth:
        return
    seen.add(code)
    for name in _names_in(code):
        yield name
        called = plain.__globals__.get(name)
        if isinstance(called, types.FunctionType):
            yield from _names(called, seen, depth - 1)
        elif isinstance(called, type):
            for method in vars(called).values():
                yield from _names(method, seen, depth - 1)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)
