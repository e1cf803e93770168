"""What a device copies for its communication: gradients into buckets and back, gathered parameters to where they are used."""

from __future__ import annotations

from typing import Final

import numpy as np

from foretell.forecasting.step import Pricing
from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import Device
from foretell.program import Role
from foretell.simulate.step import Floats
from foretell.units import MIB

_PIECE: Final = Layout((32 * MIB,), (1,), "bfloat16")  # long enough that its time is in proportion to its bytes
_COPY: Final = Signature("aten.clone.default", (_PIECE,), (_PIECE,), (("self", Input(0)),))
_GRAPH: Final = Graph(
    name="a copy",
    ops=(Op(_COPY, "forward", "", (0,), (1,)),),
    tensors=(Tensor(_PIECE, 0), Tensor(_PIECE, 1)),
    storages=(Storage(_PIECE.nbytes, "input", -1, 1), Storage(_PIECE.nbytes, "activation", 0, 1)),
    training=False,
)


def with_copies(role: Role, seconds: Floats, model: Pricing, device: Device) -> Floats:
    """What each op takes on the device, with copies right after the op that makes them ready, or before that needs them."""
    if not any(c.copied_in or c.copied_out for c in role.collectives):
        return seconds
    [price] = model.price(_GRAPH, device).prices
    rate = price.seconds / _PIECE.nbytes
    if (copied := role.found.get("copied")) is None:
        copied = role.found["copied"] = _copied(role)
    found: Floats = seconds + rate * copied
    return found


def _copied(role: Role) -> Floats:
    """Bytes that are copied for communication at each op, whenever it runs."""
    ops, copied = role.graph.ops, np.zeros(len(role.graph.ops))
    for c in role.collectives:
        for at, nbytes in ((c.starts_after, c.copied_in), (c.waited_for_by, c.copied_out)):
            if nbytes and 0 <= at < len(ops):
                copied[at] += nbytes / (1 if c.every_micro_step else ops[at].times)
    return copied
