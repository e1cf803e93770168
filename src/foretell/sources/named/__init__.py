"""Architectures known by name, each a plain function with keyword settings that returns a Workload.

A library is a module with two functions: `names()` lists what it offers, `workload_function(name)` returns the
function that makes the workload.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from foretell.errors import SourceError, did_you_mean
from foretell.workload import Workload


class Library(Protocol):
    """What a module of this room offers."""

    def names(self) -> Sequence[str]: ...

    def workload_function(self, name: str) -> Callable[..., Workload]: ...


# Prefix of the source → module, and the extra of this package that installs what the module imports.
LIBRARIES: dict[str, tuple[str, str]] = {
    "timm": ("foretell.sources.named.timm", "timm"),
    "torchvision": ("foretell.sources.named.torchvision", "torchvision"),
    "hf": ("foretell.sources.named.huggingface", "hf"),
    "generated": ("foretell.design.generated", ""),
}


def library(prefix: str) -> Library:
    """The library behind `timm/…`, `torchvision/…` or `hf/…`; imports it, which takes a second or two."""
    module, extra = LIBRARIES[prefix]
    try:
        return cast(Library, importlib.import_module(module))
    except ModuleNotFoundError as missing:
        raise SourceError(
            f"{prefix}/… needs the Python package {missing.name!r}, which is not installed. "
            f"Install it with: pip install 'foretell[{extra}]'"
        ) from None


def workload_function(prefix: str, name: str) -> Callable[..., Workload]:
    """The function behind a named source such as `timm/resnet50`."""
    offered = library(prefix)
    known = offered.names()
    if name not in known:
        raise SourceError(
            f"no architecture {name!r} in {prefix}. {did_you_mean(name, known)}"
            f"It offers {len(known)} names; list them with: foretell models {prefix}"
        )
    return offered.workload_function(name)
