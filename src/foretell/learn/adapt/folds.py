"""Which steps are left out together, to ask those that stay about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.intp]
FOLDS: Final = 10
_GROUPS: Final = 4  # with fewer, there is none to leave out


def ways(networks: Sequence[str], again: bool) -> list[list[Positions]]:
    """To leave steps out: with their network, and one by one; of too few networks both are the same."""
    together = folds(networks)
    alone = _folds_of_steps(len(networks)) if len(set(networks)) >= _GROUPS else together
    return [together, alone] if again else [together]


def folds(networks: Sequence[str], most: int = FOLDS) -> list[Positions]:
    """Steps of one network together; by step where there are too few networks to leave one out."""
    groups = networks if len(set(networks)) >= _GROUPS else [str(i) for i in range(len(networks))]
    names = list(dict.fromkeys(groups))
    order = np.random.default_rng(0).permutation(len(names))
    fold_of = {
        names[n]: place % min(most if len(names) > 2 * most else len(names), len(names))
        for place, n in enumerate(order)
    }
    each = np.array([fold_of[name] for name in groups])
    return [np.flatnonzero(each == fold) for fold in range(each.max() + 1)]


def _folds_of_steps(steps: int) -> list[Positions]:
    order = np.random.default_rng(1).permutation(steps)
    return [order[fold::FOLDS] for fold in range(min(FOLDS, steps))]
