"""Who rents out a node as it is simulated, and for how much: a price belongs to an offer, not to a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretell.hardware import catalog
from foretell.hardware.device import Instance, Link, Offer, Term
from foretell.hardware.node import Node
from foretell.hardware.price_files import offered
from foretell.units import Dollars

_SAME = 0.99  # of a rate: what is written in Gbit/s and in GB/s is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """A node as so many whole instances, at one offer."""

    instance: Instance
    offer: Offer
    instances: int
    used: int  # devices of them

    @property
    def dollars_per_hour(self) -> Dollars:
        return self.instances * self.offer.dollars_per_hour

    @property
    def terms(self) -> str:
        """What the price is of, in words: `spot in us-west-2, 2 of 8 devices used, 2025-08`."""
        whole, where = self.instances * self.instance.count, f" in {self.offer.region}" * bool(self.offer.region)
        plain = self.offer.term == "on-demand" and self.offer.dollars_per_hour == self.instance.dollars_per_hour
        words = "" if plain else f"{self.offer.term}{where}"
        part = f"{self.used} of {whole} devices used" if self.used < whole else ""
        return ", ".join(filter(None, (words, part, self.offer.date)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Prices to pay: those of the catalog or of files, on one term, in one region or wherever it is cheapest.

    Attributes:
        offers: Instances with what they are offered for, as `foretell.read_prices` gives; None: the catalog's.
        term: On-demand, reserved or spot.
        region: None: wherever it is cheapest.

    Examples:
        >>> cluster = foretell.Cluster.parse("4x8xh100-sxm@ib-400g")
        >>> cluster.priced(foretell.Market(region="us-moon-1")).dollars_per_hour is None
        True
    """

    offers: Sequence[Instance] | None = None
    term: Term = "on-demand"
    region: str | None = None

    def rentals(self, node: Node, between: Link | None) -> list[Rental]:
        """The ways to rent a node, the cheapest first; `between`: the link to other nodes, None where it is alone."""
        found = []
        for instance in offered() if self.offers is None else self.offers:
            if instance.device != node.device.name or node.instance not in ("", instance.name):
                continue
            offer = instance.offer(self.term, self.region)
            if offer is not None and _is_such(instance, node, between):
                whole = -(-node.count // instance.count)
                found.append(Rental(instance=instance, offer=offer, instances=whole, used=node.count))
        return sorted(found, key=lambda rental: rental.dollars_per_hour)

    def unpriced(self, node: Node, between: Link | None) -> str:
        """Why a node has no price, and what to write for one that has; "" where its device is not rented at all."""
        bare = replace(node, instance="")
        found = self.rentals(bare, None) or self.rentals(replace(bare, count=1), None)
        if not found or self.rentals(bare, between):
            return ""
        best = found[0].instance
        network = f" and {between.name} between nodes" if between is not None else ""
        rate = (
            "" if best.bandwidth is None else f", which has {best.bandwidth * 8e-9:.3g} Gbit/s per device between nodes"
        )
        return (
            f"No instance that is known has {node.count} {node.device.name}{network}, so it has no price. "
            f"The cheapest with this device is {best.name}{rate}: write --on Nx{best.name} for it, or give your own price."
        )

    def priced(self, node: Node, between: Link | None) -> Node:
        """The node at the lowest price that it is offered for; without one where nobody offers it."""
        found = self.rentals(node, between)
        if not found:
            return replace(node, dollars_per_hour=None, rented_as="", terms="")
        best = found[0]
        return replace(node, dollars_per_hour=best.dollars_per_hour, rented_as=best.instance.name, terms=best.terms)


def _is_such(instance: Instance, node: Node, between: Link | None) -> bool:
    """Whether an instance has the devices on one link inside, and the network that is simulated or a better one."""
    own = catalog.link(node.device.inside)
    if instance.together < node.count or node.inside.bandwidth * _SAME > own.bandwidth:
        return False
    return between is None or has_network(instance, between)


def has_network(instance: Instance, between: Link) -> bool:
    """Whether an instance's network is of the same kind, at least as fast and as prompt."""
    if not instance.between or instance.bandwidth is None:
        return False
    own = catalog.link(instance.between)
    return (
        catalog.fabric_of(own).name == catalog.fabric_of(between).name
        and instance.bandwidth >= _SAME * between.bandwidth
        and own.latency * _SAME <= between.latency
    )
