"""Hardware: devices, hosts, links and rented instances from the catalog, put together as a cluster."""

from foretell.hardware.catalog import (
    add_device,
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
    recognise,
)
from foretell.hardware.cluster import Cluster, Node
from foretell.hardware.device import Device, Host, Instance, Link, Offer, Term, term_named
from foretell.hardware.fabric import Fabric, Protocol

__all__ = [
    "Cluster",
    "Device",
    "Fabric",
    "Host",
    "Instance",
    "Link",
    "Node",
    "Offer",
    "Protocol",
    "Term",
    "add_device",
    "device",
    "devices",
    "fabric",
    "fabric_of",
    "host",
    "hosts",
    "instance",
    "instances",
    "link",
    "links",
    "recognise",
    "term_named",
]
