"""Functions that read what is missing, or ask another machine for it, and what they give in place of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from foretell.capture.as_gpu.patches import replace
from foretell.sources.offline import refusal_in


class Note(Protocol):
    """Hears of what was stood in for."""

    def __call__(self, what: str, assumed: str = "", *, decides_size: bool = False) -> None: ...


def or_else(owner: Any, name: str, make: Callable[..., Any], missing: Any = FileNotFoundError) -> None:
    """Let a function, where what it reads is missing, give what `make` gives of the same arguments."""
    read: Callable[..., Any] = getattr(owner, name)

    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return read(*args, **kwargs)
        except missing:
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
