"""A script's files as Python's parser reads them, once each, and by the thread that runs the script.

Python 3.11 has one count of depth for all threads that parse: one that parses beside another makes either fail.
"""

from __future__ import annotations

import ast
import importlib.machinery
import linecache
import runpy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from foretell.capture.reads import is_library

if TYPE_CHECKING:
    from foretell.capture.script.session import Session

_TREES: Final[dict[str, ast.Module]] = {}


def tree_of(path: str) -> ast.Module:
    """Of a file, or of code that was typed; empty where it is no Python."""
    if path not in _TREES:
        try:
            _TREES[path] = ast.parse("".join(linecache.getlines(path)))
        except (SyntaxError, ValueError):
            _TREES[path] = ast.Module([], [])
    return _TREES[path]


def known_tree(path: str) -> ast.Module | None:
    """For other threads: only of a file that has been parsed."""
    return _TREES.get(path)


def known_trees() -> list[tuple[str, ast.Module]]:
    """For other threads: all of them."""
    return list(_TREES.items())


def install(session: Session) -> None:
    """Parse the script's own files as they are run or imported, for whoever looks on."""
    compiled: Callable[..., Any] = getattr(runpy, "compile", compile)
    loader: Any = importlib.machinery.SourceFileLoader
    code = loader.get_code

    def of_script(source: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        tree_of(filename)
        return compiled(source, filename, *args, **kwargs)

    def get_code(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        if not is_library(path):
            tree_of(path)
        return code(self, fullname)

    runpy.compile, loader.get_code = of_script, get_code  # type: ignore[attr-defined]
