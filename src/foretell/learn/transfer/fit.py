"""What generations of devices are off by, from public measurements of their ops: one factor for each group of ops.

Devices are few, and differ in more ways than they are: trees over what describes an op were tried, and did worse on chips
left out than physics and one factor. To see how large errors are, each chip in turn is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.generations import clock_is_known
from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import Generations, generation, group_of, transferred
from foretell.hardware import Device
from foretell.learn.transfer.published_ops import PublicOps

Floats = npt.NDArray[np.float64]
_FEWEST: Final = 90  # ops of a group on a device from which a factor is learned
# How far apart, as logarithms, the middle half of them may lie: a P4's products are of no one factor.
_WIDEST: Final = 0.6
_PRODUCTS: Final = "matmul"  # begins the names of their groups
Offsets = Mapping[str, Mapping[str, float]]  # device → group → log(measured ÷ transferred), in the middle


def offsets(
    public: Mapping[str, PublicOps],
    own: Device,
    operators: OperatorModels,
    progress: Callable[[str], None] = lambda text: None,
) -> Offsets:
    found = {}
    for name, ops in public.items():
        progress(f"transferring {len(ops.signatures)} public ops to {name}")
        seconds, _ = transferred(ops.signatures, own, operators, ops.device, Generations(), tf32=False)
        groups = np.array([group_of(s, ops.device, tf32=False) for s in ops.signatures])
        logs = np.log(ops.seconds / seconds)
        by_group = {str(group): logs[groups == group] for group in np.unique(groups)}
        found[name] = {group: float(np.median(those)) for group, those in by_group.items() if _agree(those)}
    return found


def _agree(logs: Floats) -> bool:
    return len(logs) >= _FEWEST and float(np.subtract(*np.quantile(logs, (0.75, 0.25)))) < _WIDEST


def fit_generations(offsets: Offsets, public: Mapping[str, PublicOps]) -> Generations:
    """Every device of a generation counts once.

    Products that were timed one by one say little of products in steps, which run warm: where the clock that a board's power
    allows is known, as of NVIDIA's, no factor is learned of them. With one, steps of a T4 came out 17 % too slow and those of
    a V100 5 % too fast; without, 4 and 0.
    """
    gathered: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, groups in offsets.items():
        device = public[name].device
        for group, log in groups.items():
            if not (group.startswith(_PRODUCTS) and clock_is_known(device, Generations().attained)):
                gathered[generation(device)][group].append(log)
    return Generations(
        factors={
            name: {group: round(math.exp(float(np.mean(logs))), 3) for group, logs in groups.items()}
            for name, groups in gathered.items()
        }
    )


def chip(name: str) -> str:
    """One chip is sold on several boards: to know one is to know the others."""
    return name.split("-")[0]


def without_each(offsets: Offsets, public: Mapping[str, PublicOps]) -> dict[str, Generations]:
    """For each chip what is learned without it."""
    return {
        group: fit_generations({name: logs for name, logs in offsets.items() if chip(name) != group}, public)
        for group in sorted({chip(name) for name in public})
    }
