"""Settings of a source: what `--set name=value` may set, and text read as the type that is asked for."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from foretell.errors import SourceError, did_you_mean

REQUIRED: Final = inspect.Parameter.empty
_TRUTHS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A parameter that `--set` can set."""

    name: str
    default: Any  # REQUIRED where the function gives none
    type: Any  # its annotation, else the type of its default

    @property
    def type_text(self) -> str:
        if get_origin(self.type) is Literal:
            return " | ".join(map(str, get_args(self.type)))
        return self.type.__name__ if isinstance(self.type, type) else str(self.type).replace("typing.", "")


def settings_of(function: Callable[..., Any]) -> dict[str, Setting]:
    """The parameters of a function that makes a workload, in order."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker can read
        signature = inspect.signature(function)
    nameable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: _setting(p) for p in signature.parameters.values() if p.kind in nameable}


def _setting(parameter: inspect.Parameter) -> Setting:
    kind, default = parameter.annotation, parameter.default
    if kind is REQUIRED or isinstance(kind, str):
        kind = str if default is REQUIRED or default is None else type(default)
    return Setting(name=parameter.name, default=default, type=kind)


def converted(source: str, settings: Mapping[str, str], known: Mapping[str, Setting]) -> dict[str, Any]:
    """Texts as what the function's annotations, else its defaults, ask for."""
    given = {}
    for name, text in settings.items():
        if name not in known:
            takes = f"It takes: {', '.join(known)}." if known else "It takes no settings."
            raise SourceError(f"{source} has no setting {name!r}. {did_you_mean(name, known)}{takes}")
        try:
            given[name] = _read(text, known[name].type)
        except ValueError as problem:
            raise SourceError(f"setting {name}={text!r} of {source}: {problem}.") from None
    missing = [name for name, setting in known.items() if setting.default is REQUIRED and name not in given]
    if missing:
        raise SourceError(
            f"{source} needs a value for {', '.join(missing)}. "
            f"Give it with {' '.join(f'--set {name}=…' for name in missing)}, or a default in the function."
        )
    return given


def _read(text: str, kind: Any) -> Any:
    """Read text as a type; ValueError says what was wanted."""
    origin = get_origin(kind)
    if origin is Union or origin is types.UnionType:
        return _read_union(text, get_args(kind))
    if origin is Literal:
        return _chosen(text, {str(choice): choice for choice in get_args(kind)})
    if kind is type(None) and text.lower() not in ("none", "null"):
        raise ValueError("must be none")
    if kind is type(None):
        return None
    if kind is bool:
        if text.lower() in _TRUTHS:
            return _TRUTHS[text.lower()]
        raise ValueError("must be true or false")
    if kind is int or kind is float:
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            raise ValueError("must be a whole number" if kind is int else "must be a number") from None
    if kind is str or kind is Any:
        return text
    if kind is Path:
        return Path(text)
    raise ValueError(f"cannot be set from text, because its type is {kind}. Use int, float, bool, str, None or Literal")


def _chosen(text: str, choices: Mapping[str, Any]) -> Any:
    if text not in choices:
        raise ValueError(f"{did_you_mean(text, choices)}Allowed: {', '.join(choices)}")
    return choices[text]


def _read_union(text: str, kinds: tuple[Any, ...]) -> Any:
    # None first and plain text last: what only text can hold stays text.
    problems = []
    for kind in sorted(kinds, key=lambda kind: (kind is not type(None), kind is str)):
        try:
            return _read(text, kind)
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError(" or ".join(dict.fromkeys(problems)))
