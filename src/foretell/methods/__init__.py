"""Methods: the published systems behind one protocol, so that they can be used and compared on the same rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.methods.protocol import Method

METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "scaledl": "foretell.methods.scaledl.method:ScaleDL",
        "predictddl": "foretell.methods.predictddl.method:PredictDDL",
        "driple": "foretell.methods.driple.method:quick",
        "dnnabacus": "foretell.methods.dnnabacus:DNNAbacus",
        "ernest": "foretell.methods.ernest:Ernest",
    }
)


def method(name: str, known: Mapping[str, str] = METHODS) -> Callable[[], Method]:
    """What makes the method of this name; a method of your own is named `package.module:Class`."""
    where = known.get(name, name)
    module, colon, attribute = where.partition(":")
    if not colon or not module or not attribute:
        raise InputError(
            f"no method {name!r}. {did_you_mean(name, known)}Methods: {', '.join(known)}; or one of your own, as "
            "package.module:Class."
        )
    try:
        found: Callable[[], Method] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"method {name!r} cannot be loaded ({error}). Check the spelling, and that the package is installed."
        ) from error
    return found
