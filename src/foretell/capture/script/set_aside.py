"""Statements of a script that fail and that no step needs: a report, a check, a call that another version of a library had.

The next run passes over them, and lists them. It is the last that is tried: what gradients flow through, what makes a model, a loss
or an optimizer, and what takes a step is never passed over.
"""

from __future__ import annotations

import ast
import re
import types
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from foretell.capture.reads import is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.faults import fault_of
from foretell.capture.script.going_on import Place
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.packages import MissingError
from foretell.capture.script.parsed import tree_of
from foretell.capture.script.unread import frames_in, is_model
from foretell.errors import ForetellError
from foretell.sources.offline import refusal_in

SET_ASIDE: Final = "statements that are set aside"  # what the guess about them is called
FIRST_WORDS: Final = "what the first statement that was set aside has said"
_STATEMENTS: Final = 8  # statements
_FATAL: Final = (SyntaxError, NameError, NotImplementedError, MemoryError, RecursionError, torch.OutOfMemoryError)
_MAKES: Final = re.compile(
    r"model|net(work)?s?\b|module|encoder|decoder|backbone|generator|discriminator|critic|actor|agent|polic|teacher|student|"
    r"criteri|loss|optim|sched|scaler|layers?\b|embed|weight|engine|trainer|dataset|loader|config|args|\bcfg|opts?\b",
    re.IGNORECASE,
)
_TAKES_A_STEP: Final = re.compile(
    r"\.(backward|zero_grad|fit|train_step|training_step|optimize_parameters|learn)\(|\b(opt\w*|scaler|solver|trainer|agent)\.step\("
)
_TRAINS: Final = re.compile(
    r"^(train|main|run|fit|learn|worker|optimi[sz]e|step|update|launch|solve)|trainer|_train|_worker$", re.I
)
_INNER: Final = frozenset(("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"))


def set_aside(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The innermost statement of the script's that failed, where it is one that no step needs."""
    known: list[Any] = guesses.known.get(SET_ASIDE, [])
    error = ended.error
    if not ended.script.fake_data or isinstance(error, _FATAL) or len(known) >= _STATEMENTS or refusal_in(error):
        return {}
    if isinstance(error, ForetellError) and not isinstance(error, MissingError):
        return {}
    place = _place(error)
    if place is None or place.entry() in known:
        return {}
    first = {} if FIRST_WORDS in guesses.known else {FIRST_WORDS: _words(ended)}
    return {SET_ASIDE: [*known, place.entry()], **first}


def _words(ended: Ended) -> str:
    if isinstance(ended.error, ForetellError):
        return str(ended.error)
    return str(fault_of(ended).error(ended))


def _place(error: BaseException) -> Place | None:
    frames = frames_in(error)
    if any(is_model(frame) for frame, _ in frames):
        return None
    own = [(frame, line) for frame, line in frames if not is_library(frame.f_code.co_filename)]
    frame, line = next(((f, n) for f, n in own[::-1] if f.f_code.co_name not in _INNER), (None, 0))
    if frame is None:
        return None
    code = frame.f_code
    statement = statement_at(code.co_filename, line)
    if statement is None or not _may_go(statement, frame):
        return None
    first = 0 if code.co_name == "<module>" else code.co_firstlineno
    return Place(path=code.co_filename, first=first, line=statement.lineno)


def statement_at(path: str, line: int) -> ast.stmt | None:
    """The innermost one that a line is of."""
    found: ast.stmt | None = None
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            inner = found is None or node.lineno > found.lineno or not hasattr(node, "body")
            found = node if inner else found
    return found


def _may_go(statement: ast.stmt, frame: types.FrameType) -> bool:
    text = ast.unparse(statement)
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.Assert | ast.Raise | ast.Return):
        return False
    if _TAKES_A_STEP.search(text) or _flows(statement, frame):
        return False
    if isinstance(statement, ast.Raise | ast.Assert):
        return True
    if isinstance(statement, ast.Expr):
        called = statement.value.func if isinstance(statement.value, ast.Call) else statement.value
        return not _TRAINS.search(ast.unparse(called).rpartition(".")[2])
    value = statement.value
    makers = [value.func] if isinstance(value, ast.Call) else []
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return not any(_MAKES.search(ast.unparse(part)) for part in (*makers, *targets)) and not any(
        _is_class(part) for part in makers
    )


def _is_class(called: ast.expr) -> bool:
    return ast.unparse(called).rpartition(".")[2][:1].isupper()


def _flows(statement: ast.stmt, frame: types.FrameType) -> bool:
    """Whether it deals with tensors that gradients flow through."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    values = [frame.f_locals[name] for name in names if name in frame.f_locals]
    plain = [value for value in values if isinstance(value, torch.Tensor | list | tuple | dict)]
    return any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in pytree.tree_leaves(plain))
