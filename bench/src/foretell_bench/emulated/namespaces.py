"""Hosts are network namespaces of this machine, joined by a bridge, each link limited to a rate in both directions.

    host 0 ──veth──┐
    host 1 ──veth──┤ switch (a namespace with a bridge)
    host 2 ──veth──┘

Everything lives in namespaces of its own, so the machine's network is not touched, and is gone when they are.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"
# A GSO packet of 64 KB must fit into the bucket, or the kernel splits it and every piece brings headers of its own.
BURST_BYTES = 256 * 1024
QUEUE_BYTES = 16 * 2**20  # more than TCP keeps in flight: a dropped packet would be sent, and counted, twice
CLONE_NEWNET = 0x40000000  # <sched.h>
_serial = itertools.count()
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    size: int

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    @property
    def hosts(self) -> list[str]:
        """Names of the namespaces."""
        return [f"{self.name}-{i}" for i in range(self.size)]

    def address(self, host: int) -> str:
        return f"10.213.0.{host + 1}"

    def limit(self, bits_per_second: float) -> None:
        """Set the rate of every link, in both directions."""
        rate = f"root tbf rate {bits_per_second:.0f}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
        for i, host in enumerate(self.hosts):
            _run(f"tc -n {host} qdisc replace dev {INTERFACE} {rate}")  # what the host sends
            _run(f"tc -n {self.switch} qdisc replace dev port{i} {rate}")  # what it receives

    def start(
        self, host: int, command: list[str], *, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.hosts[host], *command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def why_not() -> str:
    """The reason why no cluster can be made here, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"no {' and no '.join(missing)}: apt-get install iproute2"
    try:
        with cluster(1, bits_per_second=1e9):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    except OSError as error:
        return str(error)


@contextmanager
def cluster(size: int, *, bits_per_second: float) -> Iterator[Cluster]:
    """Hosts that reach one another, and nothing else, at this rate."""
    made = Cluster(name=f"foretell-{os.getpid()}-{next(_serial)}", size=size)
    try:
        _run(f"ip netns add {made.switch}")
        _run(f"ip -n {made.switch} link add bridge type bridge")
        _run(f"ip -n {made.switch} link set bridge up")
        for i, host in enumerate(made.hosts):
            _run(f"ip netns add {host}")
            _run(f"ip -n {host} link add {INTERFACE} type veth peer name port{i} netns {made.switch}")
            _run(f"ip -n {made.switch} link set port{i} master bridge up")
            _run(f"ip -n {host} address add {made.address(i)}/24 dev {INTERFACE}")
            _run(f"ip -n {host} link set lo up")
            _run(f"ip -n {host} link set {INTERFACE} up")
            # A busy machine answers late: no packet is dropped here, so none need be sent again to find out.
            _run(f"ip netns exec {host} tee /proc/sys/net/ipv4/tcp_early_retrans", "0")
        made.limit(bits_per_second)
        yield made
    finally:
        for namespace in (*made.hosts, made.switch):  # links and limits go with their namespaces
            left = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
            for process in left.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def enter(namespace: str) -> None:
    """The calling thread's network is this one from now on."""
    with open(f"/run/netns/{namespace}") as file:
        if _LIBC.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _run(command: str, stdin: str = "") -> None:
    subprocess.run(command.split(), input=stdin, capture_output=True, text=True, check=True)
