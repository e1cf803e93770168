"""Hardware: devices, hosts, links and rented instances from the catalog, put together as a cluster."""

from foretell.hardware.catalog import (
    catalog_as_it_is,
    device,
    devices,
    fabric,
    fabric_of,
    host,
    hosts,
    instance,
    instances,
    link,
    links,
    own_devices,
    read_device,
    recognise,
)
from foretell.hardware.cluster import Cluster
from foretell.hardware.device import Device, Host, Instance, Link, Offer, Term, term_named
from foretell.hardware.fabric import ROWS_ONCE, Fabric, Protocol
from foretell.hardware.market import Market, Rental
from foretell.hardware.node import Node
from foretell.hardware.price_files import offered, read_prices
from foretell.hardware.shared_host import host_named, host_shared, on_hosts

__all__ = [
    "ROWS_ONCE",
    "Cluster",
    "Device",
    "Fabric",
    "Host",
    "Instance",
    "Link",
    "Market",
    "Node",
    "Offer",
    "Protocol",
    "Rental",
    "Term",
    "catalog_as_it_is",
    "device",
    "devices",
    "fabric",
    "fabric_of",
    "host",
    "host_named",
    "host_shared",
    "hosts",
    "instance",
    "instances",
    "link",
    "links",
    "offered",
    "on_hosts",
    "own_devices",
    "read_device",
    "read_prices",
    "recognise",
    "term_named",
]
