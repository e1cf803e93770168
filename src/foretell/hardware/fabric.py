"""How a kind of link runs collectives: the few fitted numbers that turn its rate and latency into seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from foretell.errors import CatalogError
from foretell.units import BytesPerSecond

PROTOCOLS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv")
ROWS_ONCE = "rows-once"  # an all-to-all by kernels that send a token once to each node and rank; else as all-to-all
Ports = Literal["device", "node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What moving `w` bytes takes over a link of rate `B` and latency `l`: w/(efficiency·B) + √(knee·l·h·w/B).

    The root is the best a pipeline of chunks can do: small chunks pay latency, large ones fill it late. Its depth h is one
    inside a node, and the hops between nodes, whose latency is the longer one.
    """

    efficiency: float  # of the link's rate, for a very long message
    knee: float  # in latencies; the larger it is, the later a message reaches that rate
    copy: float = 0.0  # what a rank's own share adds, in its time on the link

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1.5:
            raise CatalogError(f"efficiency is a fraction of the link's rate, got {self.efficiency!r}.")
        for name in ("knee", "copy"):
            if getattr(self, name) < 0:
                raise CatalogError(f"{name} must not be negative, got {getattr(self, name)!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """One kind of link: how its devices share it, and its protocols."""

    name: str
    title: str
    startup: float  # to begin a collective, in latencies
    protocols: Mapping[str, Protocol] = field(hash=False)
    in_switch: Protocol | None = None  # all-reduce computed by the switch, on links that can
    in_switch_from: int = 2  # the fewest ranks it is used for
    in_switch_startup: float | None = None  # in latencies; None: as of others
    hop: float = 1.0  # of a long message over several nodes, in latencies
    full_at: float = 1.0  # ranks that use all lanes of a device: more than 1 where lanes go to fixed neighbours
    sharing: float = 0.0  # the rate falls with (2 / active devices)^sharing: 0 behind a switch, 1 on one bus
    ports: Ports = "device"  # to the outside: one each, or one for the node
    # What a node can copy on the way out, where data passes through its memory; inside, what a device's channels move, however
    # quick its link.
    through: BytesPerSecond | None = None
    units: int = 0  # compute units a collective keeps from the step while it runs
    error: float = 0.5  # of the logarithm of a collective's time: nine of ten on topologies left out are within it
    source: str = ""

    def protocol(self, kind: str) -> Protocol:
        return self.protocols.get(kind) or self.protocols["all-to-all"]

    def __post_init__(self) -> None:
        if missing := [name for name in PROTOCOLS if name not in self.protocols]:
            raise CatalogError(f"fabric {self.name!r} says nothing of {', '.join(missing)}. Add a table for each.")
        if self.ports not in get_args(Ports):
            raise CatalogError(f"fabric {self.name!r}: ports is device or node, got {self.ports!r}.")
        for name in ("startup", "hop", "sharing", "units", "error", "in_switch_startup"):
            if (getattr(self, name) or 0) < 0:
                raise CatalogError(f"fabric {self.name!r}: {name} must not be negative, got {getattr(self, name)!r}.")
        if not self.full_at > 0 or (self.through is not None and not self.through > 0):
            raise CatalogError(
                f"fabric {self.name!r}: full_at and through must be more than 0, got {self.full_at!r} and {self.through!r}."
            )
