"""What happened between two ends of steps, and what shows in it: micro-steps, and the order of several optimizers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

Rollout = tuple[int, tuple[int, ...]]  # a module, and the shape of what it is given


@dataclass(kw_only=True)
class Window:
    """What happened between two ends of steps."""

    backwards: list[int]  # ops on the device before the end of each backward pass
    replayed: list[bool] = field(default_factory=list)  # whether some of that micro-step was not run
    updates: int = 0  # that were made before
    cleared: bool = False  # gradients, between two backward passes
    gradients: int = 0  # ops on the device before the end of the last `torch.autograd.grad`
    rollouts: Counter[Rollout] = field(default_factory=Counter)  # passes of what is trained, without gradients
    autocast: torch.dtype | None = None

    @property
    def learns(self) -> bool:
        """Gradients were computed on the device."""
        return bool(self.backwards[-1] if self.backwards else self.gradients)


def micro_steps_in(window: Window) -> int:
    """How many micro-steps there were, where all but the first ran the same number of ops."""
    ends = window.backwards
    lengths = {(b - a, again) for (a, b), again in zip(itertools.pairwise(ends), window.replayed[1:], strict=True)}
    alike = len(lengths) == len({again for _, again in lengths})  # those that were run, and those that were not
    return len(ends) if alike and len(ends) > 1 and not window.cleared else 1


def period_of(sequence: Sequence[int]) -> int | None:
    """The shortest period that the sequence has run through twice."""
    for period in range(1, len(sequence) // 2 + 1):
        if all(a == b for a, b in zip(sequence, sequence[period:], strict=False)) and set(sequence[:period]) == set(
            sequence
        ):
            return period
    return None
