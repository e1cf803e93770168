"""Names of files in a folder that is not there: as the code that lists it, or that works on what is listed, filters for."""

from __future__ import annotations

import ast
import functools
import os
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from foretell.capture.script.pretend.files import kinds, patterns
from foretell.capture.script.pretend.files.callers import (
    endings_in,
    function_source,
    source_of,
    strings_in,
    uses_of_line,
    words_of,
)
from foretell.capture.script.pretend.files.line_parts import Line

_OF_ARCHIVES: Final = frozenset((".gz", ".zip", ".tar", ".tgz"))
_ENDING: Final = re.compile(r"(\.[A-Za-z]\w{0,6})$")
_ADDED: Final = re.compile(r"""\+\s*["'](\.\w+)["']""")
_QUOTED: Final = re.compile(r"""["']([^"'\n]*)["']""")
_WORD: Final = re.compile(r"[\w\-./]{2,40}")
_USUAL: Final = (
    ("wav|audio|speech", ".wav"), ("mask|label|gt|annot", ".png"), ("text|txt|caption", ".txt"), ("flow", ".flo"),
    ("video|ucf|hmdb|kinetics", ".avi"),
)  # fmt: skip
# What reads each of the files that a module lists, where nothing says how they end.
_READ_WITH: Final = (
    (r"np\.load|numpy\.load", ".npy"), (r"soundfile|librosa|torchaudio", ".wav"), (r"np\.fromfile|np\.memmap", ".bin"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a function wants of the names that it goes through."""

    within: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()

    def name(self, number: int, plain: str) -> str:
        """A name that passes: first those that are compared with, then of every two one with all words, one with one."""
        if number < len(self.exact):
            return self.exact[number]
        stem, ending = os.path.splitext(plain)
        if self.first:
            stem = f"{self.first[number % len(self.first)]}{stem}"
        if self.within:
            all_or_one = self.within if number % 2 == 0 else [self.within[number // 2 % len(self.within)]]
            stem = "_".join([*(word for word in all_or_one if word not in stem), stem])
        if self.last:
            return f"{stem}{self.last[number % len(self.last)]}"
        return stem + ending


def names(count: int, folder: str, frame: types.FrameType) -> list[str]:
    """Of files that the asking code filters for, takes apart and reads."""
    filters = filters_in(frame)
    ending = "" if filters.last else ending_for(folder, frame)
    path = frame.f_code.co_filename
    plain = [patterns.name_of(i, ending, path) for i in range(count)]
    return [Line(filters.name(i, name)) for i, name in enumerate(plain)]  # which has as many parts as are wanted of it


def ending_for(folder: str, frame: types.FrameType) -> str:
    """As the line says, its function or its module, or what such folders have; caches only where nothing else is read."""
    known = kinds.DATA - _OF_ARCHIVES
    given = [value for value in frame.f_locals.values() if isinstance(value, str) and value.lower() in known]
    asking = uses_of_line(frame)
    here = _not_added(endings_in(tuple(_QUOTED.findall(asking)), known), asking)
    own = given or here or _not_added(endings_in(tuple(strings_in(frame.f_code)), known), function_source(frame))
    found = own or endings_in(words_of(frame), known)
    if pictures := [ending for ending in found if ending in kinds.PICTURES]:
        return pictures[0]
    if found and not (not own and kinds.is_cache(f"x{found[0]}")):
        return found[0]
    name = os.path.basename(folder.rstrip(os.sep)).lower()
    if usual := next((ending for words, ending in _USUAL if re.search(words, name)), ""):
        return usual
    source = source_of(frame.f_code.co_filename)
    if re.search(r"Image\.open|imread|default_loader", source):
        return ".jpg"
    return next((ending for reader, ending in _READ_WITH if re.search(reader, source)), ".jpg")


def _not_added(endings: list[str], source: str) -> list[str]:
    """Without those that the function adds to a name to find another file."""
    added = {match.lower() for match in _ADDED.findall(source)}
    return [ending for ending in endings if ending not in added]


def filters_in(frame: types.FrameType) -> Filters:
    """What the function of a frame filters names for, its arguments as they are now."""
    wanted: dict[str, list[str]] = {"within": [], "first": [], "last": [], "exact": []}
    values = {**frame.f_globals, **frame.f_locals}
    for kind, node in _conditions(frame.f_code.co_filename, frame.f_code.co_firstlineno):
        for word in _texts_of(node, values):
            ending = _ENDING.search(word)
            if not _WORD.fullmatch(word) or (ending and ending[1].lower() not in kinds.DATA):
                continue
            if ending and ending[0] == word:
                continue  # an ending alone: `ending_for` knows
            wanted["last" if ending and kind != "exact" else kind].append(word.strip("/"))
    return Filters(**{kind: tuple(dict.fromkeys(words)) for kind, words in wanted.items()})


@functools.cache
def _conditions(path: str, first: int) -> tuple[tuple[str, ast.expr], ...]:
    """What is compared with each name that a function goes through: (how, expression)."""
    try:
        tree = ast.parse(source_of(path))
    except (SyntaxError, ValueError):
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and min([node.lineno, *(d.lineno for d in node.decorator_list)]) == first:
            return tuple(_compared(node))
    return ()


def _compared(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    each = {
        name.id
        for node in ast.walk(function)
        if isinstance(node, ast.For | ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    for node in _positive(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            other = node.comparators[0]
            if isinstance(node.ops[0], ast.In) and isinstance(other, ast.Name) and other.id in each:
                yield "within", node.left
            elif isinstance(node.ops[0], ast.Eq) and isinstance(node.left, ast.Name) and node.left.id in each:
                yield "exact", other
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            how = {"startswith": "first", "endswith": "last", "find": "within"}.get(node.func.attr)
            owner = node.func.value
            if how and isinstance(owner, ast.Name) and owner.id in each:
                yield how, node.args[0]


def _positive(node: ast.AST) -> Iterator[ast.AST]:
    """All parts of a tree, without those that are negated."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.Not)):
            yield child
            yield from _positive(child)


def _texts_of(node: ast.expr, values: dict[str, Any]) -> Iterator[str]:
    """Texts that an expression stands for: written, or what a name or an attribute of one has now."""
    found: Any = None
    if isinstance(node, ast.Constant):
        found = node.value
    elif isinstance(node, ast.Name):
        found = values.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = getattr(values.get(node.value.id), node.attr, None)
    elif isinstance(node, ast.Tuple):
        found = [part.value for part in node.elts if isinstance(part, ast.Constant)]
    for text in found if isinstance(found, list | tuple) else [found]:
        if isinstance(text, str):
            yield text
