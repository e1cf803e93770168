"""Arrays of one number where a number is asked for: NumPy took the number out until 2.4, and a script may count on it.

The next run of a script that fails so takes it out in the line that failed, as the NumPy that it was written with did.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from foretell.capture.reads import is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.unread import frames_in

SCALARS: Final = "lines in which an array of one number is a number"  # what the guess about them is called
SCALAR: Final = "foretell_scalar"  # (value) → the number in it, if it is an array of one
_WORDS: Final = re.compile(r"only (0-dimensional|length-1) arrays can be converted to Python scalars")
_WANTS: Final = re.compile(r"(^|\.)(int|float|complex|round|range|long|randint|randrange)$|^math\.")


def one_number_wanted(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The line of the script's that asked for a number."""
    if not isinstance(ended.error, TypeError) or not _WORDS.search(str(ended.error)):
        return {}
    known: list[Any] = guesses.known.get(SCALARS, [])
    for frame, line in frames_in(ended.error)[::-1]:
        if not is_library(frame.f_code.co_filename):
            place = [frame.f_code.co_filename, line]
            return {SCALARS: [*known, place]} if place not in known else {}
    return {}


def taken_out(tree: ast.Module, lines: Collection[int]) -> ast.Module:
    """Let calls in those lines that want a number have the one that is in an array."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not any(node.lineno <= n <= (node.end_lineno or 0) for n in lines):
            continue
        if _WANTS.search(ast.unparse(node.func)):
            node.args = [each if isinstance(each, ast.Starred) else _taken(each) for each in node.args]
    return ast.fix_missing_locations(tree)


def _taken(value: ast.expr) -> ast.expr:
    call = ast.Call(func=ast.Name(id=SCALAR, ctx=ast.Load()), args=[value], keywords=[])
    return ast.copy_location(call, value)


def scalar(value: Any) -> Any:
    return value.reshape(())[()] if isinstance(value, np.ndarray) and value.ndim and value.size == 1 else value
