"""librosa before 0.10, whose functions took by position what has to be named today."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Final

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

_PARTS: Final = """util.utils filters core.audio core.spectrum core.convert core.pitch feature.spectral feature.inverse feature.utils
    effects onset beat decompose""".split()


def install(session: Session) -> None:
    for part in _PARTS:
        once_imported(f"librosa.{part}", _take_by_position)
    once_imported("librosa.feature.spectral", lambda module: vars(module).setdefault("rmse", module.rms))
    once_imported("librosa.feature", lambda module: vars(module).setdefault("rmse", module.rms))
    once_imported("librosa", lambda module: vars(module).setdefault("output", Nothing("librosa.output")))
    provide(lambda name: name == "librosa.output", Nothing)


def _take_by_position(module: Any) -> None:
    for name, function in list(vars(module).items()):
        if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
            named = _only_named(function)
            if named:
                setattr(module, name, _either(function, named))


def _only_named(function: Any) -> list[str]:
    """Parameters that have to be named; they are in the order that they once had."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return []
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _either(function: Any, named: list[str]) -> Any:
    taken = len(
        [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    )

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args[:taken], **dict(zip(named, args[taken:], strict=False)), **kwargs)

    return called
