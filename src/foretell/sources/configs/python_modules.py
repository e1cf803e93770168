"""Files of Python by what they define and import, parsed and never run; those they import from are found beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from foretell.limits import read_bytes
from foretell.sources.configs.files import is_file

_BYTES: Final = "bytes of a configuration"
_ABOVE: Final = 8  # folders above a file in which the packages that it imports from are looked for
_FOLLOWED: Final = 6  # modules that hand a name on


class Imported(NamedTuple):
    """A name of another module: `from ..common import base` has level 2."""

    module: str
    level: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    path: Path
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, Imported] = field(default_factory=dict)
    stars: list[Imported] = field(default_factory=list)  # modules of which all names are imported


class Function(NamedTuple):
    """A function, with the module whose names it uses."""

    module: Module
    body: ast.FunctionDef


def module_of(path: Path) -> Module:
    """A file as it is now."""
    about = path.stat()
    return _parsed(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=64)
def _parsed(path: Path, changed: int, size: int) -> Module:
    made = Module(path=path)
    try:
        tree = ast.parse(read_bytes(path, _BYTES))
    except (SyntaxError, ValueError, RecursionError):
        return made  # no recipe: who runs the file learns what is wrong with it
    for node in tree.body:
        match node:
            case ast.FunctionDef():
                made.functions[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                made.constants[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                made.constants[name] = value
            case ast.ImportFrom():
                _import(made, node)
    return made


def _import(made: Module, node: ast.ImportFrom) -> None:
    for name in node.names:
        found = Imported(node.module or "", node.level, name.name)
        if name.name == "*":
            made.stars.append(found)
        else:
            made.imports[name.asname or name.name] = found


def function_named(module: Module, name: str, left: int = _FOLLOWED) -> Function | None:
    """A function of the file or of one that it imports it from; None where that is not there, or it is a class."""
    if name in module.functions:
        return Function(module, module.functions[name])
    if left == 0:
        return None
    wanted = [module.imports[name]] if name in module.imports else [s._replace(name=name) for s in module.stars]
    for imported in wanted:
        for path in _files(imported, module.path):
            if (found := function_named(module_of(path), imported.name, left - 1)) is not None:
                return found
    return None


def _files(imported: Imported, path: Path) -> Iterator[Path]:
    """Where a module may lie: in the packages around the file."""
    parts = [part for part in imported.module.split(".") if part]
    above = path.resolve().parents
    roots = above[:_ABOVE] if imported.level == 0 else above[imported.level - 1 : imported.level]
    if imported.level == 0 and not parts:
        return
    for root in roots:
        place = root.joinpath(*parts)
        candidates = (place.with_suffix(".py"), place / "__init__.py") if parts else (place / "__init__.py",)
        for candidate in candidates:
            if is_file(candidate):
                yield candidate
                return
