"""Kernels of which only the tensors are known: a launch reads and writes them, and is priced by their bytes alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu.patches import replace
from foretell.capture.opaque import launch
from foretell.capture.script.following import after_the_call
from foretell.capture.script.pretend.kernels.notes import note
from foretell.capture.script.pretend.kernels.unknown import Unknown, UnknownKernel


def launch_by_bytes(name: str, tensors: Sequence[Tensor], described: str) -> None:
    """Record the launch, with a caveat in which the kernel is `described`."""
    note(f"{described} is priced by the bytes of its tensors alone; foretell.opaque declares what it computes")
    moved = float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    launch(re.sub(r"\W", "_", name), tensors, tensors, 0.0, moved)


class Writing(Unknown):
    """A function of an extension. A program that drops its result has given it what it writes into."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.write(sys._getframe(1), args, kwargs)

    def write(self, frame: Any, args: Any, kwargs: Any) -> Any:
        """Launch it by its bytes, where the call that `frame` makes drops its result."""
        tensors = tensors_of((args, kwargs))
        if not tensors or not after_the_call(frame).startswith("POP_TOP"):
            raise UnknownKernel(self.path)
        launch_by_bytes(self.path, tensors, f"{self.path}, compiled,")
        return None


def tensors_of(given: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]


def know_gradients() -> None:
    """Let the backward pass of an operation give what its inputs are like, where a kernel that is not known computes it."""
    apply: Any = BackwardCFunction.apply

    def backward(self: Any, *gradients: Any) -> Any:
        try:
            return apply(self, *gradients)
        except UnknownKernel as unknown:
            made = [_like(node, i) for node, i in self.next_functions if node is not None]
            saved = tensors_of(self.saved_tensors)
            launch_by_bytes(unknown.path, [*saved, *tensors_of(gradients), *made], f"{unknown.path}, compiled,")
            left = iter(made)
            return tuple(next(left) if needed else None for needed in self.needs_input_grad)

    replace(BackwardCFunction, "apply", backward)


def _like(node: Any, i: int) -> Tensor:
    """A gradient that autograd takes for an input of an operation."""
    shape = node._input_metadata[i]
    return torch.empty(shape.shape, dtype=shape.dtype, device=shape.device)
