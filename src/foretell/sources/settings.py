"""Settings of a source: what `--set name=value` may set, and text read as the type that a parameter has."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from operator import index
from pathlib import Path, PurePath
from typing import Any, Final, Literal, Union, get_args, get_origin

from foretell.errors import InputError, SourceError, did_you_mean
from foretell.precision import Precision

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_WRITTEN: Final[Mapping[Any, tuple[str, dict[str, Any]]]] = {  # types that a few words stand for
    bool: ("true or false", {**dict.fromkeys(("true", "yes", "on", "1"), True),
                             **dict.fromkeys(("false", "no", "off", "0"), False)}),
    type(None): ("none", {"none": None, "null": None}),
}  # fmt: skip
_READ: Final[Mapping[Any, tuple[str, Callable[[str], Any]]]] = {
    int: ("a whole number", lambda text: int(text.replace("_", ""))),
    float: ("a number", lambda text: float(text.replace("_", ""))),
    str: ("text", str),
    Any: ("text", str),
    Path: ("a path", Path),
    Precision: ("parts like parameters:bf16/master:fp32", lambda text: _parts(text)),
}


def _parts(text: str) -> Precision:
    if ":" not in text:
        raise ValueError
    try:
        return Precision.parse(text)
    except InputError as error:
        raise SourceError(str(error)) from None


def texts_of(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings as the command line writes them: what a Python user gives as 64 or True is the same setting."""
    return {name: text_of(name, value) for name, value in (settings or {}).items()}


def text_of(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | PurePath | Precision):
        return str(value)
    if hasattr(value, "__index__"):  # whole numbers of numpy and torch
        return str(index(value))
    raise InputError(
        f"setting {name}={value!r} is a {type(value).__name__}. Settings are text, numbers, True or False, None or paths."
    )


def settings_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function that makes a workload; each has a type, its default's where it is not annotated."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker can read
        signature = inspect.signature(function)
    return {p.name: _typed(p) for p in signature.parameters.values() if p.kind in _NAMED}


def _typed(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str):
        return parameter
    unknown = parameter.default is parameter.empty or parameter.default is None
    return parameter.replace(annotation=str if unknown else type(parameter.default))


def converted(source: str, settings: Mapping[str, str], known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Settings as the types of their parameters; each is known, and none is missing."""
    given = {}
    for name, text in settings.items():
        if name not in known:
            takes = f"It takes: {', '.join(known)}." if known else "It takes no settings."
            raise SourceError(f"{source} has no setting {name!r}. {did_you_mean(name, known)}{takes}")
        try:
            given[name] = _read(text, known[name].annotation)
        except ValueError as problem:
            raise SourceError(f"setting {name}={text!r} of {source}: {problem}.") from None
    missing = [name for name, setting in known.items() if setting.default is setting.empty and name not in given]
    if missing:
        raise SourceError(
            f"{source} needs a value for {', '.join(missing)}. "
            f"Give it with {' '.join(f'--set {name}=…' for name in missing)}, or a default in the function."
        )
    return given


def _read(text: str, kind: Any) -> Any:
    """Read text as a type; the message of a ValueError is what was wanted."""
    if get_origin(kind) in (Union, types.UnionType):
        return _read_union(text, get_args(kind))
    if get_origin(kind) is Literal:
        choices = {text_of("", choice): choice for choice in get_args(kind)}
        if text not in choices:
            raise ValueError(f"{did_you_mean(text, choices)}Allowed: {', '.join(choices)}")
        return choices[text]
    if kind in _WRITTEN:
        wanted, words = _WRITTEN[kind]
        if text.lower() not in words:
            raise ValueError(f"must be {wanted}")
        return words[text.lower()]
    if kind not in _READ:
        raise ValueError(
            f"cannot be set from text, because its type is {kind}. Use int, float, bool, str, None or Literal"
        )
    wanted, read = _READ[kind]
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"must be {wanted}") from None


def _read_union(text: str, kinds: tuple[Any, ...]) -> Any:
    # None first and plain text last: what only text can hold stays text.
    problems = []
    for kind in sorted(kinds, key=lambda kind: (kind is not type(None), kind is str)):
        try:
            return _read(text, kind)
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError(" or ".join(dict.fromkeys(problems)))
