"""A function of the script's that reads data, so changed that it goes on where a statement fails on what stands in.

What a statement would have given is made up instead: each name that it gives something gets a value, a loop gets rows, a check is
passed over. Only functions that have failed in an earlier run are changed, in memory; what a `try` of the script's expects to fail
is left to it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

MADE: Final = "foretell_made"  # (error, line, name, how) → a value; without a name, it hears of a line that has failed
ROWS: Final = "foretell_rows"  # (function that gives what is gone through, line, names) → rows
_ROW: Final = "foretell_row"
_ERROR: Final = "foretell_error"
_GROWING: Final = frozenset(("append", "add", "extend", "insert"))
_SIMPLE: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Assert, ast.Raise, ast.Return, ast.Delete)
_LEAVING: Final = (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A function by its first line; of one that does more than read data, the only line that may fail."""

    path: str
    first: int
    line: int = 0

    @classmethod
    def of(cls, entry: Sequence[Any]) -> Place:
        path, first, line = entry
        return cls(path=path, first=first, line=line)

    def entry(self) -> list[Any]:
        """As JSON has it."""
        return [self.path, self.first, self.line]


def changed(source: str, path: str, places: Iterable[Place]) -> ast.Module:
    """The program of a file, whose functions at those places go on."""
    tree = ast.parse(source, path)
    for place in places:
        for node in _functions(tree, place):
            node.body = _Statements(place.line).of_block(node.body)
    return ast.fix_missing_locations(tree)


def _functions(tree: ast.Module, place: Place) -> Iterator[Any]:
    if place.first <= 0:
        yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and place.first == min(
            [node.lineno, *(d.lineno for d in node.decorator_list)]
        ):
            yield node


class _Statements:
    """Statements that go on: all of them, or those of one line."""

    def __init__(self, only: int) -> None:
        self._only = only

    def of_block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [changed for statement in body for changed in self._of(statement)]

    def _is_meant(self, first: int, last: int | None) -> bool:
        return not self._only or first <= self._only <= (last or first)

    def _of(self, statement: ast.stmt) -> list[ast.stmt]:
        if self._only and isinstance(statement, ast.Try):
            return self._of_try(statement)
        if isinstance(
            statement, ast.Try | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom
        ):
            return [statement]
        if isinstance(statement, ast.For):
            return self._of_loop(statement)
        if isinstance(statement, ast.If | ast.With | ast.While):
            return self._of_compound(statement)
        is_word = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        meant = self._is_meant(statement.lineno, statement.end_lineno)
        if not isinstance(statement, _SIMPLE) or is_word or not meant or _leaves(statement):
            return [statement]
        return [_trying([statement], _instead(statement), statement)]

    def _of_try(self, statement: ast.Try) -> list[ast.stmt]:
        """What it does with errors has not helped against that of the line."""
        statement.body, statement.orelse = self.of_block(statement.body), self.of_block(statement.orelse)
        statement.finalbody = self.of_block(statement.finalbody)
        for handler in statement.handlers:
            handler.body = self.of_block(handler.body)
        return [statement]

    def _of_compound(self, statement: ast.If | ast.With | ast.While) -> list[ast.stmt]:
        first, last = statement.lineno, statement.body[0].lineno - 1
        names = list(dict.fromkeys(_stored(statement)))
        if self._only or not isinstance(statement, ast.While):  # whose every round may depend on the one before
            statement.body = self.of_block(statement.body)
        if isinstance(statement, ast.If):
            statement.orelse = self.of_block(statement.orelse)
        if not self._is_meant(first, last) or _leaves(statement):
            return [statement]
        return [_trying([statement], [_given_first(name, statement) for name in names], statement)]

    def _of_loop(self, loop: ast.For) -> list[ast.stmt]:
        meant = self._is_meant(loop.lineno, loop.body[0].lineno - 1)
        body = self.of_block(loop.body)
        if meant and not _leaves(loop.iter):
            names = [_name_of(part) for part in _parts(loop.target)]
            if isinstance(loop.target, ast.Tuple):
                taken = ast.Assign(targets=[loop.target], value=ast.Name(id=_ROW, ctx=ast.Load()))
                ast.copy_location(taken, loop)
                taken.end_lineno = loop.lineno
                body = [*_Statements(0).of_block([taken]), *body]
                loop.target = ast.Name(id=_ROW, ctx=ast.Store())
            source = f"{ROWS}(lambda: {ast.unparse(loop.iter)}, {loop.lineno}, {names!r})"
            loop.iter = _value(source, loop)
        loop.body = body
        return [loop]


def _parsed(source: str, at: ast.stmt) -> list[ast.stmt]:
    """Statements that are at the line of another."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr | ast.excepthandler):
            ast.copy_location(node, at)
            node.end_lineno = node.lineno
            node.end_col_offset = node.col_offset
    return tree.body


def _value(source: str, at: ast.stmt) -> ast.expr:
    (statement,) = _parsed(source, at)
    assert isinstance(statement, ast.Expr)
    return statement.value


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(inner, _LEAVING) for inner in ast.walk(node))


def _trying(body: list[ast.stmt], instead: list[ast.stmt], at: ast.stmt) -> ast.stmt:
    """What is done instead may fail too, as where it is put into something that is not there."""
    value = getattr(at, "value", None)
    noted = _parsed(f"{MADE}({_ERROR}, {at.lineno}, None, {_how(value) if value is not None else ''!r})", at)
    handler = ast.ExceptHandler(type=ast.Name(id="Exception", ctx=ast.Load()), name=_ERROR, body=[*noted, *instead])
    return ast.copy_location(ast.Try(body=body, handlers=[handler], orelse=[], finalbody=[]), at)


def _instead(statement: ast.stmt) -> list[ast.stmt]:
    if isinstance(statement, ast.Return) and statement.value is not None:
        return [ast.Return(value=_value(_expression(statement.value, statement), statement))]
    if isinstance(statement, ast.Assign):
        parts = [part for target in statement.targets for part in _parts(target)]
        how = _how(statement.value)
        if len(parts) > 1 and how.endswith("split"):
            how = "str"  # parts of a text
        return [_given(ast.unparse(part), _name_of(part), how, statement) for part in parts]
    if isinstance(statement, ast.AnnAssign):
        how = _how(statement.value) if statement.value else ""
        return [_given(ast.unparse(statement.target), _name_of(statement.target), how, statement)]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _GROWING and call.args:
        *before, last = call.args
        arguments = [*map(ast.unparse, before), _expression(last, statement)]
        made = f"{ast.unparse(call.func)}({', '.join(arguments)})"
        return _parsed(f"try:\n    {made}\nexcept Exception:\n    pass", statement)
    return []


def _given(target: str, name: str, how: str, at: ast.stmt) -> ast.stmt:
    value = f"{MADE}({_ERROR}, {at.lineno}, {name!r}, {how!r})"
    return _parsed(f"try:\n    {target} = {value}\nexcept Exception:\n    pass", at)[0]


def _given_first(name: str, at: ast.stmt) -> ast.stmt:
    """A name that nothing was given to before."""
    return _parsed(f"if {name!r} not in locals():\n    {name} = {MADE}({_ERROR}, {at.lineno}, {name!r}, '')", at)[0]


def _expression(value: ast.expr, at: ast.stmt) -> str:
    """A value made up in the parts that are written."""
    if isinstance(value, ast.Tuple | ast.List) and value.elts:
        inner = ", ".join(_expression(part, at) for part in value.elts)
        return f"({inner},)" if isinstance(value, ast.Tuple) else f"[{inner}]"
    if isinstance(value, ast.Dict) and all(key is not None for key in value.keys):
        pairs = zip(value.keys, value.values, strict=True)
        parts = [f"{ast.unparse(key)}: {_made(_name_of(key), part, at)}" for key, part in pairs if key is not None]
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, ast.Constant):
        return ast.unparse(value)
    return _made(_name_of(value), value, at)


def _made(name: str, value: ast.expr, at: ast.stmt) -> str:
    return f"{MADE}({_ERROR}, {at.lineno}, {name!r}, {_how(value)!r})"


def _parts(target: ast.expr) -> list[ast.expr]:
    """Targets, without those of targets that are taken apart."""
    if isinstance(target, ast.Tuple | ast.List):
        return [part for each in target.elts for part in _parts(each)]
    return [target.value if isinstance(target, ast.Starred) else target]


def _name_of(node: ast.expr) -> str:
    """What a value is called: `self.boxes`, `row["boxes"]` and `boxes[i]` are boxes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Subscript):
        is_key = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return _name_of(node.slice if is_key else node.value)
    if isinstance(node, ast.Call):
        return _name_of(node.args[0]) if node.args else _name_of(node.func)
    return ""


def _how(value: ast.expr) -> str:
    """What gives the value: the function that is called last, or the kind of what is written."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func)
    if isinstance(value, ast.ListComp):
        return f"[{_how(value.elt)}]"
    kinds = {ast.List: "[]", ast.Dict: "{}", ast.DictComp: "{}", ast.JoinedStr: "str"}
    return kinds.get(type(value), "")


def _stored(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
