"""Instances at other prices than the catalog's, and instances that it does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from foretell.hardware import catalog
from foretell.hardware.device import Device, Instance, Offer
from foretell.units import parse_bandwidth


def merged(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """One of each name, the first, with all their offers; a table may have ten thousands of one name."""
    by_name: dict[str, list[Instance]] = {}
    for each in instances:
        by_name.setdefault(each.name, []).append(each)
    return tuple(
        same[0] if len(same) == 1 else replace(same[0], offers=tuple(offer for each in same for offer in each.offers))
        for same in by_name.values()
    )


def instance_of(
    name: str, device: Device, count: int, offer: Offer, network: Mapping[str, str] | None = None
) -> Instance:
    """An instance that the catalog does not have; without a network that is said, it is priced for one node alone."""
    link = (network or {}).get("link", "")
    rate = parse_bandwidth(network["bandwidth"]) / count if network and "bandwidth" in network else None
    if link and rate is None:
        rate = catalog.link(link).bandwidth
    return Instance(
        name=name, title=name, device=device.name, count=count, host=device.host, between=link, bandwidth=rate,
        dollars_per_hour=offer.dollars_per_hour if offer.term == "on-demand" else None, price_date=offer.date,
        source=offer.source, offers=(offer,),
    )  # fmt: skip


def instance_like(known: Instance, *offers: Offer) -> Instance:
    """An instance of the catalog at other prices."""
    listed = next((o for o in offers if o.term == "on-demand"), None)
    return replace(
        known,
        offers=offers,
        dollars_per_hour=None if listed is None else listed.dollars_per_hour,
        price_date=None if listed is None else listed.date,
    )
