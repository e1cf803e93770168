"""What laws are checked over: steps at several precisions and batches, devices, hosts and plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from foretell.graph import Graph
from foretell.hardware import Device
from foretell.precision import Precision

COMPARED_ON: Final = "xeon-sapphire-rapids"  # the one host that devices are compared on
# The same ops on the same numbers: what is captured in one of them is the graph of the others.
_CAPTURED_AS: Final = {
    "torch-fp32": "fp32",
    "tf32": "fp32",
    "fp8": "bf16",
    "fp8:current": "bf16",
    "fp8:blockwise": "bf16",
}


@dataclass(kw_only=True)
class Step:
    """A step whose graph is made when it is needed, by precision and batch, and kept."""

    name: str
    make: Callable[[str, int], Graph]
    precisions: Sequence[str]
    batches: Sequence[int]  # rising; the first is the usual one
    _graphs: dict[tuple[str, int], Graph] = field(default_factory=dict)

    def graph(self, precision: str, batch: int) -> Graph:
        key = precision, batch
        if key not in self._graphs:
            captured = _CAPTURED_AS.get(precision, precision)
            if captured == precision:
                self._graphs[key] = self.make(precision, batch)
            else:
                self._graphs[key] = replace(self.graph(captured, batch), precision=Precision.parse(precision))
        return self._graphs[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is checked; `others` are what devices are compared with."""

    steps: Sequence[Step]
    devices: Sequence[Device]
    others: Sequence[Device]
    hosts: Sequence[str] = ("desktop", COMPARED_ON, "cloud-vm")  # from the fastest to the slowest
    counts: Sequence[int] = (2, 8)  # of devices
    many: int = 8  # devices that plans of several are checked on
