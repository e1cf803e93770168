"""The columns of a row, read off its dataclass, and the one check of what may be in them.

A field may say more in its metadata: `one_of` these, `json` of an object, `signed`, `as_long_as` another column.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from foretell.errors import InputError

_LARGEST: Final = 2**63 - 1  # of whole numbers in every place a row is kept
_EXACT: Final = 2**53  # up to here a fraction's place holds whole numbers too
_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "text": frozenset({str}), "whole": frozenset({int}), "number": frozenset({int, float}),
    "bool": frozenset({bool}), "bytes": frozenset({bytes}),
}  # fmt: skip
_WORDS: Final = {"text": "a text", "whole": "a whole number", "number": "a number", "bool": "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    kind: str  # text, whole, number, bool, bytes
    many: bool = False  # a tuple of them
    optional: bool = False  # may be missing
    default: Any  # dataclasses.MISSING where there is none
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


@cache
def columns_of(row: type) -> tuple[Column, ...]:
    hints = get_type_hints(row)
    return tuple(
        Column(name=f.name, default=f.default, rules=f.metadata, **_kind(hints[f.name]))
        for f in dataclasses.fields(row)
    )


def _kind(hint: Any) -> dict[str, Any]:
    if get_origin(hint) in (Union, types.UnionType):
        [inner] = (argument for argument in get_args(hint) if argument is not types.NoneType)
        return _kind(inner) | {"optional": True}
    if get_origin(hint) is tuple:
        return _kind(get_args(hint)[0]) | {"many": True}
    return {"kind": {str: "text", int: "whole", float: "number", bool: "bool", bytes: "bytes"}[hint]}


def check_rows(row: type, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuse values that a column cannot hold; `values` has those of each column, for one row or for many."""
    for column in columns_of(row):
        found = [value for value in values[column.name] if value is not None or not column.optional]
        if column.many:
            _refuse_types(column, found, frozenset({tuple, list}), "a list")
            longs = list(map(len, values[column.rules.get("as_long_as", column.name)]))
            if longs != list(map(len, found)):
                raise InputError(f"{column.name} and {column.rules['as_long_as']} must be equally long.")
            found = list(chain.from_iterable(found))
        _refuse_types(column, found, _TYPES[column.kind], _WORDS.get(column.kind, column.kind))
        if column.kind in ("whole", "number"):
            _check_numbers(column, found)
        elif column.kind == "text":
            _check_texts(column, found)


def _refuse_types(column: Column, found: Sequence[Any], allowed: frozenset[type], words: str) -> None:
    if not allowed.issuperset(map(type, found)):
        _refuse(column, next(value for value in found if type(value) not in allowed), words)


def _refuse(column: Column, value: Any, allowed: str) -> None:
    got = repr(value)
    raise InputError(f"{column.name} must be {allowed}, got {got[:80]}{'…' if len(got) > 80 else ''}.")


def _check_numbers(column: Column, found: Sequence[int | float]) -> None:
    least = -math.inf if column.rules.get("signed") else 0
    most = _LARGEST if column.kind == "whole" else math.inf
    if not _are_between(found, least, most):
        wrong = next(value for value in found if not _are_between([value], least, most))
        _refuse(column, wrong, f"{_WORDS[column.kind]}{' of at least 0' if least == 0 else ''} and not too large")
    if column.kind == "number" and int in set(map(type, found)):
        for value in found:
            if type(value) is int and abs(value) > _EXACT:
                _refuse(column, value, f"a whole number of at most {_EXACT:,}, or a fraction")


def _are_between(found: Sequence[int | float], least: float, most: float) -> bool:
    try:
        return not found or (least <= min(found) and max(found) <= most and all(map(math.isfinite, found)))
    except OverflowError:  # a whole number beyond all floats
        return False


def _check_texts(column: Column, found: Sequence[str]) -> None:
    try:
        "".join(found).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{column.name} has a character that is none: {error.reason}.") from None
    if allowed := column.rules.get("one_of"):
        for value in set(found).difference(allowed):
            _refuse(column, value, f"one of {', '.join(allowed)}")
    if column.rules.get("json"):
        for text in set(found) - {""}:
            if not _is_json_object(text):
                _refuse(column, text, "the JSON of an object")


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
