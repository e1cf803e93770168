"""What is done to a library once a script has imported it; nothing is imported for its sake."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import types
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from foretell.capture.reads import is_library

_WAITING: dict[str, list[Callable[[Any], None]]] = {}
_LOOKING: Final = frozenset((importlib.util.__file__, "<frozen importlib.util>"))


def once_imported(name: str, adapt: Callable[[Any], None]) -> None:
    """Call `adapt` with the library's module of that name, now or when it is imported.

    A package of the script's own that has the name of a library is left as it is.
    """
    if (there := sys.modules.get(name)) is not None and is_installed(name, getattr(there, "__file__", None)):
        adapt(there)
        return
    if not _WAITING:
        sys.meta_path.insert(0, _Finder())
    _WAITING.setdefault(name, []).append(adapt)


def is_installed(name: str, file: str | None) -> bool:
    """Whether a module's file belongs to a library, and not to a repository that has a package of the same name.

    A library's own repository counts as it.
    """
    package = name.partition(".")[0]
    return (
        file is None
        or is_library(file)
        or any(file.startswith(root) for root in _edited(package))
        or _is_its_source(package, _folder_above(package, file))
    )


def _folder_above(package: str, file: str) -> str:
    """Where a package lies that a file is in."""
    before, found, _ = file.rpartition(f"{os.sep}{package}{os.sep}")
    return before if found else os.path.dirname(file)


@cache
def _is_its_source(package: str, folder: str) -> bool:
    """Whether it is a library's own repository, whose examples run on it: what builds it there says its name."""
    named = re.compile(rf"""(^|\()\s*name\s*=\s*["']?{package.replace("_", "[-_]")}["']?\s*(,|\)|#|$)""", re.MULTILINE)
    for place in (folder, os.path.dirname(folder)):
        for builds in ("setup.py", "pyproject.toml", "setup.cfg"):
            with contextlib.suppress(OSError), open(os.path.join(place, builds), encoding="utf-8") as written:
                if named.search(written.read()):
                    return True
    return False


@cache
def _edited(package: str) -> tuple[str, ...]:
    """Folders of a library that was installed to be worked on (`pip install -e`)."""
    try:
        written = importlib.metadata.distribution(package).read_text("direct_url.json")
        place: dict[str, Any] = json.loads(written or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        return ()
    url = str(place.get("url", ""))
    editable = place.get("dir_info", {}).get("editable") and url.startswith("file://")
    return (os.path.join(url.removeprefix("file://"), ""),) if editable else ()


def is_script_import(or_a_function: bool = False) -> bool:
    """Whether an import that is under way is the script's: a library looks what is there, and shall find what is."""
    frame: Any = sys._getframe(2)
    looks = False  # `importlib.util.find_spec`, which imports nothing
    while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        looks = looks or (frame.f_code.co_filename in _LOOKING and frame.f_back.f_code.co_filename != __file__)
        frame = frame.f_back
    if frame is None:
        return False
    if or_a_function and frame.f_code.co_name != "<module>":
        return True
    file = os.path.abspath(frame.f_code.co_filename)  # a script may put folders of its own before its own
    return bool(file.startswith(sys.path[0])) or not (looks or is_library(frame.f_code.co_filename))


def provide(
    wanted: Callable[[str], bool],
    make: Callable[[str], types.ModuleType],
    *,
    first: bool = False,
    to_libraries: bool = False,
    to_everyone: bool = False,
) -> None:
    """Let the script import modules that are made here: those that are not installed, or `first`, in any case.

    `to_libraries`: also where a function of a library imports one, which it was called for; `to_everyone`: any of them.
    """
    provider = _Provider(wanted, make, to_libraries, to_everyone)
    sys.meta_path.insert(0 if first else len(sys.meta_path), provider)


class _Provider:
    def __init__(
        self,
        wanted: Callable[[str], bool],
        make: Callable[[str], types.ModuleType],
        to_libraries: bool,
        to_everyone: bool,
    ) -> None:
        self._wanted, self._make = wanted, make
        self._to_libraries, self._to_everyone = to_libraries, to_everyone
        self._packages: set[str] = set()  # made here, so their parts are too, whoever asks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = name.partition(".")[0]
        if not self._wanted(name):
            return None
        if not (self._to_everyone or package in self._packages or is_script_import(self._to_libraries)):
            return None
        self._packages.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module = self._make(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def replace_broken(names: frozenset[str], make: Callable[[str], types.ModuleType]) -> None:
    """Let packages that are installed and fail when they are imported be what is made here."""
    sys.meta_path.insert(0, _Mender(names, make))


class _AsOthersFind:
    """Finds an installed module as the others do; what is done once it runs is its own."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self._asking or not self._wants(name):
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None or not is_installed(name, spec.origin):
            return None
        spec.loader.exec_module = partial(self._run, name, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _wants(self, name: str) -> bool:
        raise NotImplementedError

    def _run(self, name: str, run: Callable[[Any], None], module: Any) -> None:
        raise NotImplementedError


class _Mender(_AsOthersFind):
    def __init__(self, names: frozenset[str], make: Callable[[str], types.ModuleType]) -> None:
        super().__init__()
        self._names, self._make = names, make

    def _wants(self, name: str) -> bool:
        return name in self._names

    def _run(self, name: str, run: Callable[[Any], None], module: Any) -> None:
        try:
            run(module)
        except Exception:  # whatever a package raises that does not fit what is installed
            sys.modules[name] = made = self._make(name)
            made.__path__ = []


class _Finder(_AsOthersFind):
    """Adapts a module after it has run."""

    def _wants(self, name: str) -> bool:
        return name in _WAITING

    def _run(self, name: str, run: Callable[[Any], None], module: Any) -> None:
        run(module)
        for adapt in _WAITING.pop(name, ()):
            adapt(sys.modules.get(name, module))  # some put another in their place
