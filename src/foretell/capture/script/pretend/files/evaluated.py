"""Texts that are made up, and that their readers evaluate as Python: what they would have given is a row."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from string import ascii_letters
from sys import _getframe
from typing import Any

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files.line_parts import Word
from foretell.capture.script.pretend.files.unknown import Record
from foretell.capture.script.prose import PROSE


def install() -> None:
    read: Callable[..., Any] = builtins.eval
    literal: Callable[..., Any] = ast.literal_eval

    def evaluated(source: Any, names: Any = None, own: Any = None, /) -> Any:
        frame = _getframe(1)
        if names is None:
            names, own = frame.f_globals, frame.f_locals if own is None else own
        return _or_row(source, lambda: read(source, names, own))

    replace(builtins, "eval", evaluated)
    replace(ast, "literal_eval", lambda source: _or_row(source, lambda: literal(source)))


def _or_row(source: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (SyntaxError, NameError, ValueError):
        if isinstance(source, Word) or (isinstance(source, str) and (PROSE.search(source) or ascii_letters in source)):
            return Record()
        raise
