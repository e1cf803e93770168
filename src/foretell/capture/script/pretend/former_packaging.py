"""Modules about packages that are not there: `pkg_resources` and `imp`, which Python and its tools no longer have, and the version
of a package of the script's own, which its installation would write."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.imports import provide
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    provide(_MODULES.__contains__, lambda name: _MODULES[name](), to_everyone=True)
    provide(_is_written, _Written)


def _is_written(name: str) -> bool:
    package, _, last = name.rpartition(".")
    file = getattr(sys.modules.get(package), "__file__", None)
    return last in ("version", "_version") and file is not None and not is_library(file)


class _Written(types.ModuleType):
    """What an installation writes into a package about its version."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__file__", "__path__", "__all__", "__spec__"):
            raise AttributeError(name)
        return (0, 0, 0) if name.endswith(("info", "tuple")) else "0.0.0" if "version" in name.lower() else "unknown"


def resources() -> Any:
    """As setuptools had it before version 82."""
    made: Any = types.ModuleType("pkg_resources")
    requirement = _requirement()
    made.packaging, made.parse_version = importlib.import_module("packaging"), _version
    made.Requirement = types.SimpleNamespace(parse=requirement)
    made.DistributionNotFound = made.ResolutionError = importlib.metadata.PackageNotFoundError
    made.VersionConflict = type("VersionConflict", (Exception,), {})
    made.get_distribution = _Distribution
    made.require = made.declare_namespace = lambda *names: []
    made.working_set = [_Distribution(name) for each in importlib.metadata.distributions() if (name := each.name)]
    made.iter_entry_points = lambda group, name=None: iter(
        [e for e in importlib.metadata.entry_points(group=group) if name in (None, e.name)]
    )
    made.parse_requirements = lambda lines: [
        requirement(line.partition("#")[0].strip())
        for line in (lines.splitlines() if isinstance(lines, str) else lines)
        if line.partition("#")[0].strip()
    ]
    made.resource_filename = _file_of
    made.resource_exists = lambda package, name: os.path.exists(_file_of(package, name))
    made.resource_listdir = lambda package, name: os.listdir(_file_of(package, name))
    made.resource_stream = lambda package, name: io.BytesIO(_read(package, name))
    made.resource_string = _read
    return made


def _requirement() -> Any:
    """The class of what a line of requirements says."""
    return importlib.import_module("packaging.requirements").Requirement


def _version(text: str) -> Any:
    return importlib.import_module("packaging.version").parse(text)


class _Distribution:
    """What is installed under a name."""

    def __init__(self, name: Any) -> None:
        self.project_name = self.key = _requirement()(str(name)).name
        self.version = importlib.metadata.version(self.project_name)
        self.parsed_version = _version(self.version)

    @property
    def location(self) -> str:
        return str(importlib.metadata.distribution(self.project_name).locate_file(""))


def _file_of(package: Any, name: str) -> str:
    """A file beside a package, which is said by its name or as a requirement."""
    package = getattr(package, "name", package)
    spec = sys.modules[package] if package in sys.modules else importlib.util.find_spec(package)
    file = getattr(spec, "__file__", None) or getattr(spec, "origin", None) or ""
    return os.path.join(os.path.dirname(file), name)


def _read(package: Any, name: str) -> bytes:
    with open(_file_of(package, name), "rb") as file:
        return file.read()


def _imp() -> types.ModuleType:
    made: Any = types.ModuleType("imp")
    made.reload, made.new_module, made.load_source = importlib.reload, types.ModuleType, _of_source
    return made  # type: ignore[no-any-return]


def _of_source(name: str, path: str) -> types.ModuleType:
    """A module of a file, as it is named."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module of Python", name=name, path=path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_MODULES: Final[dict[str, Callable[[], types.ModuleType]]] = {"pkg_resources": resources, "imp": _imp}
