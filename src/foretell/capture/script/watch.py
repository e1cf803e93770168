"""A look at a script while it runs, from a thread of its own: where it is, for whoever waits, and an end to what leads nowhere."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.slow import Looks
from foretell.units import GIB, Bytes, Seconds

if TYPE_CHECKING:
    from foretell.capture.script.session import Session

FIRST_UPDATE: Final[Seconds] = 270.0  # in which it must come, unless the user gives a capture another limit
_WAITING: Final = 0.03  # of the time that the processor works for a script which waits for something
LIMIT: Final = "FORETELL_CAPTURE_LIMIT"
MEMORY: Final = "FORETELL_CAPTURE_MEMORY"
MEMORY_LIMIT: Final[Bytes] = 8 * GIB  # that a script may hold before its first update, where its data stand in
_LOOK: Final[Seconds] = 0.5
_FROM_OTHERS: Final = tuple(f"multiprocessing{os.sep}{name}.py" for name in ("queues", "connection", "synchronize"))
_STEPS: Final = 3


def _memory() -> Bytes:
    """What this process has of the machine's memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Watch(threading.Thread):
    """Reports where the script is, and refuses one that does not come to an update."""

    def __init__(
        self,
        session: Session,
        report: Callable[[str], None],
        refuse: Callable[[str], None],
        again: Callable[[Mapping[str, Any]], None] = lambda shown: None,
    ) -> None:
        super().__init__(daemon=True)
        self._session, self._report, self._refuse, self._again = session, report, refuse, again
        self._looks = Looks()
        self._main = threading.main_thread().ident
        self._began = time.monotonic()

    def run(self) -> None:
        wait, last = threading.Event(), ""
        while not wait.wait(_LOOK):
            if (now := self.words()) != last:
                self._report(last := now)
            if refusal := self._waits_for_the_dead():
                self._refuse(refusal)
                return
            if not self._has_begun():
                self._looks.see(sys._current_frames().get(self._main or 0))
                full = self._is_full()
                if shown := self._looks.slow(self._session.guesses, at_once=full):
                    self._again(shown)
                if full:
                    self._refuse(self._refusal_of_data())
                    return
            if self._is_late() and not self._has_begun():
                self._refuse(self._refusal())
                return

    def _is_late(self) -> bool:
        """By the processor's time, since a busy machine makes a good script slow; one that only waits has none of it."""
        passed, worked = time.monotonic() - self._began, self._session.guesses.worked
        return worked > FIRST_UPDATE or (passed > FIRST_UPDATE and worked < _WAITING * passed)

    def _is_full(self) -> bool:
        """Whether data that stand in fill the host; a user who says how much it may take has it."""
        return self._session.script.fake_data and MEMORY not in os.environ and _memory() > MEMORY_LIMIT

    def _refusal_of_data(self) -> str:
        where = self._where()
        doing = f" Line {where[1]} of {where[0]} is being run ({where[2]})." if where else ""
        return (
            f"{self._session.script.path} has taken {_memory() / GIB:.0f} GiB of this machine's memory before its first update, for data "
            f"that stand in.{doing} Give it less data with its own arguments, after --, or set {MEMORY} to what it may take."
        )

    def _waits_for_the_dead(self) -> str:
        """A script that awaits word from processes of its own, of which one has failed, waits for ever."""
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None and not frame.f_code.co_filename.endswith(_FROM_OTHERS):
            frame = frame.f_back if is_library(frame.f_code.co_filename) else None
        if frame is None:
            return ""
        failed = [process for process in self._session.processes if (process.exitcode or 0) > 0]
        where = self._where()
        if not failed or where is None:
            return ""
        return (
            f"{self._session.script.path} waits in line {where[1]} of {where[0]} ({where[2]}) for a process that it has started "
            f"({failed[0].name}), which has failed, with exit code {failed[0].exitcode}. What it printed says why. Let the script "
            "work in one process with its own arguments, after --."
        )

    def _has_begun(self) -> bool:
        return bool(self._session.updates.sequence) or LIMIT in os.environ

    def words(self) -> str:
        session = self._session
        steps, passes = len(session.updates.sequence), session.passes
        if steps or passes.learning:
            stage = f"step {steps + 1}" + (f" of {_STEPS}" if steps < _STEPS else "")
        else:
            stage = "evaluation, cut short" if passes.quiet else "getting ready"
        where = self._where()
        return " · ".join(
            filter(None, (stage, where and f"line {where[1]} of {where[0]}", f"{session.recorder.seen:,} ops"))
        )

    def _where(self) -> tuple[str, int, str] | None:
        """The line of the user's own code that is being run: its file, its number and its text."""
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        file, line = frame.f_code.co_filename, frame.f_lineno or 0  # between two lines it is none
        return os.path.relpath(file), line, linecache.getline(file, line).strip()

    def _refusal(self) -> str:
        session, where = self._session, self._where()
        doing = (
            f"Line {where[1]} of {where[0]} is being run ({where[2]})"
            if where
            else "None of its own lines is being run"
        )
        passes = session.passes.quiet
        met = f", after {passes:,} forward passes without gradients" if passes else ""
        return (
            f"{session.script.path} has made no update of its parameters in {FIRST_UPDATE:.0f} s. {doing}{met}. Let it come to "
            "its first step sooner: give it arguments for less data, or for fewer passes before training (after --), or "
            f"set {LIMIT} to the seconds that it may take."
        )
