"""Transfer: times of ops on a device nobody measured, from those on the device that was.

What a kernel does beside its arithmetic and its traffic, it does in clocks of the units it runs on. So an op takes the
clocks it took where it was measured, shared among the other device's units, and no less than the other's peaks allow: a
device with less arithmetic per clock comes nearer to its peak. To keep the distance from the peak instead was tried, and
made devices with slower matrix units twice too slow; it is done for accelerators that are no GPUs, whose units are of
another kind. In fp32 many devices have public measurements: there the answer lies halfway, in logarithms, between what is
transferred and what was learned from them. On devices left out either had errors as large, but in other directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe, log
from foretell.cost.operators import OperatorModels
from foretell.graph import ITEM_BYTES, Signature
from foretell.hardware import Device

Floats = npt.NDArray[np.float64]
_NEAREST: Final = 1.12  # of the roofline: what long simple kernels take in public measurements
_SHARP: Final = 3.0  # how little of the lesser bound shows in the sum of the two
_OVER_ROOFLINE: Final = "over_roofline"  # the value of a transferred op that makes it `plain` again


def transferred(
    signatures: Sequence[Signature], own: Device, operators: OperatorModels, device: Device, *, tf32: bool
) -> list[Description]:
    """Ops as another device runs them; their `roofline` is the time they are transferred to."""
    here = [describe(s, own, tf32=tf32) for s in signatures]
    there = [describe(s, device, tf32=tf32) for s in signatures]
    least = np.array([d.roofline for d in there])
    clocks = own.compute_units * own.clock_hz / (device.compute_units * device.clock_hz)
    slower = least / [d.roofline for d in here] if device.kind == "accelerator" else clocks
    moved = operators.seconds([s.name for s in signatures], here) * slower
    seconds = ((_NEAREST * least) ** _SHARP + moved**_SHARP) ** (1 / _SHARP)
    return [
        Description(d.family, s, d.values | {_OVER_ROOFLINE: log(s / d.roofline)})
        for d, s in zip(there, seconds.tolist(), strict=True)
    ]


def plain(d: Description) -> Description:
    """A transferred op as the device's own numbers describe it."""
    values = {name: value for name, value in d.values.items() if name != _OVER_ROOFLINE}
    return Description(d.family, d.roofline / 2 ** d.values[_OVER_ROOFLINE], values)


def seconds_on_others(names: Sequence[str], ops: Sequence[Description], models: OperatorModels) -> Floats:
    """Of transferred ops; those that models of many devices know, in fp32, lie halfway to what these predict."""
    seconds = np.array([d.roofline for d in ops])
    known = [i for i, d in enumerate(ops) if d.family in models.families and _in_fp32(d)]
    if known:
        learned = models.seconds([names[i] for i in known], [plain(ops[i]) for i in known])
        seconds[known] = np.sqrt(seconds[known] * learned)
    return seconds


def _in_fp32(d: Description) -> bool:
    return d.values.get("type", 1.0) == 1.0 and d.values["first_item"] == ITEM_BYTES["float32"]
