"""Host time: what Python, autograd and the dispatcher need to issue each op, before the device can run it."""

from __future__ import annotations

from typing import Final

from foretell.cost.roofline import Price
from foretell.graph import Graph
from foretell.hardware import Host
from foretell.units import Seconds

# Relative to an op that launches a kernel. Views touch no device; a number kept by the host is a plain read; an op over
# a list of tensors also walks the list.
_VIEW: Final = 0.35
_HOST_NUMBER: Final = 0.05
_PER_LISTED_TENSOR: Final = 0.03


def host_seconds(graph: Graph, prices: list[Price], host: Host) -> list[Seconds]:
    """Time to issue every op of a graph."""
    return [
        host.op_seconds * _weight(len(op.inputs), op.signature.name, price)
        for op, price in zip(graph.ops, prices, strict=True)
    ]


def _weight(inputs: int, name: str, price: Price) -> float:
    if price.work.kernel:
        return 1.0 + (_PER_LISTED_TENSOR * inputs if "_foreach_" in name or "_fused_" in name else 0.0)
    if name == "aten._local_scalar_dense" and not price.work.waits:
        return _HOST_NUMBER
    return _VIEW
