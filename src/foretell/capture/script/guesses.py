"""What stand-ins are taken to be, and what an earlier run of the same script has shown them to be.

A stand-in asks for what is known about it before it makes up something. Where the script then contradicts what was made up,
the run ends, and the script is run once more with what that use has shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from foretell.units import Seconds

RUNS: Final = 40  # of one script, at most
LONG: Final[Seconds] = 120.0  # of the processor, in all runs so far, after which there is no further one
COLUMNS: Final = "columns of tables that no name says"
FIRST_OF_ONE: Final = "a tensor of one number has a first element"  # as it had when the script was written


class Contradicted(BaseException):
    """A use contradicts what a stand-in was taken to be; no `except Exception` of the script's stops it."""

    def __init__(self, shown: Mapping[str, Any]) -> None:
        super().__init__(", ".join(shown))
        self.shown = dict(shown)


class Guesses:
    """By what they are about: values that travel from one run of a script to the next, as JSON has them."""

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.known: dict[str, Any] = dict(known or {})
        self.made: dict[str, Any] = {}  # what was made up, or taken from what is known
        self.invented: dict[int, str] = {}  # extents and counts that no file has, and what they are of
        self._runs = int(self.known.get("runs", 1))
        self._worked = float(self.known.get("worked", 0.0))
        self._began = time.process_time()

    def about(self, what: str, usual: Any) -> Any:
        """What is known of it, or else what is usual."""
        return self.made.setdefault(what, self.known.get(what, usual))

    def contradict(self, what: str, shown: Any) -> None:
        """End this run, unless the script has been shown this already."""
        if self.is_new(what, shown):
            raise Contradicted({what: shown})

    def is_new(self, what: str, shown: Any) -> bool:
        now = self.made.get(what, self.known.get(what))
        return bool(self.may_run_again and now != shown and shown not in self.tried(what))

    @property
    def may_run_again(self) -> bool:
        return self._runs < RUNS and self.worked < LONG

    @property
    def worked(self) -> Seconds:
        """Of the processor, in all runs so far."""
        return self._worked + time.process_time() - self._began

    def tried(self, what: str) -> list[Any]:
        return list(self.known.get(f"tried {what}", []))

    def after(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """What the next run knows: it does not come back to what was contradicted."""
        old = {f"tried {what}": [*self.tried(what), self.made[what]] for what in shown if what in self.made}
        return {**self.known, **old, **shown, "runs": self._runs + 1, "worked": self.worked}
