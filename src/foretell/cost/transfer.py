"""Times of ops on another device than the one that was measured.

What a kernel does beside its arithmetic and its traffic, it does in clocks of the units it runs on. So an op takes the
clocks it took where it was measured, spread over the other device's units, and no less than the other's peaks allow: a
device with less arithmetic to a clock comes nearer to its peak. To carry over the distance from the peak instead was
tried, and made devices with slower matrix units twice too slow; it is done for accelerators that are no GPUs, whose units
are of another kind. In fp32 others have measured many devices: there the
answer lies halfway, in logarithms, between what is carried and what was learned from them. Left-out devices were off by
as much either way, but in other directions.
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
CARRY: Final = "carry"  # the value that says how far above the roofline an op was carried


def carried(
    signatures: Sequence[Signature], own: Device, operators: OperatorModels, device: Device, *, tf32: bool
) -> list[Description]:
    """Ops as another device runs them, their `roofline` being what they are carried over to."""
    here = [describe(s, own, tf32=tf32) for s in signatures]
    took = operators.seconds([s.name for s in signatures], here)
    there = [describe(s, device, tf32=tf32) for s in signatures]
    least = np.array([d.roofline for d in there])
    clocks = own.compute_units * own.clock_hz / (device.compute_units * device.clock_hz)
    slower = least / [d.roofline for d in here] if device.kind == "accelerator" else clocks
    said = ((_NEAREST * least) ** _SHARP + (took * slower) ** _SHARP) ** (1 / _SHARP)
    return [
        Description(d.family, s, d.values | {CARRY: log(s / d.roofline)})
        for d, s in zip(there, said.tolist(), strict=True)
    ]


def plain(d: Description) -> Description:
    """As the device's own numbers describe it."""
    values = {name: value for name, value in d.values.items() if name != CARRY}
    return Description(d.family, d.roofline / 2 ** d.values[CARRY], values)


def seconds_elsewhere(names: Sequence[str], ops: Sequence[Description], models: OperatorModels) -> Floats:
    """Of carried ops; those that models of many devices know, fp32 ops of some families, lie halfway to what these say."""
    said = np.array([d.roofline for d in ops])
    known = [i for i, d in enumerate(ops) if d.family in models.families and in_fp32(d)]
    if known:
        said[known] = np.sqrt(said[known] * models.seconds([names[i] for i in known], [plain(ops[i]) for i in known]))
    return said


def in_fp32(d: Description) -> bool:
    return d.values.get("type", 1.0) == 1.0 and d.values["first_item"] == ITEM_BYTES["float32"]
