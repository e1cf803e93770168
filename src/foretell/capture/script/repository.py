"""Packages of the script's own repository, found although nobody has installed them (`pip install -e .`).

A folder of it that is no package (`datasets/` without `__init__.py`) gives way to a library of the same name, as it does in
Python. Its modules come before the library's of the same names, and what the library lacks is taken from the folder, as where
its author had not installed the library. So are modules in a folder that the script itself puts at the end of the path.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.imports import is_installed
from foretell.capture.script.session import Session

_MARKS: Final = (".git", "setup.py", "pyproject.toml", "setup.cfg")  # of a repository's first folder
_LEVELS: Final = 4  # above the script
_list: Final = os.listdir  # what is there, whatever a script is shown


def install(session: Session) -> None:
    """Look for packages in the repository, after all other places."""
    folders = _folders(Path(os.path.abspath(session.script.path)).parent)
    sys.meta_path.append(_Finder([str(folder) for folder in folders]))
    modules = _Modules([str(folder) for folder in folders])
    sys.meta_path[:0] = [modules, _Added(sys.path)]
    modules.forget_namesakes()


def _folders(start: Path) -> list[Path]:
    """The current folder, and those from the script's up to the repository's first, each with its `src`."""
    above = [start, *start.parents][: _LEVELS + 1]
    last = next((i for i, folder in enumerate(above) if any((folder / mark).exists() for mark in _MARKS)), 0)
    folders = dict.fromkeys((Path.cwd(), *above[: last + 1]))
    return [place for folder in folders for place in (folder, folder / "src")]


def is_near(package: str) -> bool:
    """A module of the repository, in a folder where Python does not look: that is said as it is."""
    return any(
        os.path.exists(os.path.join(folder, name))
        for folder in _near()
        for name in (package, f"{package}.py", os.path.join("src", package))
    )


def _near() -> list[str]:
    first = os.path.abspath(sys.path[0] or ".")
    above = os.path.dirname(first)
    return [first, above, os.path.dirname(above), os.getcwd()]


class _Finder:
    def __init__(self, folders: list[str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not _is_for_own_code():
            return None
        if path is None:
            return importlib.machinery.PathFinder.find_spec(name, self._folders)
        parents = name.split(".")[:-1]
        return importlib.machinery.PathFinder.find_spec(name, [os.path.join(at, *parents) for at in self._folders])


class _Added:
    """Finds modules in folders that the script has put on the path, before an installed package of the same name."""

    def __init__(self, before: list[str]) -> None:
        self._before = frozenset(before)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        added = [folder for folder in sys.path if folder not in self._before and not is_library(folder)]
        if path is not None or not added or name in sys.stdlib_module_names or not _is_for_own_code():
            return None
        found = importlib.machinery.PathFinder.find_spec(name, added)
        return found if found is not None and found.has_location else None  # a folder is no package, as for Python


class _Modules(_Finder):
    """Finds modules `package.module` of the repository where a library has a package of that name."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = name.partition(".")[0]
        file = getattr(sys.modules.get(package), "__file__", None)
        if path is None or file is None or not is_library(file) or not self._has(package, name):
            return None
        return super().find_spec(name, path, target)

    def forget_namesakes(self) -> None:
        """Let modules of libraries that are loaded already be looked for again, where the repository has its own."""
        near = {name for folder in self._folders if os.path.isdir(folder) for name in _list(folder)}
        for name in list(sys.modules):
            package = name.partition(".")[0]
            file = getattr(sys.modules.get(package), "__file__", None) if package in near else None
            if package != name and file is not None and is_library(file) and self._has(package, name):
                del sys.modules[name]

    def _has(self, package: str, name: str) -> bool:
        files = [os.path.join(*name.split(".")) + ending for ending in (".py", f"{os.sep}__init__.py")]
        own = [os.path.join(folder, file) for folder in self._folders for file in files]
        return any(os.path.isfile(file) and not is_installed(package, file) for file in own)


def _is_for_own_code() -> bool:
    """Whether the import that is under way is the script's, or of what it imports: libraries find what is installed."""
    frame: Any = sys._getframe(1)
    while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_code.co_filename)
