"""Host time: what Python, autograd and the dispatcher need to issue each op, before the device can run it.

Costs are relative to a host's `op_seconds`, so that one table serves fast and slow hosts. What an op costs depends on
when it runs, since a forward op that autograd watches costs more than the same op in inference, and on what it is: a
convolution asks its library for a plan, a norm or attention makes several tensors, and a recurrent layer launches kernels
for every place of its sequences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from foretell.cost.features import family_of
from foretell.cost.roofline import Price
from foretell.errors import ModelError
from foretell.graph import Graph, Op, Signature
from foretell.hardware import Host
from foretell.units import Seconds

MODES: Final = ("inference", "forward", "backward", "optimizer")
KINDS: Final = ("convolution", "composite", "plain")
FILE: Final = "host.json"
_KIND_OF: Final = {
    "convolution": "convolution", "convolution_backward": "convolution", "rnn": "convolution",
    **dict.fromkeys(("norm", "norm_backward", "attention", "attention_backward", "reduction"), "composite"),
}  # fmt: skip
_RECURRENT: Final = ("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
_KEPT_ON_CHIP: Final = 128  # hidden numbers whose weights a device keeps on chip from one place to the next
_HOST_NUMBER: Final = 0.05  # a number that the host keeps is a plain read


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """In units of a host's `op_seconds`, but for the gap."""

    kernel: Mapping[str, Mapping[str, float]] = field(hash=False)  # an op that launches a kernel, by mode and kind
    view: Mapping[str, float] = field(hash=False)  # one that launches none
    listed: float  # an op over a list of tensors
    tensor: float  # and each tensor of the list
    inner: float  # a kernel that an op launches in a loop of its own
    step: float  # once a step: the loop around it
    gap: Seconds = 0.0  # and, in seconds, what passes between two kernels of a busy device

    def seconds(self, graph: Graph, prices: list[Price], host: Host) -> list[Seconds]:
        """Time to issue every op of a graph."""
        costs = [self.weight(op, graph, price) for op, price in zip(graph.ops, prices, strict=True)]
        if costs:
            costs[0] += self.step
        return [host.op_seconds * cost for cost in costs]

    def weight(self, op: Op, graph: Graph, price: Price) -> float:
        mode = mode_of(op, graph)
        if walks_a_list(op):
            return self.listed + self.tensor * len(op.inputs)
        if price.work.kernel:
            return self.kernel[mode][kind_of(op.signature.name)] + self.inner * inner_launches(op.signature)
        if op.signature.name == "aten._local_scalar_dense" and not price.work.waits:
            return _HOST_NUMBER
        return self.view[mode]

    @classmethod
    def load(cls, path: Path) -> HostCosts:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{path} holds no costs of a host ({error}). Fit them with: foretell fit") from error


def mode_of(op: Op, graph: Graph) -> str:
    return op.phase if graph.training else "inference"


@cache
def kind_of(name: str) -> str:
    return _KIND_OF.get(family_of(name), "plain")


def inner_launches(signature: Signature) -> int:
    """Kernels that one op launches in a loop: two for every place of a sequence, or for every expert."""
    x = signature.inputs[0] if signature.inputs else None
    if x is not None and signature.name in _RECURRENT:
        hidden, layers = (int(str(signature.argument(name, 1))) for name in ("hidden_size", "num_layers"))
        if hidden <= _KEPT_ON_CHIP and x.dtype != "bfloat16":
            return 0  # one kernel walks the sequence
        length = x.shape[1 if signature.argument("batch_first") else 0]
        return 2 * length * layers * (2 if signature.argument("bidirectional") else 1)
    if x is not None and signature.name == "aten._grouped_mm" and x.dtype != "bfloat16":  # its kernel takes no other
        return 2 * max(t.shape[0] for t in (*signature.inputs, *signature.outputs) if len(t.shape) == 3)
    return 0


def walks_a_list(op: Op) -> bool:
    return "_foreach_" in op.signature.name or "_fused_" in op.signature.name


@cache
def usual_costs() -> HostCosts:
    """Where a model brings none of its own."""
    return HostCosts(
        kernel=dict.fromkeys(MODES, dict.fromkeys(KINDS, 1.0)),
        view=dict.fromkeys(MODES, 0.35),
        listed=1.0,
        tensor=0.03,
        inner=0.4,
        step=0.0,
    )
