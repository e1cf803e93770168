"""Errors of scripts that packages bring about: what is not installed, not fetched, or of another version."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import types
from pathlib import Path
from typing import Any, Final

from foretell.capture.script.ended import Ended, Fault, shown
from foretell.capture.script.packages import empty_submodule, on_missing_package

_MODULE_LACKS: Final = re.compile(r"(?:partially initialized )?module '([\w.]+)' has no attribute '(\w+)'")
_TAKES: Final = re.compile(
    r"(?P<name>[\w.<>]+)\(\) (got (an unexpected keyword argument|some positional-only arguments|multiple values)|takes |missing )"
)
_KEYWORD: Final = re.compile(r"unexpected keyword argument '(\w+)'")


def not_fetched(ended: Ended) -> Fault | None:
    error = ended.error
    lacking = _MODULE_LACKS.search(str(error)) if isinstance(error, AttributeError) else None
    name = lacking[1] if lacking else (error.name or "") if isinstance(error, ImportError) else ""
    folder = empty_submodule(ended.script, name.partition(".")[0]) if name else ""
    if not folder:
        return None
    return Fault(
        whose="surroundings",
        cause=f"{shown(ended.script.path)} needs {folder}{ended.line}, a git submodule of its repository, which is empty here.",
        way_out="Fetch it: git submodule update --init --recursive.",
    )


def missing_package(ended: Ended) -> Fault | None:
    error = ended.error
    if not isinstance(error, ImportError):
        return None
    name = (error.name or "").partition(".")[0]
    if name and isinstance(error, ModuleNotFoundError) and (folder := _folder_of(name, Path(ended.script.path))):
        return Fault(
            whose="surroundings",
            cause=f"{shown(ended.script.path)} imports {error.name}{ended.line}, which is in {folder}, where Python does not look.",
            way_out=f"Put that folder on the path: PYTHONPATH={folder} foretell predict …",
        )
    if (words := on_missing_package(ended.script, error)) is None:
        return None if name or "cannot import name" in str(error) else _wants_more(ended)
    cause, _, way_out = words.partition(". ")
    return Fault(whose="surroundings", cause=f"{cause}.", way_out=way_out)


def _wants_more(ended: Ended) -> Fault:
    """A library that says in its own words what it is lacking."""
    return Fault(
        whose="surroundings",
        cause=f"{shown(ended.script.path)} needs something that is not installed where Foretell runs{ended.line}: {ended.named}",
        way_out="Install what these words name there, or what the script's requirements do; it needs no GPU to be imported.",
    )


def _folder_of(name: str, script: Path) -> str:
    """Where the repository of a script has a module of its own, near it."""
    top = script.resolve().parent
    for folder in (top, *list(top.parents)[:3], Path.cwd()):
        for place in (folder, folder / "src"):
            if str(place) not in sys.path and ((place / name).is_dir() or (place / f"{name}.py").is_file()):
                return str(place)
    return ""


def version_lacks(ended: Ended) -> Fault | None:
    """A name that a library has had once, or has now."""
    if not isinstance(ended.error, AttributeError) or not (found := _MODULE_LACKS.search(str(ended.error))):
        return None
    module, lacking = found.groups()
    name = module.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    package = (importlib.metadata.packages_distributions().get(name) or [name])[0]
    if "site-packages" not in file:
        return None
    version = importlib.metadata.version(package)
    return Fault(
        whose="surroundings",
        cause=f"{shown(ended.script.path)} is written for another version of {package}: {module}.{lacking}{ended.line} is not in "
        f"{package} {version}, which is installed here.",
        way_out=_other_version(package, version),
    )


def _other_version(package: str, version: str) -> str:
    return f"Install the version that its requirements name (pip install '{package}<{version}'), or mend the line."


def other_arguments(ended: Ended) -> Fault | None:
    """A function that does not take what the script gives it: no data makes it so."""
    error, at = ended.error, ended.place
    if not isinstance(error, TypeError) or at is None or not (found := _TAKES.match(str(error))):
        return None
    if ended.frames[-1].filename == at.filename:
        package = _package_of(found["name"].removesuffix(".__init__").rpartition(".")[2], ended)
    elif (keyword := _KEYWORD.search(str(error))) is None or not re.search(rf"\b{keyword[1]}\s*=", at.line or ""):
        return None  # a library calls it
    elif not (package := _distribution(_top_of(ended.frames[-1].filename))):  # which passes on what the script gives it
        return None
    if not package:
        return of_the_script(ended)
    version = importlib.metadata.version(package)
    return Fault(
        whose="surroundings",
        cause=f"{shown(ended.script.path)} is written for another version of {package} than {version}, which is installed "
        f"here{ended.line}: {error}.",
        way_out=_other_version(package, version),
    )


def _package_of(name: str, ended: Ended) -> str:
    """What is installed that has the function or class of that name which the failing line calls, if anything."""
    trace, line = ended.error.__traceback__, ended.frames[-1].line or ""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    called = re.search(rf"([\w.]*\b{re.escape(name)})\s*\(", line)
    thing: Any = types.SimpleNamespace(**{**trace.tb_frame.f_globals, **trace.tb_frame.f_locals})
    for part in (called[1] if called else name).split("."):
        thing = getattr(thing, part, None)
    module = str(getattr(thing, "__module__", "")).partition(".")[0]
    if "site-packages" not in (getattr(sys.modules.get(module), "__file__", None) or ""):
        return ""
    return _distribution(module)


def _top_of(path: str) -> str:
    """The package of a library that a file is of."""
    return path.rpartition("site-packages/")[2].partition("/")[0].removesuffix(".py")


def _distribution(module: str) -> str:
    return (importlib.metadata.packages_distributions().get(module) or [""])[0]


def of_the_script(ended: Ended) -> Fault:
    return Fault(
        whose="script",
        cause=f"{shown(ended.script.path)} failed{ended.line} with {ended.named}. That line is the script's own: it fails so on "
        "any machine.",
        way_out="Mend it, take another version of the script, or give it other arguments, after --.",
    )
