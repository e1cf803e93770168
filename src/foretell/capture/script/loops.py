"""Loops over a data loader that lead to no update, cut short: an evaluation, statistics of a data set, a cache of it.

They end after a few batches, as if the data set were small. Which loop it is shows in what the script does with a batch:
passes of which nothing is learnt, or none at all for a long time.
"""

from __future__ import annotations

import dis
import inspect
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from foretell.capture.reads import is_library
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.capture.script.session import Session

_FOR: Final = dis.opmap["FOR_ITER"]
_BATCHES: Final = 3  # after which passes are known to be an evaluation's
_LONG: Final[Seconds] = 10.0  # of the processor, that a loop which calls no module may take


@dataclass(slots=True, kw_only=True)
class _Loop:
    learning: int  # passes and updates before it
    quiet: int
    began: Seconds
    batches: int = 0


class Loops:
    """Hears of every batch that a loader is about to give."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loops: WeakKeyDictionary[Any, _Loop] = WeakKeyDictionary()
        self.left_out: Counter[str] = Counter()  # batches, by what the loop was for

    def ends(self, iterator: Any, length: int | None) -> bool:
        """Whether the loop over a loader of so many batches has seen enough of them."""
        if length is None:
            return False  # data without an end: the script counts by itself, and would hear of one as an error
        passes = self._session.passes
        now = time.process_time()
        loop = self._loops.get(iterator)
        if loop is None or loop.learning != passes.learning:
            self._loops[iterator] = _Loop(learning=passes.learning, quiet=passes.quiet, began=now, batches=1)
            return False
        quiet = passes.quiet - loop.quiet
        evaluates = loop.batches >= _BATCHES and quiet >= loop.batches
        prepares = not quiet and now - loop.began > _LONG
        if (evaluates or prepares) and length is not None and _is_loop(sys._getframe(2)):
            return self._cut("evaluation" if evaluates else "preparation", loop, length)
        loop.batches += 1
        return False

    def _cut(self, why: str, loop: _Loop, length: int) -> bool:
        self.left_out[why] += max(length - loop.batches, 1)
        return True


def _is_loop(frame: Any) -> bool:
    """Whether a `for` takes the batches: who calls `next` himself counts on as many as there are."""
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename) and code.co_code[frame.f_lasti] != _FOR:
            return False
        if not code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return True
