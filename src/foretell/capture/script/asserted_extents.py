"""A script that checks an extent itself, `assert vectors.shape[0] == vocabulary.size`: what was made up is as large as it says."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any, Final

import torch

from foretell.capture.reads import is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.parsed import tree_of
from foretell.capture.script.shapes import is_made_up, replaced
from foretell.capture.script.unread import frames_in

_PLAIN: Final = (
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Constant,
    ast.Load,
    ast.UnaryOp,
    ast.USub,
    ast.BinOp,
    ast.operator,
)
_MEASURES: Final = ("len", "size", "dim")  # that may be called: they change nothing
_Pair = tuple[ast.expr, ast.expr]


def asserted_extents(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Arrays as large as the check that has failed wants them."""
    frames = frames_in(ended.error)
    if not frames or is_library(frames[-1][0].f_code.co_filename):
        return {}
    frame, line = frames[-1]
    for pair in _checked(tree_of(frame.f_code.co_filename), line):
        one, other = (_known(side, frame) for side in pair)
        for got, wanted in _pairs(one, other):
            if is_made_up(got) and not is_made_up(wanted) and (shown := replaced(guesses, got, wanted)):
                return shown
    return {}


def _checked(tree: ast.Module, line: int) -> Iterator[_Pair]:
    """What must be equal by an `assert` in that line, or by an `if` that raises in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or 0):
            yield from _compared(node.test, ast.Eq)
        elif isinstance(node, ast.If) and any(isinstance(s, ast.Raise) and s.lineno == line for s in node.body):
            yield from _compared(node.test, ast.NotEq)


def _compared(test: ast.expr, how: type[ast.cmpop]) -> Iterator[_Pair]:
    for part in test.values if isinstance(test, ast.BoolOp) else [test]:
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], how):
            yield part.left, part.comparators[0]


def _known(side: ast.expr, frame: types.FrameType) -> Any:
    """What it is, where finding it out changes nothing."""
    calls = [node for node in ast.walk(side) if isinstance(node, ast.Call)]
    if any(ast.unparse(call.func).rpartition(".")[2] not in _MEASURES for call in calls):
        return None
    if not all(isinstance(node, (*_PLAIN, ast.Call, ast.Tuple, ast.expr_context)) for node in ast.walk(side)):
        return None
    try:
        code = compile(ast.Expression(side), "<check>", "eval")
        return eval(code, frame.f_globals, frame.f_locals)  # nosec B307  # the script's own words, in its own frame
    except Exception:
        return None


def _pairs(one: Any, other: Any) -> Iterator[tuple[int, int]]:
    """Extents that are to be equal, either way round."""
    if isinstance(one, int) and isinstance(other, int):
        yield from ((one, other), (other, one))
    elif isinstance(one, tuple | torch.Size) and isinstance(other, tuple | torch.Size) and len(one) == len(other):
        for a, b in zip(one, other, strict=True):
            yield from _pairs(a, b) if a != b else ()
