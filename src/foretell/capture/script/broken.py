"""Packages that are installed and fail when a script imports them, as where a library of the system is missing: in the next run they
are as if they were not installed, which is an error only where a step uses them."""

from __future__ import annotations

import ast
from typing import Any, Final

from foretell.capture.reads import OWN, is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.faults import fault_of
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.packages import ESSENTIAL
from foretell.capture.script.set_aside import statement_at
from foretell.capture.script.unread import frames_in
from foretell.errors import ForetellError

BROKEN: Final = "modules that fail when they are imported"  # what the guess about them is called


def broken(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The modules that the script's import names which has failed inside of a library, each with what is said of it."""
    known: dict[str, str] = guesses.known.get(BROKEN, {})
    if isinstance(ended.error, ForetellError):
        return {}
    new = {name: str(fault_of(ended).error(ended)) for name in _imported(ended.error) if name not in known}
    return {BROKEN: {**known, **new}} if new else {}


def _imported(error: BaseException) -> list[str]:
    frames = [(frame, line) for frame, line in frames_in(error) if not frame.f_code.co_filename.startswith(("<", OWN))]
    last = max((i for i, (frame, _) in enumerate(frames) if not is_library(frame.f_code.co_filename)), default=None)
    if last is None or last == len(frames) - 1 or frames[last + 1][0].f_code.co_name != "<module>":
        return []  # else the first frame of the library is a module's: it was an import that failed
    frame, line = frames[last]
    statement = statement_at(frame.f_code.co_filename, line)
    if isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
        names = [statement.module]
    elif isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        return []
    return [name for name in names if name.partition(".")[0] not in ESSENTIAL]
