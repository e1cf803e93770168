"""Passes with gradients on from which nothing is learnt: what an agent does in its environment before its first update.

Scripts that act outside of `no_grad` leave a graph behind each action, and drop it with the action. A pass whose like has
been dropped many times, with no backward pass in between, is not run again. Should a gradient reach what stands in for it
after all, the script is run once more without this.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.utils import _pytree as pytree

from foretell.capture.script.guesses import Guesses

_DROPPED: Final = 16  # passes of one kind in a row, after which the next is taken to be dropped as well
_KEY: Final = "foretell"  # in what autograd lets its users note of a node
_ABOUT: Final = "what passes before the first update are for"
_Kind = tuple[Hashable, tuple[float, ...], bool]


class _Alive:
    """Kept by an autograd node for as long as somebody keeps the node."""

    __slots__ = ("__weakref__",)


class Acting:
    """Knows which passes of this window were dropped."""

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses
        self._passes: WeakKeyDictionary[nn.Module, dict[_Kind, list[ref[_Alive]]]] = WeakKeyDictionary()
        self.left_out = 0  # passes since something was learnt

    def forget(self) -> None:
        """Something was learnt: a graph that is gone from now on may be one that was used up."""
        self._passes.clear()
        self.left_out = 0

    def ran(self, module: nn.Module, kind: _Kind, out: Any) -> None:
        seen = self._passes.setdefault(module, {}).setdefault(kind, [])
        if (noted := _noted(out)) is None:
            seen.clear()
            return
        seen.append(noted)
        if len(seen) > _DROPPED:
            del seen[0]

    def is_dropped(self, module: nn.Module, kind: _Kind) -> bool:
        """Whether nobody kept what such passes led to."""
        seen = self._passes.get(module, {}).get(kind, [])
        acts = len(seen) == _DROPPED and all(noted() is None for noted in seen)
        return acts and self._guesses.about(_ABOUT, "acting") == "acting"

    def reached(self) -> None:
        """A gradient has come to a pass that was left out."""
        self._guesses.contradict(_ABOUT, "learning")


def _noted(out: Any) -> ref[_Alive] | None:
    """None where a pass has no graph of its own, or returns more than one tensor of it."""
    nodes = [t.grad_fn for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    if len(nodes) != 1:
        return None
    alive = _Alive()
    notes: Any = nodes[0].metadata  # torch's types take it for a method
    notes[_KEY] = alive
    return ref(alive)
