"""Methods: the published systems and ours, each behind one protocol, so that they can be compared on the same rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.methods.protocol import Method

METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "foretell": "foretell.methods.ours:Foretell",
        "scaledl": "foretell.methods.scaledl.method:ScaleDL",
        "predictddl": "foretell.methods.predictddl.method:PredictDDL",
        "predictddl-operators": "foretell.methods.predictddl.operators:PredictDDLOperators",
        "driple": "foretell.methods.driple.method:quick",
        "dnnabacus": "foretell.methods.dnnabacus:DNNAbacus",
        "ernest": "foretell.methods.ernest:Ernest",
    }
)


def method(name: str) -> Callable[[], Method]:
    """What makes the method of this name; a method of your own is named `package.module:Class`."""
    where = METHODS.get(name, name)
    module, colon, attribute = where.partition(":")
    if not colon or not module or not attribute:
        raise InputError(
            f"no method {name!r}. {did_you_mean(name, METHODS)}Methods: {', '.join(METHODS)}; or one of your own, as "
            "package.module:Class."
        )
    try:
        found: Callable[[], Method] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"method {name!r} cannot be loaded ({error}). Check the spelling, and that the package is installed."
        ) from error
    return found
