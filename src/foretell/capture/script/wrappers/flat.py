"""The one flat parameter that FSDP makes of a unit's parameters, as libraries find it: here these stay what they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Flat:
    """Stands for all parameters of a unit; where it is given other numbers, they are converted."""

    def __init__(self, module: nn.Module, convert: Callable[[torch.dtype], None], dtype: torch.dtype) -> None:
        self._module, self._convert, self.dtype = module, convert, dtype
        self._fqns = [name for name, _ in module.named_parameters()]

    @property
    def requires_grad(self) -> bool:
        return any(p.requires_grad for p in self._module.parameters())

    @property
    def device(self) -> torch.device:
        return next(p.device for p in self._module.parameters())

    @property
    def data(self) -> Flat:
        return self

    @data.setter
    def data(self, value: Flat) -> None:
        if value.dtype != self.dtype:
            self._convert(value.dtype)
            self.dtype = value.dtype

    def to(self, dtype: torch.dtype) -> Flat:
        return Flat(self._module, self._convert, dtype)

    def numel(self) -> int:
        return sum(p.numel() for p in self._module.parameters())


class Handle:
    """What FSDP keeps of a flat parameter."""

    def __init__(self, flat: Flat) -> None:
        self.flat_param, self._orig_param_dtype = flat, flat.dtype
