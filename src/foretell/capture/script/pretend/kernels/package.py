"""Packages of kernels that are not installed: what is known of them, what was declared, and all else as unknown."""

from __future__ import annotations

import dis
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from foretell.capture.opaque import run as run_declared
from foretell.capture.reads import is_library
from foretell.capture.script.pretend.kernels.known import KNOWN, known
from foretell.capture.script.pretend.kernels.unknown import Unknown
from foretell.capture.script.session import Session
from foretell.declared import DECLARED, Opaque


def as_declared(declared: Opaque) -> Callable[..., Any]:
    return lambda *args, **kwargs: run_declared(declared, args, kwargs)


class Package(types.ModuleType):
    """Stands in for a package of kernels, or a part of it."""

    __version__ = "2.8.0"

    def __init__(self, name: str, session: Session) -> None:
        super().__init__(name)
        self.__dict__["session"] = session

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__name__}.{name}"
        if name.startswith("__"):
            raise AttributeError(name)
        if path in DECLARED:
            return as_declared(DECLARED[path])
        if (runs := known(path)) is not None:
            self.session.find_name("kernels", path)
            return runs
        if any(other.startswith(f"{path}.") for other in (*KNOWN, *DECLARED)):
            return importlib.import_module(path)
        if is_tried(sys._getframe(1)):
            raise ImportError(f"cannot import name {name!r} from {self.__name__!r} (not installed)")
        return Unknown(path)


def is_tried(frame: Any) -> bool:
    """Whether a script goes on without what it imports: then it has something of its own in its place."""
    code = frame.f_code
    handled = {i.offset: i.opname for i in dis.get_instructions(code)}
    after = dict(zip(handled, list(handled)[1:], strict=False))
    covering = [
        e
        for e in dis._parse_exception_table(code)  # type: ignore[attr-defined]
        if e.start <= frame.f_lasti < e.end and handled.get(after.get(e.target, -1)) != "WITH_EXCEPT_START"
    ]
    if not covering or all(_gives_up(code, e.target) for e in covering):
        return False
    if {"ImportError", "ModuleNotFoundError", "Exception"} & set(code.co_names):
        return True
    return any(handled.get(after.get(e.target, -1)) == "POP_TOP" for e in covering)  # a bare except


def _gives_up(code: Any, handler: int) -> bool:
    """Whether what handles an error only raises another, or exits."""
    for instruction in dis.get_instructions(code):
        if instruction.offset < handler:
            continue
        if instruction.opname == "RAISE_VARARGS" or instruction.argval in ("exit", "quit"):
            return True
        if instruction.opname in ("POP_EXCEPT", "RERAISE"):
            return False
    return False


def goes_on_without(frame: Any) -> bool | None:
    """Whether the script has something in place of what it imports; None where it is no import of the script's."""
    importing, direct = False, True  # the import of what is looked for, and not of a module that imports it
    while frame is not None:
        file = frame.f_code.co_filename
        if "importlib" in file:
            if direct and ("importlib.util" in file or file.endswith(("importlib/__init__.py", "importlib/util.py"))):
                return None  # it looks whether it is there, or chooses what it imports
            importing = True
        elif importing:
            if is_library(file) and frame.f_code.co_name != "_run_code":
                return None if direct and not file.startswith("<") else False
            if is_tried(frame):
                return True
            if frame.f_code.co_name != "<module>":
                return False
            importing = direct = False
        frame = frame.f_back
    return False
