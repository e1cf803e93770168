"""Keywords that functions of libraries took when a script was written: the next run leaves them out, and lists them."""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

from foretell.capture.reads import OWN, is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.packages import ESSENTIAL
from foretell.capture.script.parsed import tree_of
from foretell.capture.script.unread import frames_in

LEFT_OUT: Final = "keywords that libraries do not take any more"  # what the guess about them is called
_KEYWORD: Final = re.compile(r"^([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_KEYWORDS: Final = 8  # that are left out of one script


def keywords_left_out(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """A function of a library that refuses a keyword of the script's, where no step rests on it.

    What makes models, optimizers and tensors is asked for as it is: there a keyword may change the step.
    """
    found = _KEYWORD.match(str(ended.error)) if isinstance(ended.error, TypeError) else None
    known: list[list[str]] = guesses.known.get(LEFT_OUT, [])
    if found is None or not ended.script.fake_data or len(known) >= _KEYWORDS:
        return {}
    own = [
        at for at in frames_in(ended.error) if not at[0].f_code.co_filename.startswith(OWN)
    ]  # one may be left out already
    frame, line = own[-1]
    if is_library(frame.f_code.co_filename):
        return {}
    name = found[1].removesuffix(".__init__")
    thing = next((t for t in _called_in(frame, line) if _is_called(t, name)), None)
    module = getattr(thing, "__module__", None) or ""
    if module.partition(".")[0] in ESSENTIAL or not _is_of_a_library(module):
        return {}
    return {LEFT_OUT: [*known, [module, name, found[2]]]}


def _called_in(frame: types.FrameType, line: int) -> Iterator[Any]:
    """Functions and classes that are called in a line, as far as names lead to them."""
    known = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    for node in ast.walk(tree_of(frame.f_code.co_filename)):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            first, *parts = ast.unparse(node.func).split(".")
            thing = known.get(first)
            for part in parts:
                thing = getattr(thing, part, None)
            yield thing


def _is_called(thing: Any, name: str) -> bool:
    """Whether it is what an error calls so, by itself and not as a part of a class."""
    return bool(name == getattr(thing, "__qualname__", "") == getattr(thing, "__name__", None))


def _is_of_a_library(module: str) -> bool:
    there = sys.modules.get(module)
    return isinstance(there, types.ModuleType) and is_library(getattr(there, "__file__", None) or "")
