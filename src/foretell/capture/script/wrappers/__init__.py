"""What wraps a model to run it on many devices: its keywords are read for the plan, and each is used, free or a caveat."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from foretell.graph import Caveat
from foretell.sources.configs.keys import Keys


def keywords(call: Callable[..., Any], label: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Keys:
    """The arguments of a call by their names; those that only repeat a default are left out."""
    signature = inspect.signature(call)
    given = signature.bind(*args, **kwargs).arguments
    usual = {name: parameter.default for name, parameter in signature.parameters.items()}
    return Keys({name: value for name, value in given.items() if not _equal(value, usual[name])}, label)


def _equal(value: Any, usual: Any) -> bool:
    return value is usual or (type(value) is type(usual) and bool(value == usual))


def hook_not_modelled(wrapper: str, hook: Any) -> Caveat:
    name = getattr(hook, "__qualname__", str(hook))
    text = f"The communication hook {name} of {wrapper} is not modelled: gradients are sent as they are."
    return Caveat("communication-hook-not-modelled", text)


def check_whole_world(world: int | None, keys: Keys, *names: str) -> None:
    """Of groups or meshes of ranks: only one of all ranks is what the plan has."""
    for name in names:
        group = keys.take(name)
        if group is not None and world is not None and (ranks := group.size()) != world:
            keys.say(name, f"{ranks} of {world} ranks; the plan has all of them")
