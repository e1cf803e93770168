"""Which modules a script calls, which of them its step trains, and how many numbers they have."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from foretell.sources.named.adapters import quantized_weights


class Models:
    """Hears of modules that the script calls itself, and of parameters that a recorded step updates."""

    def __init__(self) -> None:
        self.roots: list[nn.Module] = []  # with parameters; in the order of their first call
        self._called: set[int] = set()  # in the step
        self._updated: dict[int, torch.Tensor] = {}

    def begin(self) -> None:
        """A step begins."""
        self._called.clear()
        self._updated.clear()

    def call(self, module: nn.Module) -> None:
        self._called.add(id(module))
        if not any(module is known for known in self.roots):
            self.roots.append(module)

    def update(self, parameter: torch.Tensor) -> None:
        self._updated[id(parameter)] = parameter

    @property
    def trained(self) -> list[nn.Module]:
        """Those that own something of what is updated: all that are called, where an optimizer has copies of its own."""
        own = [root for root in self.roots if any(id(p) in self._updated for p in root.parameters())]
        if own:
            return own
        called = [root for root in self.roots if id(root) in self._called]
        shapes = {p.shape for root in called for p in root.parameters()}
        copies = all(tensor.dim() < 2 or tensor.shape in shapes for tensor in self._updated.values())
        return called if copies else []

    def parameters(self) -> list[torch.Tensor]:
        """Of the modules that are trained, with what is frozen in them, and what is updated outside of modules.

        An optimizer's own copies of parameters, which are none of the model's, are of another type.
        """
        trained = self.trained
        found: dict[int, torch.Tensor] = {id(p): p for root in trained for p in root.parameters()}
        types = {p.dtype for p in found.values()}
        if not trained or any(key in found for key in self._updated):
            found |= {key: tensor for key, tensor in self._updated.items() if not trained or tensor.dtype in types}
        return list(found.values())

    @property
    def size(self) -> int:
        """Numbers of the parameters, also of those that are kept in a few bits."""
        return numbers(self.parameters()) + quantized_weights(nn.ModuleList(self.trained))

    @property
    def untrained(self) -> int:
        """Numbers of the parameters of other modules that the step calls: teachers, encoders, averages."""
        trained = {id(p) for p in self.parameters()}
        others = [r for r in self.roots if id(r) in self._called and not any(r is t for t in self.trained)]
        apart = {id(p): p for root in others for p in root.parameters() if id(p) not in trained}
        return numbers(apart.values()) + (quantized_weights(nn.ModuleList(others)) if apart else 0)


def numbers(parameters: Iterable[torch.Tensor]) -> int:
    """How many there are: of a parameter that is kept in a few bits, what was packed."""
    shapes = (getattr(getattr(p, "quant_state", None), "shape", None) or p.shape for p in parameters)
    return sum(map(math.prod, shapes))
