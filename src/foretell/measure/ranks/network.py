"""What goes over the network: the interface that ranks talk through, the bytes it counts, and their series over time."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.measure.ranks import counters
from foretell.measure.ranks.counters import COUNTERS, Reading, read_all
from foretell.measure.record import SeriesRow
from foretell.units import Bytes, Seconds

NAMED_BY: Final = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
_INTERVAL: Final = 0.005  # between samples
_MOST_POINTS: Final = 4096  # of a series
_SIOCGIFADDR: Final = 0x8915  # <linux/sockios.h>: the IPv4 address of an interface
_RDMA: Final = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What went over an interface between two readings."""

    received: Bytes
    sent: Bytes
    seconds: Seconds

    @classmethod
    def between(cls, begin: Reading, end: Reading) -> Traffic:
        return cls(received=end.received - begin.received, sent=end.sent - begin.sent, seconds=end.time - begin.time)

    def without(self, idle: Traffic) -> Traffic:
        """Less what the host sends anyway, at the pace of an idle stretch."""
        share = self.seconds / idle.seconds
        return Traffic(
            received=max(0, self.received - round(idle.received * share)),
            sent=max(0, self.sent - round(idle.sent * share)),
            seconds=self.seconds,
        )


def read_counters(interface: str) -> Reading:
    readings = read_all()
    if interface not in readings:
        raise InputError(
            f"no network interface {interface!r} on this host. {did_you_mean(interface, readings)}"
            f"There are: {', '.join(sorted(readings))}."
        )
    return readings[interface]


class CounterSampler:
    """Samples an interface from `with` until its end, in a process of its own; then `readings` has what it saw."""

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self.readings: tuple[Reading, ...] = ()

    def __enter__(self) -> CounterSampler:
        command = [sys.executable, str(counters.__file__), self.interface, str(_INTERVAL)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self

    def __exit__(self, *_: object) -> None:
        said = self._process.communicate()[0]  # closes its input, at which it tells what it saw and ends
        self.readings = tuple(Reading(*reading) for reading in json.loads(said or "[]"))

    def series(self, begin: float, end: float) -> tuple[SeriesRow, SeriesRow]:
        """Received and sent bytes per second in a window of `time.monotonic()`."""
        seen = _thinned([r for r in self.readings if begin <= r.time <= end])
        seconds = tuple(r.time - begin for r in seen[:-1])
        steps = [Traffic.between(a, b) for a, b in pairwise(seen)]
        return (
            SeriesRow(resource="network_rx", counter=f"{COUNTERS}: bytes received by {self.interface}", unit="bytes/s",
                      seconds=seconds, values=tuple(s.received / s.seconds for s in steps)),
            SeriesRow(resource="network_tx", counter=f"{COUNTERS}: bytes sent by {self.interface}", unit="bytes/s",
                      seconds=seconds, values=tuple(s.sent / s.seconds for s in steps)),
        )  # fmt: skip


def _thinned(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Every n-th reading: counters only grow, so the mean rates between them stay exact."""
    return readings[:: len(readings) // _MOST_POINTS + 1]


def find_interface(peer: str, backend: str, environment: Mapping[str, str] = os.environ) -> str:
    """The interface through which this host reaches a peer, unless the backend was told which to use."""
    told = environment.get(NAMED_BY[backend], "").partition(",")[0]
    if backend == "nccl":  # which takes the beginning of a name, "=" for a whole one, "^" for all but
        there = [name for _, name in socket.if_nameindex()]
        exact = told.removeprefix("=")
        told = next((n for n in there if n == exact or (exact == told != "" and n.startswith(told))), "")
    if told:
        return told
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
