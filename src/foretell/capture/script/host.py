"""What a script makes the host do in a step, counted as it happens: tensors made and copied in its memory, and sent off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from foretell.capture.recorder import tensors_in
from foretell.graph.facts import HostWork

aten = torch.ops.aten
_DRAWS: Final = frozenset(
    (aten.rand, aten.randn, aten.randint, aten.randperm, aten.normal, aten.normal_, aten.uniform_, aten.random_,
     aten.bernoulli, aten.bernoulli_, aten.exponential_, aten.rand_like, aten.randn_like, aten.randint_like, aten.multinomial)
)  # fmt: skip
_PINNED: Final = "_foretell_pinned"


class HostMeter:
    """Counts while a step is recorded; an op of micro-steps that are recorded once counts as often as it runs."""

    def __init__(self) -> None:
        self._by_others = 0
        self.reset()

    def reset(self) -> None:
        self._ops = self._drawn = self._moved = self._copied = self._pinned = 0
        self._waits = False

    @property
    def work(self) -> HostWork:
        return HostWork(
            ops=self._ops,
            drawn=self._drawn,
            moved=self._moved,
            copied=self._copied,
            pinned=self._pinned,
            waits=self._waits,
        )

    @contextmanager
    def by_others(self, really: bool) -> Iterator[None]:
        """What happens meanwhile would be done by another process."""
        self._by_others += really
        try:
            yield
        finally:
            self._by_others -= really

    def count(self, func: Any, args: Any, out: Any, times: int) -> None:
        if self._by_others:
            return
        self._ops += times
        made = sum(_bytes(out))
        if func.overloadpacket in _DRAWS:
            self._drawn += times * sum(t.numel() for t in tensors_in(out))
        elif not func.is_view:
            self._moved += times * (made + sum(_bytes(args)))

    def send(self, tensor: torch.Tensor, times: int, *, non_blocking: bool) -> None:
        if self._by_others:
            return
        nbytes, pinned = times * tensor.numel() * tensor.element_size(), is_pinned(tensor)
        self._pinned += nbytes if pinned else 0
        self._copied += 0 if pinned else nbytes
        self._waits = self._waits or not (non_blocking and pinned)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    vars(tensor)[_PINNED] = True
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    return _PINNED in getattr(tensor, "__dict__", ())


def _bytes(tree: Any) -> Iterator[int]:
    return (t.numel() * t.element_size() for t in tensors_in(tree) if t.layout is torch.strided)
