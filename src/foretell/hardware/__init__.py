"""Hardware: devices, hosts, links and rented instances from the catalogue, put together as a cluster."""

from foretell.hardware.catalogue import device, devices, host, hosts, instance, instances, link, links, recognise
from foretell.hardware.cluster import Cluster, Node
from foretell.hardware.device import Device, Host, Instance, Link

__all__ = [
    "Cluster",
    "Device",
    "Host",
    "Instance",
    "Link",
    "Node",
    "device",
    "devices",
    "host",
    "hosts",
    "instance",
    "instances",
    "link",
    "links",
    "recognise",
]
