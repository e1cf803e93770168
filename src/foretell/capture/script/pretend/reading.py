"""Functions that read what is missing, or ask another machine for it, and what they give in place of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files.callers import is_ready, reading_frame
from foretell.sources.offline import refusal_in


class Note(Protocol):
    """Hears of what was stood in for."""

    def __call__(self, what: str, assumed: str = "", *, decides_size: bool = False) -> None: ...


def or_else(owner: Any, name: str, make: Callable[..., Any], missing: Any = FileNotFoundError) -> None:
    """Let a function, where what it reads is missing, give what `make` gives of the same arguments.

    Code that knows how to do without, as one that makes the file then, hears that it is missing.
    """
    read: Callable[..., Any] = getattr(owner, name)

    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return read(*args, **kwargs)
        except missing:
            first = next(iter((*args, *kwargs.values())), "")
            if is_ready(reading_frame(), os.fspath(first) if isinstance(first, str | os.PathLike) else ""):
                raise
            return make(*args, **kwargs)

    replace(owner, name, either)


def or_else_offline(owner: Any, name: str, make: Callable[..., Any]) -> None:
    """Let a function, where it would ask another machine, give what `make` gives of the same arguments.

    `make` gives `NotImplemented` where it can give nothing: then the machine that was wanted is what the user hears of.
    """
    fetch: Callable[..., Any] = getattr(owner, name)

    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return fetch(*args, **kwargs)
        except Exception as error:
            if not refusal_in(error) or (made := make(*args, **kwargs)) is NotImplemented:
                raise
            return made

    replace(owner, name, either)
