"""Scripts of Python 2, and of Python before `async` was a word: read as their author ran them.

Only a file that does not compile is changed, in memory. Numbers divide as they did in Python 2 there.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.machinery
import re
import runpy
import types
import warnings
from typing import Any, Final

from foretell.capture.script.session import Session

_ASYNC: Final = re.compile(r"\basync\s*=(?!=)")
_FIXES: Final = """basestring dict except exec has_key import imports input itertools itertools_imports long map filter zip xrange ne
    next numliterals paren print raise raw_input reduce repr tuple_params types unicode urllib funcattrs methodattrs""".split()
_DIVIDE: Final = "foretell_divide"


def install(session: Session) -> None:
    runpy.compile = _compiled  # type: ignore[attr-defined]
    loader: Any = importlib.machinery.SourceFileLoader
    convert = loader.source_to_code

    def source_to_code(self: Any, data: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return convert(self, data, path, *args, **kwargs)
        except SyntaxError as error:
            return _mended(data, str(path), error)

    loader.source_to_code = source_to_code


def _compiled(source: Any, filename: str, mode: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return compile(source, filename, mode, *args, **kwargs)
    except SyntaxError as error:
        return _mended(source, filename, error)


def _mended(source: Any, path: str, error: SyntaxError) -> types.CodeType:
    """Of a file that does not compile; what cannot be mended fails as it did."""
    text = source.decode("utf-8", errors="replace") if isinstance(source, bytes | bytearray) else str(source)
    now = _ASYNC.sub("non_blocking=", text)
    with contextlib.suppress(SyntaxError):
        if now != text:
            return compile(now, path, "exec")
    if (tree := _from_former(now.expandtabs())) is None:
        raise error
    return compile(tree, path, "exec")


def _from_former(text: str) -> ast.Module | None:
    """The program that text of Python 2 is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refactor = importlib.import_module("lib2to3.refactor")
        tool = refactor.RefactoringTool([f"lib2to3.fixes.fix_{name}" for name in _FIXES])
        tree = ast.parse(str(tool.refactor_string(text.rstrip() + "\n", "script")))
    except Exception:  # no such tool in this Python, or no Python 2 either
        return None
    if "from __future__ import division" not in text:
        tree = ast.fix_missing_locations(_Division().visit(tree))
        setattr(builtins, _DIVIDE, _divide)
    return tree


class _Division(ast.NodeTransformer):
    """Whole numbers divided to whole numbers."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        called = ast.Call(func=ast.Name(id=_DIVIDE, ctx=ast.Load()), args=[node.left, node.right], keywords=[])
        return ast.copy_location(called, node)


def _divide(left: Any, right: Any) -> Any:
    return left // right if isinstance(left, int) and isinstance(right, int) else left / right
