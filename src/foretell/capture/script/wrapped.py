"""A module as wrappers of many devices leave it: it runs what is inside, and the replica's graph has no more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


class Wrapper(nn.Module):
    """Runs the module inside; its other attributes are those of a wrapper of many devices."""

    def __init__(self, module: nn.Module, **attributes: Any) -> None:
        super().__init__()
        self.module = module
        self.__dict__.update(attributes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


def unwrapped(module: nn.Module) -> nn.Module:
    while isinstance(module, Wrapper):
        module = module.module
    return module
