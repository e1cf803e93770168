"""Names of files that the script can take apart: by the regular expressions that it applies, and the marks it splits at."""

from __future__ import annotations

import ast
import functools
import re
import string
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

from foretell.capture.script.pretend.files import kinds
from foretell.capture.script.pretend.files.callers import source_of

CLASSES: Final = 10  # of samples that have their class in their name
PEOPLE: Final = 751  # of Market-1501, on which most train who tell people apart
_APPLIED: Final = frozenset("search match fullmatch findall compile".split())
_NAME: Final = re.compile(r"[\w.\-]+")
# Parts of a name that are looked at by number: name.split("_")[2]
_SPLIT: Final = re.compile(r"""split\(\s*["']([_\-])["']\s*\)\s*(?:\[(:?)(\d)\])?""")


def name_of(number: int, ending: str, path: str) -> str:
    """A file's name, of which the code in a file of the user's finds the parts that it looks for."""
    plain = f"{number:05}{ending}"
    for pattern in _patterns(path):
        if re.search(pattern, plain) is None:
            made = _written(pattern, number)
            if made is not None:
                return made if kinds.ending_of(made) in kinds.DATA else made.rstrip(".") + ending
    if (parts := _parts(path)) is not None:
        mark, count = parts
        return mark.join([str(number % CLASSES)] * count + [plain])
    return plain


@functools.cache
def _patterns(path: str) -> tuple[str, ...]:
    """Regular expressions with groups that a file applies, as written for names."""
    try:
        tree = ast.parse(source_of(path))
    except (SyntaxError, ValueError):
        return ()
    return tuple(dict.fromkeys(p for p in _applied(tree) if "(" in p and _written(p, 0) is not None))


def _applied(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first, owner = node.args[0], node.func.value
            is_regular = isinstance(owner, ast.Name) and owner.id in ("re", "regex") and node.func.attr in _APPLIED
            if is_regular and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


@functools.cache
def _parts(path: str) -> tuple[str, int] | None:
    """The mark that names are split at, and how many parts are looked at before the last."""
    found = [match for match in _SPLIT.finditer(source_of(path)) if match[3]]
    if not found:
        return None
    mark = found[0][1]
    return mark, max(int(m[3]) + (not m[2]) for m in found if m[1] == mark)


def _written(pattern: str, number: int) -> str | None:
    """A text that a pattern matches, with the number where it has digits; None where it is none of a name's."""
    try:
        text = "".join(_texts(parser.parse(pattern), number))
    except (re.error, KeyError, RecursionError):
        return None
    if re.compile(pattern).groups > 1 and (digits := re.match(r"\d+", text)):  # who it is, where, and more
        text = f"{number % PEOPLE:04}{text[digits.end() :]}"
        text += "" if pattern.endswith("$") else f"s1_{number:06}"
    return text if _NAME.fullmatch(text) and re.search(pattern, text) and re.search(r"\d", text) else None


def _texts(parsed: Any, number: int) -> Iterator[str]:
    for code, value in parsed:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.ANY:
            yield "a"
        elif code is codes.IN:
            yield _one_of(value)
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, inner = value
            yield from _repeated(least, most, inner, number)
        elif code is codes.SUBPATTERN:
            yield from _texts(value[-1], number)
        elif code is codes.BRANCH:
            yield from _texts(value[1][0], number)
        elif code is not codes.AT:
            raise KeyError(code)


def _repeated(least: int, most: Any, inner: Any, number: int) -> Iterator[str]:
    if most == 0 or (least == 0 and most == 1):
        return
    text = "".join(_texts(inner, number))
    if len(text) != 1:
        yield text * max(least, 1)
    elif text.isdigit():
        yield str(number).zfill(max(least, 1))
    elif most is codes.MAXREPEAT and inner[0][0] is not codes.LITERAL:  # the class, as most have it first
        yield f"class{string.ascii_lowercase[number % CLASSES]}"
    else:
        yield text * max(least, 1)


def _one_of(choices: Any) -> str:
    """A character of a set, a digit where it may be one."""
    if choices[0][0] is codes.NEGATE:
        return "a"
    for kind, value in choices:
        if (kind is codes.CATEGORY and value is codes.CATEGORY_DIGIT) or (kind is codes.RANGE and value[0] == ord("0")):
            return "1"
    kind, value = choices[0]
    if kind is codes.LITERAL:
        return chr(value)
    if kind is codes.RANGE:
        return chr(value[0])
    return {codes.CATEGORY_WORD: "a", codes.CATEGORY_NOT_DIGIT: "a", codes.CATEGORY_NOT_SPACE: "a"}[value]
