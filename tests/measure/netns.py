"""A cluster in a box: hosts are network namespaces, joined by a bridge, each link limited to a rate in both directions.

    host 0 ──veth──┐
    host 1 ──veth──┤ switch (a namespace with a bridge)
    host 2 ──veth──┘

Everything lives in namespaces of its own, so the machine's network is not touched, and is gone when they are.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"
# A GSO packet of 64 KB must fit into the bucket, or the kernel splits it and every piece brings headers of its own.
BURST_BYTES = 256 * 1024
QUEUE_BYTES = 16 * 2**20  # more than TCP keeps in flight: a dropped packet would be sent, and counted, twice
_serial = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    namespace: str
    address: str

    def start(self, *command: str, log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        with log.open("w") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *command],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )


def why_not() -> str:
    """The reason why no cluster can be made here, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)}: apt-get install iproute2"
    try:
        with cluster(1, bits_per_second=1e9):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


@contextmanager
def cluster(hosts: int, *, bits_per_second: float) -> Iterator[list[Host]]:
    """Hosts that reach one another, and nothing else, at this rate."""
    name = f"foretell-{os.getpid()}-{next(_serial)}"
    switch = f"{name}-switch"
    namespaces = [switch, *(f"{name}-{i}" for i in range(hosts))]
    made = [Host(namespace=n, address=f"10.213.0.{i + 1}") for i, n in enumerate(namespaces[1:])]
    try:
        for namespace in namespaces:
            _run(f"ip netns add {namespace}")
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        for i, host in enumerate(made):
            _join(host, switch, f"port{i}", bits_per_second)
        yield made
    finally:
        for namespace in namespaces:  # its processes end with the test; links and limits go with it
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _join(host: Host, switch: str, port: str, bits_per_second: float) -> None:
    limit = f"root tbf rate {bits_per_second:.0f}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
    inside, outside = f"-n {host.namespace}", f"-n {switch}"
    _run(f"ip {inside} link add {INTERFACE} type veth peer name {port} netns {switch}")
    _run(f"ip {outside} link set {port} master bridge up")
    _run(f"ip {inside} address add {host.address}/24 dev {INTERFACE}")
    _run(f"ip {inside} link set lo up")
    _run(f"ip {inside} link set {INTERFACE} up")
    _run(f"tc {inside} qdisc add dev {INTERFACE} {limit}")  # what the host sends
    _run(f"tc {outside} qdisc add dev {port} {limit}")  # what it receives


def _run(command: str) -> None:
    subprocess.run(command.split(), capture_output=True, text=True, check=True)
