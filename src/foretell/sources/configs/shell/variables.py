"""What a shell puts in for `$NAME`, `${NAME:-default}`, `$((1 + 2))`; commands are not run, so `$(…)` is not known."""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from foretell.limits import limit
from foretell.sources.configs.shell.words import Segment, Word, closed
from foretell.units import whole_number

UNKNOWN: Final = "\0"  # in a text: what only running a command would tell
_MAX_DEPTH: Final = 64  # variables inside variables
_NAME: Final = re.compile(r"[A-Za-z_]\w*|[0-9#@*?]")
_BRACED: Final = re.compile(r"(#?)([A-Za-z_]\w*|[0-9@*#])(?:\[([^\]]*)\])?(?:(:?[-=+?]|%%?|##?|//?)(.*))?", re.DOTALL)
_OPERATORS: Final[Mapping[type[Any], Callable[..., int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerValue:
    """A variable that a script leaves to its caller, and what was put in for it."""

    name: str
    value: str
    origin: Literal["environment", "default"]


class Variables:
    """A script's own, then the environment's; those of the environment that are empty count as not set."""

    def __init__(self, given: Sequence[str] = ()) -> None:
        self.own: dict[str, list[str]] = {}
        self.given = list(given)
        self.taken: dict[str, CallerValue] = {}

    def values(self, name: str) -> list[str] | None:
        """The words of a variable; None where it is not set."""
        if (number := whole_number(name)) is not None:
            return self.given[number - 1 : number] if 0 < number <= len(self.given) else None
        if name in ("@", "*"):
            return self.given
        if name == "#":
            return [str(len(self.given))]
        if name in self.own:
            return self.own[name]
        if not (value := os.environ.get(name)):
            return None
        self.taken[name] = CallerValue(name=name, value=value, origin="environment")
        return [value]

    def assign(self, name: str, words: list[str], *, more: bool = False) -> None:
        if more:
            before = self.values(name) or []
            words = [*before, *words] if len(before) > 1 or len(words) > 1 else ["".join(before + words)]
        if sum(map(len, words)) > limit("bytes of a configuration"):
            raise ValueError(f"the variable {name} of a script grows beyond all bounds")
        self.own[name] = words

    def words(self, word: Word) -> list[str]:
        """What a word becomes: none, one, or several."""
        made: list[str] = []
        current, started = "", False
        for segment in word:
            pieces = self._pieces(segment)
            if segment.mode != "bare":
                started = True
            for number, piece in enumerate(pieces):
                if number:
                    made += [current] if started or current else []
                    current, started = "", False
                current += piece
                started = started or bool(piece)
        return [*made, current] if started or current else made

    def text(self, word: Word) -> str:
        """The same as one text, as an assignment takes it."""
        return "".join(" ".join(self._pieces(s, split=False)) for s in word)

    def _pieces(self, segment: Segment, *, split: bool = True) -> list[str]:
        """Words that a segment begins, continues and ends; quoted, it is one but for `"${LIST[@]}"`."""
        if segment.mode == "single":
            return [segment.text]
        pieces = [""]
        for literal, values in self._parts(segment.text, 0):
            pieces[-1] += literal
            if values is None:
                continue
            inside = [v.split() for v in values] if segment.mode == "bare" and split else [[v] for v in values]
            flat = [word for words in inside for word in words]
            edges = segment.mode == "bare" and split and bool(values)
            if edges and values[0][:1].isspace() and pieces[-1]:
                pieces.append("")
            for number, word in enumerate(flat):
                if number:
                    pieces.append("")
                pieces[-1] += word
            if edges and values[-1][-1:].isspace() and flat:
                pieces.append("")
        return pieces

    def _parts(self, text: str, depth: int) -> list[tuple[str, list[str] | None]]:
        """Stretches of a text, each with the values of the variable after it."""
        if depth > _MAX_DEPTH:
            raise ValueError("variables inside variables, too deep")
        parts: list[tuple[str, list[str] | None]] = []
        at, start = 0, 0
        while at < len(text):
            if text[at] not in "$`":
                at += 1
                continue
            end, values = self._value(text, at, depth)
            if end > at:
                parts.append((text[start:at], values))
                start = at = end
            else:
                at += 1
        return [*parts, (text[start:], None)]

    def _value(self, text: str, at: int, depth: int) -> tuple[int, list[str]]:
        """Where a variable ends, and its values; the same place where there is none."""
        end = closed(text, at)
        if text.startswith("$((", at):
            return end, [self._number(text[at + 3 : end - 2], depth)]
        if text[at] == "`" or text.startswith("$(", at):
            return end, [UNKNOWN]
        if text.startswith("${", at):
            return end, self._braced(text[at + 2 : end - 1], depth)
        if (match := _NAME.match(text, at + 1)) is None:
            return at, []
        return match.end(), self.values(match[0]) or []

    def _braced(self, inside: str, depth: int) -> list[str]:
        if (match := _BRACED.fullmatch(inside)) is None:
            return [UNKNOWN]
        count, name, index, what, other = match.groups()
        values = self.values(name)
        if count:
            return [str(len(values or []))]
        if index and values is not None and (place := whole_number(index)) is not None:
            values = values[place : place + 1]
        missing = not values or not any(values)
        if what in ("-", ":-", "=", ":="):
            made = [self._filled(other, depth)] if missing else values
            if missing and made:
                self.taken[name] = CallerValue(name=name, value=made[0], origin="default")
            if missing and "=" in what:
                self.assign(name, made or [])
            return made or []
        if what in ("+", ":+"):
            return [] if missing else [self._filled(other, depth)]
        if what in ("%", "%%", "#", "##", "/", "//"):
            return [_trimmed(value, what, self._filled(other, depth)) for value in values or []]
        return values or []

    def _filled(self, text: str, depth: int) -> str:
        text = text.strip("\"'")
        return "".join(literal + " ".join(values or []) for literal, values in self._parts(text, depth + 1))

    def _number(self, expression: str, depth: int) -> str:
        filled = self._filled(expression, depth)
        named = re.sub(r"[A-Za-z_]\w*", lambda m: (self.values(m[0]) or ["0"])[0] or "0", filled)
        return calculated(named)


def calculated(expression: str) -> str:
    """Whole-number arithmetic; what is no such thing is not known."""
    try:
        tree = ast.parse(re.sub(r"\b0+(?=\d)", "", expression.strip()), mode="eval").body
        return str(int(_calculated(tree)))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return UNKNOWN


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_calculated(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_calculated(node.left), _calculated(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return _OPERATORS[type(node.ops[0])](_calculated(node.left), _calculated(node.comparators[0]))
    raise ValueError


def _trimmed(value: str, what: str, pattern: str) -> str:
    """`${NAME%.json}`, `${PATH##*/}` and `${NAME/a/b}`, of patterns with at most a star at one end."""
    if what in ("/", "//"):
        old, _, new = pattern.partition("/")
        return value.replace(old, new, -1 if what == "//" else 1) if old else value
    if what in ("%", "%%"):
        plain = pattern.rstrip("*")
        if not pattern.endswith("*"):
            return value.removesuffix(plain)
        return (value.partition(plain) if what == "%%" else value.rpartition(plain))[0] if plain in value else value
    plain = pattern.lstrip("*")
    if not pattern.startswith("*"):
        return value.removeprefix(plain)
    return (value.rpartition(plain) if what == "##" else value.partition(plain))[2] if plain in value else value
