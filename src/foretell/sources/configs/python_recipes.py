"""Recipes that are functions of Python: constructors with keywords, and fields set one after another, read without being run.

What only running would tell is kept as its text (`Unread`): a reader that needs it refuses it, others go on.
"""

from __future__ import annotations

import ast
import builtins
import copy
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs.python_modules import Function, Module, function_named, module_of

CALLED: Final = "_called"  # what made a table: the name of a class or of a function
ARGUMENTS: Final = "_arguments"  # that were given by position
MADE_FROM: Final = "_made_from"  # of a method's result: what the method was called on; of a function's, its call
MARKS: Final = (CALLED, ARGUMENTS, MADE_FROM)
_KINDS: Final = ("Trainer.Config", "ConfigContainer")  # what recipes of torchtitan and of Megatron-Bridge return
_DEPTH: Final = 24  # functions inside functions
_STATEMENTS: Final = 20_000
_LARGEST: Final = 2**63
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}  # fmt: skip
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


class Unread(str):
    """The text of what only running the file would tell."""

    __slots__ = ()


def recipes_in(path: Path) -> list[str]:
    """Functions of a file that return a trainer's configuration."""
    return [name for name, body in module_of(path).functions.items() if _is_recipe(body)]


def read_recipe(path: Path, name: str) -> dict[str, Any] | None:
    """What a recipe makes, table in table; None for a function that is none."""
    found = function_named(module_of(path), name)
    if found is None or not _is_recipe(found.body):
        return None
    made = _Reading().call(found, [], {})
    if not isinstance(made, dict):
        raise SourceError(
            f"{path.name}:{name} makes its configuration in a way that only running it would show ({str(made)[:80]}). "
            "Write its values into a configuration file, or give model, settings and plan."
        )
    return made


def _is_recipe(body: ast.FunctionDef) -> bool:
    kind = "" if body.returns is None else ast.unparse(body.returns).strip("'\"")
    return kind.endswith(_KINDS)


class _Reading:
    """Functions followed by their statements; every value is a constant, a list, a table or unread."""

    def __init__(self) -> None:
        self.depth = self.statements = 0

    def call(self, function: Function, given: list[Any], named: dict[str, Any]) -> Any:
        """What a function returns; None without a return, as in Python."""
        if self.depth >= _DEPTH:
            return Unread(f"{function.body.name}(…)")
        names: dict[str, Any] = self._arguments(function, given, named)
        self.depth += 1
        try:
            return self._run(function.body.body, names, function.module)[1]
        finally:
            self.depth -= 1

    def _arguments(self, function: Function, given: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        every = function.body.args
        places = [*every.posonlyargs, *every.args]
        late = zip(places[len(places) - len(every.defaults) :], every.defaults, strict=True)
        only = ((a, d) for a, d in zip(every.kwonlyargs, every.kw_defaults, strict=True) if d is not None)
        made = {arg.arg: self.value(default, {}, function.module) for arg, default in (*late, *only)}
        return {**made, **dict(zip((a.arg for a in places), given, strict=False)), **named}

    def _run(self, body: Iterable[ast.stmt], names: dict[str, Any], module: Module) -> tuple[bool, Any]:
        """Whether it returned, and what."""
        for node in body:
            self.statements += 1
            if self.statements > _STATEMENTS:
                raise SourceError(f"'{module.path}' is too long to be read as a recipe.")
            match node:
                case ast.Return(value=value):
                    return True, None if value is None else self.value(value, names, module)
                case ast.Assign(targets=targets, value=value):
                    self._assign(targets, self.value(value, names, module), names, module)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign([target], self.value(value, names, module), names, module)
                case ast.Expr(value=ast.Call() as value):
                    self.value(value, names, module)
                case ast.If():
                    returned = self._branch(node, names, module)
                    if returned[0]:
                        return returned
                case ast.For() | ast.While() | ast.With() | ast.Try() | ast.AugAssign():
                    self._forget(node, names, module)
        return False, None

    def _branch(self, node: ast.If, names: dict[str, Any], module: Module) -> tuple[bool, Any]:
        test = self.value(node.test, names, module)
        if _is_unknown(test):
            self._forget(node, names, module)
            return False, None
        return self._run(node.body if test else node.orelse, names, module)

    def _forget(self, node: ast.stmt, names: dict[str, Any], module: Module) -> None:
        """What is set there may be so or not."""
        for each in ast.walk(node):
            targets = each.targets if isinstance(each, ast.Assign) else []
            targets = [each.target] if isinstance(each, ast.AugAssign) else targets
            self._assign(targets, Unread(ast.unparse(node).partition("\n")[0][:80]), names, module)

    def _assign(self, targets: Iterable[ast.expr], value: Any, names: dict[str, Any], module: Module) -> None:
        for target in targets:
            match target:
                case ast.Name(id=name):
                    names[name] = value
                case ast.Attribute(value=of, attr=attr):
                    table = self._table(of, names, module)
                    if table is not None:
                        table[attr] = value
                case ast.Tuple(elts=elements):
                    many = value if isinstance(value, list) and len(value) == len(elements) else None
                    for number, each in enumerate(elements):
                        one = Unread(ast.unparse(each)) if many is None else many[number]
                        self._assign([each], one, names, module)

    def _table(self, node: ast.expr, names: dict[str, Any], module: Module) -> dict[str, Any] | None:
        """The table whose field is set; one that nobody made yet begins empty."""
        if isinstance(node, ast.Name):
            found = names.get(node.id)
        elif isinstance(node, ast.Attribute) and (around := self._table(node.value, names, module)) is not None:
            found = around.get(node.attr)
            if not isinstance(found, dict):
                found = around[node.attr] = {} if found is None else {CALLED: str(found)}
        else:
            return None
        return found if isinstance(found, dict) else None

    def value(self, node: ast.expr, names: dict[str, Any], module: Module) -> Any:
        """Of an expression."""
        unread = Unread(ast.unparse(node)[:200])

        def of(each: ast.expr) -> Any:
            return self.value(each, names, module)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name) if name in module.constants:
                return self.value(module.constants[name], {}, module)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [of(each) for each in elements]
            case ast.Dict(keys=keys, values=values):
                return {str(of(k)): of(v) for k, v in zip(keys, values, strict=True) if k is not None}
            case ast.Attribute(value=inner, attr=attr):
                table = of(inner)
                if isinstance(table, dict):
                    return table.get(attr, unread)
                return str(unread) if _is_name(node, names) else unread
            case ast.UnaryOp(op=ast.USub() | ast.Not() as sign, operand=operand):
                return _unary(sign, of(operand), unread)
            case ast.BinOp(left=left, op=op, right=right):
                return _binary(op, of(left), of(right), unread)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _compared(op, of(left), of(right), unread)
            case ast.BoolOp(op=op, values=values):
                return _joined(op, [of(each) for each in values], unread)
            case ast.Call():
                return self._called(node, names, module)
        return unread

    def _called(self, node: ast.Call, names: dict[str, Any], module: Module) -> Any:
        given = [self.value(each, names, module) for each in node.args if not isinstance(each, ast.Starred)]
        named = {word.arg: self.value(word.value, names, module) for word in node.keywords if word.arg is not None}
        name = ast.unparse(node.func)
        if name.endswith("deepcopy") and given:
            return copy.deepcopy(given[0])
        if hasattr(builtins, name):
            return _of_python(name, given, Unread(ast.unparse(node)[:200]))
        if isinstance(node.func, ast.Name):
            found = function_named(module, node.func.id)
            made = None if found is None else self.call(found, given, named)
            if isinstance(made, dict) and all(made is not each for each in given):
                made.setdefault(MADE_FROM, {CALLED: name, ARGUMENTS: given, **named})
            if isinstance(made, dict) or (found is not None and made is None):
                return made
        table: dict[str, Any] = {CALLED: name, ARGUMENTS: given, **named}
        if isinstance(node.func, ast.Attribute) and isinstance(of := self.value(node.func.value, names, module), dict):
            table |= {CALLED: node.func.attr, MADE_FROM: of}
        return table


def _is_name(node: ast.expr, names: dict[str, Any]) -> bool:
    """A member of something imported, as `torch.float32`: it is what it is called."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id not in names


def _is_unknown(value: Any) -> bool:
    """Whether only running would tell if it holds: a function's result too, unlike an object of a class."""
    called = value.get(CALLED, "") if isinstance(value, dict) else ""
    return isinstance(value, Unread) or str(called).rpartition(".")[2][:1].islower()


def _of_python(name: str, given: list[Any], unread: Unread) -> Any:
    """A function of Python's own: a field by its name, and whether a value is text."""
    if name == "getattr" and len(given) > 1 and isinstance(given[0], dict):
        return given[0].get(str(given[1]), given[2] if len(given) > 2 else unread)
    if name == "isinstance" and given[1:] == ["str"] and not isinstance(given[0], Unread):
        return isinstance(given[0], str)
    return unread


def _unary(sign: ast.unaryop, value: Any, unread: Unread) -> Any:
    if _is_unknown(value):
        return unread
    if isinstance(sign, ast.Not):
        return not value
    return -value if isinstance(value, int | float) else unread


def _binary(op: ast.operator, left: Any, right: Any, unread: Unread) -> Any:
    known = _BINARY.get(type(op))
    if known is None or not all(isinstance(side, int | float) for side in (left, right)):
        return unread
    try:
        made = known(left, right)
    except ArithmeticError:
        return unread
    return made if abs(made) < _LARGEST else unread


def _compared(op: ast.cmpop, left: Any, right: Any, unread: Unread) -> Any:
    known = _COMPARED.get(type(op))
    return unread if known is None or isinstance(left, Unread) or isinstance(right, Unread) else known(left, right)


def _joined(op: ast.boolop, values: list[Any], unread: Unread) -> Any:
    """`and` and `or`, as far as what is known decides."""
    decides = isinstance(op, ast.Or)
    for value in values:
        if _is_unknown(value):
            return unread
        if bool(value) is decides:
            return value
    return values[-1]
