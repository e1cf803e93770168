"""Updates that a script writes itself, without an optimizer: `p -= lr * p.grad`, one parameter after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator
from typing import Any, Final

import torch

from foretell.capture.recorder import tensors_in

aten = torch.ops.aten
WRITES: Final = frozenset(
    (aten.add_.Tensor, aten.sub_.Tensor, aten.addcmul_.default, aten.addcdiv_.default, aten.copy_.default,
     aten._foreach_add_.List, aten._foreach_sub_.List)
)  # fmt: skip


class ByHand:
    """Knows which tensors a backward pass gives gradients, and hears when one of them is written afterwards."""

    def __init__(self, on_update: Callable[[], None]) -> None:
        self._on_update = on_update
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}  # by their storage
        self._waiting = False  # gradients are there, and nothing was written yet
        self.updates = 0

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [tensor for leaf in self._leaves.values() if (tensor := leaf()) is not None]

    def before_backward(self, losses: Any) -> None:
        self._leaves = {
            leaf.untyped_storage()._cdata: weakref.ref(leaf)
            for loss in tensors_in(losses)
            for node in nodes_of(loss)
            if (leaf := getattr(node, "variable", None)) is not None and leaf.layout is torch.strided
        }
        self._waiting = True

    def wrote(self, target: Any) -> None:
        """An op writes a tensor in place, outside of a backward pass."""
        if not self._waiting or torch._C._current_graph_task_id() != -1:
            return
        if any(tensor.untyped_storage()._cdata in self._leaves for tensor in tensors_in(target)):
            self._waiting = False
            self.updates += 1
            self._on_update()


def nodes_of(loss: torch.Tensor, ends: Container[int] = ()) -> Iterator[Any]:
    """What autograd will run for a loss; nodes whose number is in `ends` lead no further. Those of leaves have a `variable`."""
    seen: set[Any] = set()
    left: list[Any] = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen or node._sequence_nr() in ends:
            continue
        seen.add(node)
        yield node
        left += [following for following, _ in node.next_functions]
