"""Names and modules that a library has moved: given from where they are now, by the library's own source.

What a script imports from where it was is looked for among the library's definitions, and taken where few have its name.
"""

from __future__ import annotations

import builtins
import collections
import collections.abc
import contextlib
import dis
import importlib
import itertools
import re
import sys
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.imports import is_installed, provide
from foretell.capture.script.pretend.absent import lacking
from foretell.capture.script.pretend.kernels.package import goes_on_without, is_tried
from foretell.capture.script.session import Session

_KNOWN_OTHERWISE: Final = frozenset(("torch", "numpy"))  # whose former names are known one by one
_PREDICATE: Final = re.compile(r"is_\w+_available")
_FEW: Final = 3  # definitions of one name: what more have is of their own making
_ASIDE: Final = frozenset(("test", "tests", "testing", "examples", "benchmarks"))
# Frames of imports are passed over by their file's name, and this is one of an import.
_AS_AN_IMPORT: Final = "<frozen importlib of names that moved>"


def install(session: Session) -> None:
    provide(_has_gone, _Former)
    there = builtins.__import__

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        module = there(name, globals, locals, fromlist, level)
        if level == 0 and _is_own(globals):
            for wanted in fromlist or ():
                _place(module, wanted, sys._getframe(1))
            if not fromlist:
                _look_further(sys.modules.get(name, module))
        return module

    importing.__code__ = importing.__code__.replace(co_filename=_AS_AN_IMPORT)
    builtins.__import__ = importing


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _is_own(names: Any) -> bool:
    file = (names or {}).get("__file__")
    return isinstance(file, str) and not is_library(file)


def _place(module: Any, wanted: str, frame: Any) -> None:
    """Put a name back into a module of a library that has it elsewhere now, unless the script can do without."""
    file = getattr(module, "__file__", None)
    if wanted == "*" or not file or hasattr(module, wanted) or not is_installed(module.__name__, file):
        return
    if is_tried(frame):
        return
    found = moved(module.__name__, wanted)
    found = _passed_on(wanted) if found is None else found
    found = lacking(module.__name__, wanted, frame) if found is None else found
    if found is not None:
        setattr(module, wanted, found)


def _passed_on(name: str) -> Any:
    """What a module has once had of Python's own, as it was written with it."""
    return next((vars(each)[name] for each in (typing, collections, collections.abc) if name in each.__all__), None)


def _look_further(module: Any) -> None:
    """Let `library.Name`, where the script uses it so, be found as the same name would be that it imports."""
    kind, file = type(module), getattr(module, "__file__", None)
    known = vars(kind).get("looks_further") or module.__name__.partition(".")[0] in _KNOWN_OTHERWISE
    if known or not file or not is_library(file):
        return
    find = getattr(kind, "__getattr__", None)

    def missing(self: Any, name: str) -> Any:
        try:
            if find is not None:
                return find(self, name)
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        except AttributeError:
            plain = _is_plain_use(sys._getframe(1), name)
            found = moved(self.__name__, name) if plain else None
            found = lacking(self.__name__, name, sys._getframe(1)) if plain and found is None else found
            if found is None:
                raise
            return found

    with contextlib.suppress(TypeError):  # of a kind that is laid out otherwise
        parts = {"__getattr__": missing, "looks_further": True, "__module__": kind.__module__}  # it is no stand-in
        module.__class__ = type(kind.__name__, (kind,), parts)


def _is_plain_use(frame: Any, name: str) -> bool:
    """Whether code of the script's writes `library.name` and is not ready for its absence, as `hasattr` would be."""
    code = frame.f_code
    if is_library(code.co_filename) or name.startswith("__"):
        return False
    if any(e.start <= frame.f_lasti < e.end for e in dis._parse_exception_table(code)):  # type: ignore[attr-defined]
        return False
    using = (i for i in dis.get_instructions(code) if i.offset == frame.f_lasti)
    return any(i.opname in ("LOAD_ATTR", "LOAD_METHOD") for i in using)


def moved(module: str, name: str) -> Any:
    """What has the name in the library of a module, nearest to it first; None where nothing has, or many do.

    Whether something is there, of which a library has ceased to ask, is answered no.
    """
    if _PREDICATE.fullmatch(name) and not _definitions(module.partition(".")[0], name):
        return _no
    package = module.partition(".")[0]
    found = _definitions(package, name)
    if not found or len(found) > _FEW:
        return None
    for path in sorted(found, key=lambda path: (-_shared(path, module), path.count("."), path)):
        try:
            return getattr(importlib.import_module(path), name)
        except (ImportError, AttributeError, RuntimeError):
            continue
    return None


def _shared(path: str, other: str) -> int:
    """How many parts two names of modules begin with alike."""
    pairs = zip(path.split("."), other.split("."), strict=False)
    return next((i for i, (own, its) in enumerate(pairs) if own != its), min(path.count("."), other.count(".")) + 1)


@cache
def _definitions(package: str, name: str) -> tuple[str, ...]:
    """Modules of a package at whose first level something of that name is defined."""
    root = getattr(sys.modules.get(package), "__path__", None)
    if not root or not name.isidentifier() or name.startswith("__"):
        return ()
    defined = re.compile(rf"^(?:(?:async )?def|class) {name}\b|^{name}(?:: [^=\n]+)? = ".encode(), re.MULTILINE)
    folder = Path(next(iter(root)))
    files = (file for file in folder.rglob("*.py") if not _ASIDE & set(file.relative_to(folder).parts))
    found = [file.relative_to(folder).with_suffix("").parts for file in files if defined.search(file.read_bytes())]
    return tuple(".".join((package, *(part for part in parts if part != "__init__"))) for parts in found)


def _has_gone(name: str) -> bool:
    """A module that a library of this machine has no more, which a script cannot do without."""
    package, _, rest = name.partition(".")
    there = sys.modules.get(package)
    file = getattr(there, "__file__", None)
    if not rest or not file or not is_installed(package, file) or not is_library(file):
        return False
    wanted = _imported(sys._getframe(2))
    if not wanted or goes_on_without(sys._getframe(2)) is not False:
        return False
    return all(moved(name, part) is not None for part in wanted)


def _imported(frame: Any) -> list[str]:
    """Names that an import under way takes from its module; none where Python only looks whether a name is a module."""
    while frame is not None and ("importlib" in frame.f_code.co_filename or is_library(frame.f_code.co_filename)):
        if frame.f_code.co_name == "_handle_fromlist":
            return []
        frame = frame.f_back
    if frame is None:
        return []
    following = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    parts = itertools.takewhile(lambda i: i.opname.startswith(("IMPORT_FROM", "STORE_", "EXTENDED_ARG")), following)
    return [str(i.argval) for i in parts if i.opname == "IMPORT_FROM"]


class _Former(types.ModuleType):
    """A module that a library had: its names are given from where they are now."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (found := moved(self.__name__, name)) is None:
            raise ImportError(f"cannot import name {name!r} from {self.__name__!r}", name=self.__name__)
        return found
