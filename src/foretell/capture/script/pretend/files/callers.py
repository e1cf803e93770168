"""Who asks for a file, and what its code lets expect of it: endings it filters for, names it takes apart, errors it awaits."""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import os
import re
import sysconfig
import types
from collections.abc import Iterator
from sys import _getframe
from typing import Any, Final

from foretell.capture.reads import OWN, is_library
from foretell.capture.script.pretend.files.kinds import is_cache

# Libraries that read a file for whoever calls them; others look whether one is there, and shall find what is.
_READERS: Final = frozenset(
    "PIL numpy cv2 imageio skimage scipy librosa soundfile audioread h5py pycocotools torchaudio tifffile nibabel "
    "joblib webdataset torchtext sentencepiece tokenizers lxml pycocoevalcap lvis codecs fsspec tiktoken".split()
)
# Libraries that are a file system of their own: whoever calls them looks for the file.
_SYSTEMS: Final = frozenset("blobfile iopath fvcore smart_open path".split())
_LOADERS: Final = (f"{os.sep}torchvision{os.sep}datasets{os.sep}folder.py", f"{os.sep}torchvision{os.sep}io{os.sep}")
_STANDARD: Final = sysconfig.get_paths()["stdlib"] + os.sep
_AWAITED: Final = frozenset(("FileNotFoundError", "OSError", "IOError", "EnvironmentError"))
_ALL: Final = frozenset(("Exception", "BaseException"))
_TELLING: Final = re.compile(r"(^|\.)(print|warn|warning|error|exception|info|debug|write|print_exc)$")
_ENDING: Final = re.compile(r"^[*.]{0,3}\.?([A-Za-z][A-Za-z0-9]{1,6})$")
_open: Final = builtins.open


def asking_frame(through: frozenset[str] = frozenset()) -> types.FrameType | None:
    """The frame of the user's that asks, by itself or through libraries named; None where a library asks."""
    frame: Any = _getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return None  # an import
        if not name.startswith((OWN, "<")):
            if "site-packages" in name or "dist-packages" in name:
                if _package(name) not in through | _SYSTEMS and not (
                    through and any(part in name for part in _LOADERS)
                ):
                    return None
            elif not name.startswith(_STANDARD):
                return frame  # type: ignore[no-any-return]
        frame = frame.f_back
    return None


def _package(name: str) -> str:
    """The package that a file of a library belongs to."""
    inner = name.replace("dist-packages", "site-packages").rpartition(f"site-packages{os.sep}")[2]
    return inner.partition(os.sep)[0].removesuffix(".py")


def reading_frame() -> types.FrameType | None:
    """As `asking_frame`, also where a library reads a file for the user."""
    return asking_frame(_READERS)


def user_frame() -> types.FrameType | None:
    """The innermost frame of the user's, whatever libraries lie between."""
    frame: Any = _getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_STANDARD) or is_library(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame  # type: ignore[no-any-return]


def is_ready(frame: types.FrameType | None, path: str = "") -> bool:
    """Whether the code that asks goes on by itself when the file is missing: then it shall hear the truth.

    Code that catches everything is ready for a file of its own making; where data is read so, samples would be left out.
    """
    if frame is None:
        return False
    return any(
        first <= frame.f_lineno <= last and (not catches_all or is_cache(path))
        for first, last, catches_all in _ready_lines(frame.f_code.co_filename)
    )


@functools.cache
def _ready_lines(path: str) -> tuple[tuple[int, int, bool], ...]:
    """First and last line of what goes on after a missing file, and whether it does so after every error."""
    tree = _tree(path)
    found = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Try) and (kinds := {kind for h in node.handlers if (kind := _goes_on(h)) is not None}):
            found.append((node.body[0].lineno, node.body[-1].end_lineno or 0, False not in kinds))
    return tuple(found)


def _goes_on(handler: ast.ExceptHandler) -> bool | None:
    """Whether it goes on after every error, or after missing files; None where it does not.

    A handler that only says so does not do without the file: it is as one for every error.
    """
    caught = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"Exception"}
    ends = any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("exit"))
        for part in handler.body
        for node in ast.walk(part)
    )
    if ends or not caught & (_AWAITED | _ALL):
        return None
    return not caught & _AWAITED or all(map(_tells, handler.body))


def _tells(statement: ast.stmt) -> bool:
    """Whether it prints or logs, and no more."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _TELLING.search(ast.unparse(call.func)) is not None


@functools.cache
def _tree(path: str) -> ast.Module | None:
    try:
        with _open(path, encoding="utf-8") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None


def is_demanded(frame: types.FrameType | None) -> bool:
    """Whether the code that looks for a file goes no further without it: it asserts it, or raises, or exits."""
    if frame is None:
        return False
    return any(first <= frame.f_lineno <= last for first, last in _demands(frame.f_code.co_filename))


def is_unwelcome(frame: types.FrameType | None) -> bool:
    """Whether the code that looks for a file goes no further with it, as for a folder of results that must be new."""
    if frame is None:
        return False
    return any(first <= frame.f_lineno <= last for first, last in _refusals(frame.f_code.co_filename))


@functools.cache
def _refusals(path: str) -> tuple[tuple[int, int], ...]:
    """First and last line of every test for a file that ends the script where it is there."""
    tree = _tree(path)
    return tuple(
        (node.test.lineno, node.test.end_lineno or 0)
        for node in (ast.walk(tree) if tree else ())
        if (isinstance(node, ast.If) and _ends(node.body[-1]) and _looks_plainly(node.test))
        or (isinstance(node, ast.Assert) and isinstance(node.test, ast.UnaryOp) and _looks_plainly(node.test.operand))
    )


def _looks_plainly(test: ast.expr) -> bool:
    """Whether a test holds only where a file is there: it looks for one, not for the lack of one."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(
        isinstance(part, ast.Call) and re.search(r"(exists|isdir|is_dir|isfile|is_file)$", ast.unparse(part.func))
        for part in parts
    )


@functools.cache
def _demands(path: str) -> tuple[tuple[int, int], ...]:
    """First and last line of every test that a missing file does not pass."""
    found = []
    for node in ast.walk(tree) if (tree := _tree(path)) else ():
        if isinstance(node, ast.Assert):
            wants = not any(isinstance(part, ast.Not) for part in ast.walk(node.test))
        elif isinstance(node, ast.If):
            negated = any(isinstance(part, ast.Not) for part in ast.walk(node.test))
            negated = negated and not _looks_plainly(node.test)
            wants = _ends(node.body[-1]) if negated else bool(node.orelse) and _ends(node.orelse[-1])
        else:
            continue
        if wants:
            found.append((node.test.lineno, node.test.end_lineno or 0))
    return tuple(found)


def _ends(statement: ast.stmt) -> bool:
    called = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    return isinstance(statement, ast.Raise) or (called is not None and ast.unparse(called).endswith("exit"))


def words_of(frame: types.FrameType) -> tuple[str, ...]:
    """Strings that the asking function has in its code, then those of its module."""
    return (*strings_in(frame.f_code), *_module_strings(frame.f_code.co_filename))


def names_looked_up(frame: types.FrameType) -> list[str]:
    """What the class, or the function, that asks looks up by a name that is written out, but in what it is given."""
    tree = _tree(frame.f_code.co_filename)
    for kind in (ast.ClassDef, ast.FunctionDef):
        around = [n for n in (ast.walk(tree) if tree else ()) if isinstance(n, kind) and _holds(n, frame.f_lineno)]
        inner = list(ast.walk(around[-1])) if around else []
        given = {node.arg for node in inner if isinstance(node, ast.arg)}
        if found := [name for node in inner if (name := _looked_up(node, given)) is not None]:
            return list(dict.fromkeys(found))
    return []


def _looked_up(node: ast.AST, given: set[str]) -> str | None:
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    known = isinstance(node.value, ast.Name) and node.value.id in given
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) and not known else None


def _holds(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or 0))


def names_in(frame: types.FrameType) -> frozenset[str]:
    """Names and attributes that the asking function uses."""
    return frozenset(frame.f_code.co_names)


@functools.cache
def source_of(path: str) -> str:
    """The text of a file of the user's."""
    try:
        with _open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def function_source(frame: types.FrameType) -> str:
    """The text of the function that asks; in no function, of the lines around."""
    code, tree = frame.f_code, _tree(frame.f_code.co_filename)
    lines = source_of(code.co_filename).splitlines()
    for node in ast.walk(tree) if tree and code.co_name != "<module>" else ():
        if isinstance(node, ast.FunctionDef) and node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            return "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return "\n".join(lines[max(frame.f_lineno - 2, 0) : frame.f_lineno + 10])


def uses_of_line(frame: types.FrameType) -> str:
    """The text of the line that asks, of what is done for each of what it gives, and of loops over its result."""
    lines = source_of(frame.f_code.co_filename).splitlines()
    at = frame.f_lineno - 1
    found = _block(lines, at)
    if at < len(lines) and (name := re.match(r"\s*([\w.]+)\s*=[^=]", lines[at])):
        loop = re.compile(rf"\bfor\b.*\bin\b.*(?<![\w.]){re.escape(name[1])}\b")
        for i in range(at + 1, min(at + 60, len(lines))):
            if loop.search(lines[i]):
                found += "\n" + _block(lines, i)
    return found


def _block(lines: list[str], at: int) -> str:
    """A line, and those below it that are indented deeper."""
    depth = len(lines[at]) - len(lines[at].lstrip()) if at < len(lines) else 0
    inner = itertools.takewhile(
        lambda line: not line.strip() or len(line) - len(line.lstrip()) > depth, lines[at + 1 : at + 60]
    )
    return "\n".join([*lines[at : at + 1], *inner])


def endings_in(words: tuple[str, ...], known: frozenset[str]) -> list[str]:
    """Endings of files among strings, as `.png`, `*.png` or `png` has them."""
    found = (match[1].lower() for word in words if (match := _ENDING.match(word.rpartition("/")[2])))
    return [f".{ending}" for ending in dict.fromkeys(found) if f".{ending}" in known]


def strings_in(code: types.CodeType) -> Iterator[str]:
    for value in code.co_consts:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | frozenset):
            yield from (v for v in value if isinstance(v, str))
        elif isinstance(value, types.CodeType):
            yield from strings_in(value)


@functools.cache
def _module_strings(path: str) -> tuple[str, ...]:
    tree = _tree(path)
    return tuple(
        node.value
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
