"""Loops of a script that run for long before it trains: the next run ends them early, as if there were less to go through.

Which they are shows in where the script was whenever it was looked at. A loop that trains, or that plays in an environment,
is left as it is.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.parsed import known_tree, known_trees
from foretell.capture.script.waits import WAITS, waits
from foretell.units import Seconds

CUT: Final = "loops that end early"  # what the guess about them is called
ROUNDS: Final = "foretell_rounds"  # (what is gone through, line) → the first of it
MORE: Final = "foretell_more"  # (line) → whether another round may begin
_PATIENCE: Final[Seconds] = 40.0  # of the processor, without an update
_LOOKS: Final = 60  # the last ones, that count
_OFTEN: Final = 0.5  # of them, in which a loop was under way
_FEWEST, _LONGEST = 64, 3.0  # rounds that a loop has in any case; seconds of the processor, after which it ends
_FEWEST_OF_LONG, _LONG = 4, 12.0  # the same of one whose rounds are long themselves, as of loops in a loop
_TRAINS: Final = re.compile(r"(?<!pre)train|learn|backward|optim|updat\w*\(|\.step\(|\.fit\(|loss", re.IGNORECASE)
_PROGRESS: Final = re.compile(r"\b\w*(bar|progress|tqdm)\w*\.update\(", re.IGNORECASE)  # is only shown


class Looks:
    """Where a script was when it was looked at."""

    def __init__(self) -> None:
        self._seen: deque[frozenset[tuple[str, int]]] = deque(maxlen=_LOOKS)

    def see(self, frame: Any) -> None:
        lines = set()
        while frame is not None:
            file = frame.f_code.co_filename
            if not is_library(file):
                lines.add((file, frame.f_lineno or 0))
            frame = frame.f_back
        self._seen.append(frozenset(loop for file, line in lines for loop in around(file, line)))

    def slow(self, guesses: Guesses, *, at_once: bool = False) -> dict[str, Any]:
        """Loops that take long, for the next run to end early; nothing where none is new or it is too soon to say."""
        if not at_once and (len(self._seen) < _LOOKS // 4 or time.process_time() < _PATIENCE):
            return {}
        times = Counter(loop for loops in self._seen for loop in loops)
        known: list[Any] = guesses.known.get(CUT, [])
        found = [[*loop] for loop, count in sorted(times.items()) if count > _OFTEN * len(self._seen)]
        new = [loop for loop in found if loop not in known]
        shown: dict[str, Any] = {CUT: [*known, *new]} if new else {}
        if waited := [[path, line] for path, tree in known_trees() for line in waits(tree)]:
            shown[WAITS] = waited
        return {what: value for what, value in shown.items() if guesses.is_new(what, value)}


def around(path: str, line: int) -> Iterator[tuple[str, int]]:
    """Loops that a line of a parsed file is in, of those that do not train, by the lines that they begin in."""
    tree = known_tree(path)
    for loop, first, last in _loops(tree) if tree is not None else ():
        if first <= line <= last:
            yield path, loop


@functools.cache
def _loops(tree: ast.Module) -> tuple[tuple[int, int, int], ...]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While) and not _trains(node) and not _gives_for_ever(node):
            found.append((node.lineno, node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            found += [(each.iter.lineno, node.lineno, node.end_lineno or node.lineno) for each in node.generators]
    return tuple(found)


def _trains(loop: ast.For | ast.While) -> bool:
    return _TRAINS.search(_PROGRESS.sub("", ast.unparse(loop))) is not None


def _gives_for_ever(loop: ast.For | ast.While) -> bool:
    """Whether it is a generator's that whoever asks never comes to the end of."""
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    return endless and any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(loop))


def cut(tree: ast.Module, lines: Collection[int]) -> ast.Module:
    """Let loops that begin in those lines end early."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and node.lineno in lines:
            node.iter = _wrapped(node.iter, f"{ROUNDS}(x, {node.lineno})")
        elif isinstance(node, ast.While) and node.lineno in lines:
            node.test = _wrapped(node.test, f"(x) and {MORE}({node.lineno})")
        elif isinstance(node, ast.comprehension) and node.iter.lineno in lines and not node.is_async:
            node.iter = _wrapped(node.iter, f"{ROUNDS}(x, {node.iter.lineno})")
    return ast.fix_missing_locations(tree)


def _wrapped(inner: ast.expr, template: str) -> ast.expr:
    outer = ast.parse(template, mode="eval").body
    for node in ast.walk(outer):
        ast.copy_location(node, inner)
    for node in ast.walk(outer):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.Name) and value.id == "x":
                setattr(node, name, inner)
            elif isinstance(value, list):
                setattr(node, name, [inner if isinstance(v, ast.Name) and v.id == "x" else v for v in value])
    return outer


def _is_enough(rounds: int, began: Seconds) -> bool:
    worked = time.process_time() - began
    return (rounds >= _FEWEST and worked > _LONGEST) or (rounds >= _FEWEST_OF_LONG and worked > _LONG)


class Rounds:
    """Counts the rounds of such loops, and their time; `ended` hears of one that has ended early."""

    def __init__(self, ended: Callable[[str, int], None]) -> None:
        self._ended = ended
        self._begun: dict[
            tuple[str, int], tuple[Any, int, Seconds]
        ] = {}  # by file and line: of the frame that came last

    def of(self, what: Iterable[Any], line: int) -> Iterator[Any]:
        """What a loop goes through, or the first of it."""
        path, began = sys._getframe(1).f_code.co_filename, time.process_time()
        return self._first(what, path, line, began)

    def _first(self, what: Iterable[Any], path: str, line: int, began: Seconds) -> Iterator[Any]:
        for number, each in enumerate(what):
            if _is_enough(number, began):
                self._ended(path, line)
                return
            yield each

    def more(self, line: int) -> bool:
        """Whether a `while` loop may have another round."""
        frame = sys._getframe(1)
        loop = frame.f_code.co_filename, line
        last, rounds, began = self._begun.get(loop, (None, 0, 0.0))
        if last is not frame:  # another call: kept, since one that is gone leaves its number to the next
            rounds, began = 0, time.process_time()
        if _is_enough(rounds, began):
            del self._begun[loop]
            self._ended(*loop)
            return False
        self._begun[loop] = frame, rounds + 1, began
        return True
