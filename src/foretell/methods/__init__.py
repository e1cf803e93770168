"""Methods: the published systems behind one protocol, so that they can be used and compared on the same rows.

from foretell.methods import ScaleDL, examples_of, load, query_of, save

fitted = ScaleDL().fit(examples_of("measurements"))
save(fitted, "mine")
load("mine").predict([query_of(graph, "8xh100-sxm", "dp=8")])
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import InputError, did_you_mean
from foretell.methods.protocol import STEP_TIME, Example, Method, Prediction, Query

if TYPE_CHECKING:
    from foretell.methods.conformance import check, made_up
    from foretell.methods.dnnabacus import DNNAbacus
    from foretell.methods.driple.method import Driple
    from foretell.methods.ernest import Ernest
    from foretell.methods.examples import examples_of, query_of
    from foretell.methods.predictddl.method import PredictDDL
    from foretell.methods.saved import load, save
    from foretell.methods.scaledl.method import ScaleDL

__all__ = [
    "METHODS",
    "STEP_TIME",
    "DNNAbacus",
    "Driple",
    "Ernest",
    "Example",
    "Method",
    "PredictDDL",
    "Prediction",
    "Query",
    "ScaleDL",
    "check",
    "examples_of",
    "load",
    "made_up",
    "method",
    "query_of",
    "save",
]  # fmt: skip
_LAZY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DNNAbacus": "dnnabacus", "Driple": "driple.method", "Ernest": "ernest", "PredictDDL": "predictddl.method",
        "ScaleDL": "scaledl.method", "examples_of": "examples", "query_of": "examples", "load": "saved", "save": "saved",
        "check": "conformance", "made_up": "conformance",
    }
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Those that need torch are loaded when they are asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'foretell.methods' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"foretell.methods.{_LAZY[name]}"), name)
    return value


METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "scaledl": "foretell.methods.scaledl.method:ScaleDL",
        "predictddl": "foretell.methods.predictddl.method:PredictDDL",
        "driple": "foretell.methods.driple.method:quick",
        "dnnabacus": "foretell.methods.dnnabacus:DNNAbacus",
        "ernest": "foretell.methods.ernest:Ernest",
        "foretell": "foretell.methods.product:Foretell",
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
