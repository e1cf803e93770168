"""Who is compared: the published systems of `foretell.methods`, Foretell itself, plainer rivals and our own variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from foretell.methods import METHODS, method
from foretell.methods.protocol import Method

COMPARED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **METHODS,  # `foretell` among them: what users have, a profile of `foretell adapt` and a forecast with it
        "predictddl-operators": "foretell_bench.methods.predictddl_operators:PredictDDLOperators",
        "additive": "foretell_bench.methods.plainer:Additive",
        "whole-graph": "foretell_bench.methods.plainer:whole_graph",
    }
)


def compared(name: str) -> Callable[[], Method]:
    """What makes the method of this name; a method of your own is named `package.module:Class`."""
    return method(name, COMPARED)
