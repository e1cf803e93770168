"""What goes over the network: the interface that ranks communicate through, and the bytes it counts."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.measure.sampler import Sample, read_interfaces
from foretell.units import Bytes, Seconds

NAMED_BY: Final = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
_SIOCGIFADDR: Final = 0x8915  # <linux/sockios.h>: the IPv4 address of an interface
_RDMA: Final = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What went over an interface between two readings."""

    received: Bytes
    sent: Bytes
    seconds: Seconds

    @classmethod
    def between(cls, begin: Sample, end: Sample) -> Traffic:
        received, sent = end.received_bytes - begin.received_bytes, end.sent_bytes - begin.sent_bytes
        return cls(received=received, sent=sent, seconds=end.time - begin.time)

    def without(self, idle: Traffic) -> Traffic:
        """Less what the host sends anyway, at the pace of an idle stretch."""
        share = self.seconds / idle.seconds
        received, sent = self.received - round(idle.received * share), self.sent - round(idle.sent * share)
        return Traffic(received=max(0, received), sent=max(0, sent), seconds=self.seconds)


def read_counters(interface: str) -> Sample:
    found = read_interfaces()
    if interface not in found:
        raise InputError(
            f"no network interface {interface!r} on this host. {did_you_mean(interface, found)}"
            f"There are: {', '.join(sorted(found))}."
        )
    return Sample(time.monotonic(), *found[interface])


def find_interface(peer: str, backend: str, environment: Mapping[str, str] = os.environ) -> str:
    """The interface through which this host reaches a peer, unless the backend has one set."""
    named = environment.get(NAMED_BY[backend], "").partition(",")[0]
    if backend == "nccl":  # which takes the beginning of a name, "=" for a whole one, "^" for all but
        there = [name for _, name in socket.if_nameindex()]
        exact = named.removeprefix("=")
        named = next((n for n in there if n == exact or (exact == named != "" and n.startswith(named))), "")
    if named:
        return named
    address = address_towards(peer)
    found = "lo" if address.is_loopback else _interface_with(address)
    if not found:
        raise InputError(
            f"no network interface of this host has the address {address}, which its route to {peer} starts from. "
            f"Name the interface: {NAMED_BY[backend]}=eth0."
        )
    return found


def has_rdma(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether NCCL may pass the network interfaces by."""
    return environment.get("NCCL_IB_DISABLE", "0") != "1" and _RDMA.is_dir() and any(_RDMA.iterdir())


def address_towards(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        family, _, _, _, destination = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(destination)  # of a datagram socket: chooses the route, sends nothing
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError as error:
        raise InputError(f"this host has no route to {peer} ({error}). Check MASTER_ADDR and the network.") from error


def _interface_with(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.version == 6:
        lines = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        return next((fields[-1] for fields in lines if int(fields[0], 16) == int(address)), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if answer[20:24] == address.packed:
                    return name
    return ""
