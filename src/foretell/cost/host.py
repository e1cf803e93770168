"""Host time: what Python, autograd and the dispatcher need to issue each op, before the device can run it.

Costs are relative to a host's `op_seconds`, so that one table serves fast and slow hosts. What an op costs depends on
when it runs, since a forward op that autograd watches costs more than the same op in inference, and on what it is: a
convolution asks its library for a plan, a norm or attention makes several tensors, a recurrent layer launches kernels
for every place of its sequences, and an op over a list of tensors looks at each of them. `charges` says what a call is
charged for, to those who price it and to those who fit prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.files import check_numbers, reading
from foretell.cost.recurrent import keeps_weights_on_chip
from foretell.graph import Graph, Signature
from foretell.graph.calls import Call
from foretell.graph.facts import HostWork
from foretell.graph.operators import ENTERED, LAUNCHED_BY, Family, operator_of
from foretell.graph.types import Op
from foretell.hardware import Host
from foretell.limits import read_json
from foretell.units import Seconds

MODES: Final = ("inference", "forward", "backward", "optimizer")
KINDS: Final = ("convolution", "composite", "plain")
FILE: Final = "host.json"
Charge = tuple[str, str, str]  # a cost's name, with mode and kind where it depends on them
_KIND_OF: Final[dict[Family, str]] = {
    "convolution": "convolution", "convolution_backward": "convolution", "rnn": "convolution", "norm": "composite",
    "norm_backward": "composite", "attention": "composite", "attention_backward": "composite", "reduction": "composite",
}  # fmt: skip
_ONE_KERNEL: Final = ("fused", "matmul")  # what compiled code calls besides are a library's whole gradients
_READS_NUMBER: Final = "aten._local_scalar_dense"
# What the host computes itself, as measured where an op takes 19 µs (`foretell bench scripts measure OUT host`).
_DRAWN: Final = 3.3e-9 / 19e-6  # a random number, which one thread draws
_MOVED: Final = 1 / 24e9 / 19e-6  # a byte that one thread reads or writes
_COPIED: Final = 1 / 13.6e9 / 19e-6  # a byte sent to the device, from memory that may be paged
_PINNED: Final = 1 / 51e9 / 19e-6  # and from memory that may not


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """In units of a host's `op_seconds`, but for the gap."""

    kernel: Mapping[str, Mapping[str, float]] = field(hash=False)  # an op that launches a kernel, by mode and kind
    view: Mapping[str, float] = field(hash=False)  # one that launches none
    listed: float  # an op over a list of tensors
    tensor: float  # each tensor of the list
    made: float = 0.0  # each tensor that it makes; like the next two, not told apart by files of before
    number: float = 0.05  # a number in host memory that is read, or counted up by an optimizer
    parameter: float = 0.0  # a parameter, once a step of training: its gradient is freed, its state looked up
    inner: float  # a kernel that an op launches in a loop of its own
    step: float  # once a step of training: the loop around it
    gap: Seconds = 0.0  # and, in seconds, what passes between two kernels of a busy device
    call: float | None = None  # once a step without gradients; None: as much as in training
    launched: float | None = None  # a kernel that compiled code launches; None: as one of a plain forward op
    whole: float | None = None  # an op of several kernels that its backward pass calls; None: as one kernel
    entered: float = 0.0  # a compiled function that is called where autograd is around it
    given: float = 0.0  # each tensor that it is called with
    # The first of a pass, by mode; "replayed": one without gradients that a graph of CUDA replays.
    entering: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_numbers("kernel", [[self.kernel[mode][kind] for kind in KINDS] for mode in MODES], dims=2, least=0)
        check_numbers("view", [self.view[mode] for mode in MODES], least=0)
        each = [self.listed, self.tensor, self.made, self.number, self.parameter, self.inner, self.step, self.gap]
        each += [self.entered, self.given, *self.entering.values()]
        each += [cost for cost in (self.call, self.launched, self.whole) if cost is not None]  # "" is no cost, either
        check_numbers("a cost", each, least=0)

    def seconds(self, graph: Graph, host: Host) -> npt.NDArray[np.float64]:
        """Time to issue every op of a graph."""
        weights: npt.NDArray[np.float64] = graph.remember(("weights", self), lambda: np.array(self._weights(graph)))
        costs = host.op_seconds * weights[graph.calls.places]
        if len(costs):
            costs[0] += host.op_seconds * (self._around(graph) + self._own_work(graph))
            update = graph.remember("host.update", lambda: _first_of_update(graph))
            costs[update] += host.op_seconds * self.parameter * updated_parameters(graph)
            for place, mode in _first_entered(graph):
                costs[place] += host.op_seconds * self._entering(mode)
        return costs

    def gap_in(self, graph: Graph) -> Seconds:
        """What passes between two kernels, in the mean of a step: none does where a graph of CUDA launches the next."""
        launched = replayed = 0
        for call, times in zip(graph.calls.distinct, graph.calls.times, strict=True):
            if call.launches:
                launched += times
                replayed += times * (call.signature.argument(LAUNCHED_BY) == "graph")
        return self.gap * (1 - replayed / launched) if replayed else self.gap

    def _own_work(self, graph: Graph) -> float:
        """What the host computes and copies itself."""
        work = graph.facts.host or HostWork()
        return (
            self.view["forward"] * work.ops
            + _DRAWN * work.drawn
            + _MOVED * work.moved
            + _COPIED * work.copied
            + _PINNED * work.pinned
        )

    def step_weight(self, graph: Graph) -> float:
        """What a whole step costs, in units of a host's `op_seconds`."""
        ops = sum(weight * times for weight, times in zip(self._weights(graph), graph.calls.times, strict=True))
        entering = sum(graph.op_times[place] * self._entering(mode) for place, mode in _first_entered(graph))
        return self._around(graph) + self.parameter * updated_parameters(graph) + entering + ops

    def _entering(self, mode: str) -> float:
        """Files of before do not tell passes apart that a graph of CUDA replays."""
        return self.entering.get(mode, self.entering.get("inference", 0.0) if mode == "replayed" else 0.0)

    def _around(self, graph: Graph) -> float:
        """Once a step; compiled passes have it in what they are entered with."""
        if self.entering and _first_entered(graph):
            return 0.0
        return self.step if graph.training or self.call is None else self.call

    def _weights(self, graph: Graph) -> list[float]:
        return [self.weight(call, mode_of(call, graph)) for call in graph.calls.distinct]

    def weight(self, call: Call, mode: str) -> float:
        return sum(self._price(charge) * amount for charge, amount in charges(call, mode))

    def _price(self, charge: Charge) -> float:
        name, mode, kind = charge
        if name == "kernel":
            return self.kernel[mode][kind]
        if name == "whole" and self.whole is not None:
            return self.whole
        if name in ("launched", "whole"):
            return self.kernel["forward"]["plain"] if self.launched is None else self.launched
        return self.view[mode] if name == "view" else float(getattr(self, name))

    @classmethod
    def load(cls, path: Path) -> HostCosts:
        with reading(path, "costs of a host"):
            return cls(**read_json(path))


def charges(call: Call, mode: str) -> list[tuple[Charge, float]]:
    """What a call is charged for, and how many of each."""
    signature = call.signature
    if (launched_by := signature.argument(LAUNCHED_BY)) is not None:
        return _charges_of_compiled(call, mode, launched_by == "graph")
    if operator_of(signature.name).walks_a_list:
        if call.on_host:  # one number after the other
            return [(("number", "", ""), len(signature.inputs))]
        counts = {"listed": 1, "tensor": len(signature.inputs), "made": len(signature.outputs)}
        return [((name, "", ""), count) for name, count in counts.items()]
    if call.launches:
        return [(("kernel", mode, kind_of(signature.name)), 1), (("inner", "", ""), inner_launches(signature))]
    if call.on_host and signature.name == _READS_NUMBER:
        return [(("number", "", ""), 1)]
    return [(("view", mode, ""), 1)]


def _charges_of_compiled(call: Call, mode: str, replayed: bool) -> list[tuple[Charge, float]]:
    """What compiled code launches; kernels that are recorded in a graph of CUDA, and their tensors, cost the host no more."""
    if call.signature.name == ENTERED:
        inputs = call.signature.argument("inputs", 0)
        given = inputs if isinstance(inputs, int) else 0
        charges = [(("entered", "", ""), float(mode != "inference"))]
        return charges if replayed else [*charges, (("given", "", ""), given)]
    if replayed or not call.launches:
        return []
    whole = mode == "backward" and operator_of(call.signature.name).family not in _ONE_KERNEL
    return [(("whole" if whole else "launched", "", ""), 1)]


def updated_parameters(graph: Graph) -> int:
    """Parameters that a step's optimizers write."""
    return graph.remember("host.parameters", lambda: len(_written_parameters(graph)))


def _written_parameters(graph: Graph) -> set[int]:
    storages = {graph.tensors[op.inputs[i]].storage for op in _updates(graph) for i in op.signature.mutates}
    return {storage for storage in storages if graph.storages[storage].role == "parameter"}


def _updates(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.phase == "optimizer" and op.signature.mutates] if graph.training else []


def _first_of_update(graph: Graph) -> int:
    return next((place for place, op in enumerate(graph.ops) if op.phase == "optimizer"), 0)


def _first_entered(graph: Graph) -> list[tuple[int, str]]:
    """Where each pass enters compiled code first: its guards are asked there, and autograd sets out from it."""
    return graph.remember("host.entered", lambda: list(_entries(graph)))


def _entries(graph: Graph) -> Iterator[tuple[int, str]]:
    seen = set()
    for place, op in enumerate(graph.ops):
        if op.signature.name == ENTERED and op.phase not in seen:
            seen.add(op.phase)
            replayed = op.signature.argument(LAUNCHED_BY) == "graph"
            yield place, op.phase if graph.training else "replayed" if replayed else "inference"


def mode_of(call: Call, graph: Graph) -> str:
    return call.phase if graph.training else "inference"


def kind_of(name: str) -> str:
    return _KIND_OF.get(operator_of(name).family, "plain")


def inner_launches(signature: Signature) -> int:
    """Kernels that one op launches in a loop: two for every place of a sequence, or for every expert."""
    x = signature.inputs[0] if signature.inputs else None
    operator = operator_of(signature.name)
    if x is not None and operator.family == "rnn":
        if keeps_weights_on_chip(signature):
            return 0
        layers = int(str(signature.argument("num_layers", 1)))
        length = x.shape[1 if signature.argument("batch_first") else 0]
        return 2 * length * layers * (2 if signature.argument("bidirectional") else 1)
    if x is not None and signature.name == "aten._grouped_mm" and x.dtype != "bfloat16":  # its kernel takes no other
        return 2 * max(t.shape[0] for t in (*signature.inputs, *signature.outputs) if len(t.shape) == 3)
    return 0


@cache
def usual_costs() -> HostCosts:
    """Where a model brings none of its own."""
    return HostCosts(
        kernel=dict.fromkeys(MODES, dict.fromkeys(KINDS, 1.0)),
        view=dict.fromkeys(MODES, 0.35),
        listed=1.0,
        tensor=0.03,
        made=0.1,
        number=0.05,
        parameter=0.2,
        inner=0.4,
        step=0.0,
    )
