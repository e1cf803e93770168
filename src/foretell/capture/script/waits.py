"""Conditions that put a script's training off until its buffer is full: the next run of a slow one takes them to hold sooner.

An agent that plays for long before it learns has a condition such as `if len(memory) < start: continue` in its way, which gives
the same answer at every round. Once it has given it often enough, with nothing learnt, it is taken to have changed its mind. Only
conditions that what trains stands behind count, and none that only skips a part of what comes next.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from foretell.units import Seconds

WAITS: Final = "conditions that training waits for"  # what the guess about them is called
READY: Final = "foretell_ready"  # (what was compared, line, whether it must hold) → whether it does
_ENOUGH: Final = 5_000  # rounds: more than an agent plays for one round of updates, as a rule
_LONGEST: Final[Seconds] = 3.0  # of the processor
_LEARNS: Final = re.compile(r"\b\w*(train|learn|optim\w*|updat\w*|backward)\w*\(|\.step\(|\.fit\(", re.IGNORECASE)
_ORDER: Final = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_Found = tuple[ast.Compare, bool]  # and whether it must hold for training to begin


def waits(tree: ast.Module) -> list[int]:
    """Lines of comparisons that training waits for."""
    return sorted({test.lineno for test, _ in _found(tree)})


def hurried(tree: ast.Module, lines: Collection[int]) -> ast.Module:
    """Let those comparisons be asked whether they have said the same for long."""
    found = {id(test): wanted for test, wanted in _found(tree) if test.lineno in lines}
    return ast.fix_missing_locations(_ReadyCalls(found).visit(tree)) if found else tree


class _ReadyCalls(ast.NodeTransformer):
    def __init__(self, found: dict[int, bool]) -> None:
        self._found = found

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if id(node) not in self._found:
            return node
        name, wanted = ast.Name(id=READY, ctx=ast.Load()), self._found[id(node)]
        call = ast.Call(func=name, args=[node, ast.Constant(node.lineno), ast.Constant(wanted)], keywords=[])
        return ast.copy_location(call, node)


def _found(tree: ast.Module) -> Iterator[_Found]:
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            block: Any = getattr(node, name, None)
            for place, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.If):
                    yield from _of_block(statement, block[place + 1 :])


def _of_block(statement: ast.If, rest: list[ast.stmt]) -> Iterator[_Found]:
    if _learns(statement.body):
        yield from ((test, True) for test in _compared(statement.test, ast.And))
    elif len(statement.body) == 1 and isinstance(statement.body[0], ast.Continue | ast.Return) and _learns(rest):
        yield from ((test, False) for test in _compared(statement.test, ast.Or))


def _learns(block: list[ast.stmt]) -> bool:
    return any(_LEARNS.search(re.sub(r"\benv\w*\.step\(", "", ast.unparse(statement))) for statement in block)


def _compared(test: ast.expr, joined: type[ast.boolop]) -> Iterator[ast.Compare]:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, joined) else [test]
    for part in parts:
        if isinstance(part, ast.Compare) and all(isinstance(op, _ORDER) for op in part.ops):
            yield part


class Waiting:
    """Counts what such conditions say; `ended` hears of one that is taken to hold, and `trains` says that none is any more."""

    def __init__(self, ended: Callable[[str, int], None], trains: Callable[[], bool]) -> None:
        self._ended, self._trains = ended, trains
        self._answers: dict[tuple[str, int], tuple[int, Seconds]] = {}  # rounds, and when the first was
        self._over: set[tuple[str, int]] = set()

    def ready(self, holds: Any, line: int, wanted: bool) -> Any:
        """What the script's comparison said, or what it is to say."""
        place = sys._getframe(1).f_code.co_filename, line
        if place in self._over:
            return wanted
        if type(holds).__name__ not in ("bool", "bool_") or bool(holds) == wanted or self._trains():
            self._answers.pop(place, None)
            return holds
        rounds, began = self._answers.get(place, (0, time.process_time()))
        self._answers[place] = rounds + 1, began
        if rounds < _ENOUGH or time.process_time() - began < _LONGEST:
            return holds
        self._over.add(place)
        self._ended(*place)
        return wanted
