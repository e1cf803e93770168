"""A node: devices that share a host and the link inside it, and what an hour of it costs."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.errors import CatalogError
from foretell.hardware import catalog
from foretell.hardware.device import Device, Host, Link
from foretell.units import BytesPerSecond, Dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Devices that share a host and the link inside it.

    Args:
        device: The accelerator of this node.
        count: How many of them it has.
        host: The machine that feeds them.
        inside: The link between them.
        dollars_per_hour: Price of the node; None where no known instance is such a node.
        instance: The instance that it is, where one was named.
        rented_as: The instance whose price it is.
        terms: Of that price: its term and region, how much of an instance is used, its date.
        port: Bytes per second out of the node for all its devices; None: as the link between nodes says.

    Examples:
        >>> h100 = foretell.device("h100-sxm")
        >>> foretell.Node(device=h100, count=8, host=foretell.host(h100.host), inside=foretell.link(h100.inside)).count
        8
    """

    device: Device
    count: int
    host: Host
    inside: Link
    dollars_per_hour: Dollars | None = None  # None: no known instance is such a node
    instance: str = ""  # that it is, where one was named
    rented_as: str = ""  # the instance whose price it is
    terms: str = ""  # of that price: term and region, how much of an instance is used, date
    port: BytesPerSecond | None = None  # one way out for all its devices; None: as the link between nodes says

    def __post_init__(self) -> None:
        if self.count < 1:
            raise CatalogError(f"a node has at least 1 device, got {self.count} of {self.device.name!r}.")
        check_place(self.inside, "inside")


def check_place(link: Link, place: str) -> None:
    """Refuse a link in a place that it cannot lie in."""
    if link.kind in (place, "both"):
        return
    where = {"inside": "inside a node", "between": "between nodes"}
    fitting = ", ".join(other.name for other in catalog.links() if other.kind in (place, "both"))
    raise CatalogError(
        f"{link.name!r} is a link {where[link.kind]}, but one {where[place]} belongs here. "
        f"After '@' write inside,between, like '@pcie-4,eth-100g'. Links {where[place]}: {fitting}."
    )
