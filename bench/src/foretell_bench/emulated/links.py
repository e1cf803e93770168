"""How workers that share a device are joined: namespaces with links of a limited rate, or the loopback with paced sockets.

Both count the bytes that every rank sends and receives. Namespaces limit a host's link in both directions, whoever it
exchanges with; on the loopback every socket has a rate of its own, half of the link's where a server has two workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from foretell_bench.emulated import namespaces
from foretell_bench.emulated.counters import port_bytes

PIDFD_GETFD: Final = 438  # <asm-generic/unistd.h>
SO_MAX_PACING_RATE: Final = 47  # <asm-generic/socket.h>
INTERVAL: Final = 0.002  # seconds between readings
_INFO: Final = struct.Struct("=120xQQ")  # of tcp_info: bytes acknowledged, bytes received
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
Reading = list[int]  # nanoseconds since the epoch; then of every rank: bytes received, bytes sent
Counters = Callable[[], list[int]]


def pace(bytes_per_second: float) -> None:
    """Limit what each TCP connection of this process sends: the kernel spaces its packets out."""
    for end in _sockets(os.getpid(), lambda number: os.dup(number)):
        with end:
            end.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", round(bytes_per_second)))


def ports(ranks: int) -> list[int]:
    """What the ports of the switch carried."""
    return [count for both in port_bytes(ranks) for count in both]


@contextmanager
def connections(processes: Sequence[int]) -> Iterator[Counters]:
    """What the TCP connections that these processes have now carry."""

    def borrowed(process: int) -> list[socket.socket]:
        handle = os.pidfd_open(process)
        try:
            return list(_sockets(process, lambda number: int(_LIBC.syscall(PIDFD_GETFD, handle, number, 0))))
        finally:
            os.close(handle)

    ends = [borrowed(process) for process in processes]

    def read() -> list[int]:
        found = []
        for own in ends:
            seen = [_INFO.unpack(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)) for end in own]
            found += [sum(received for _, received in seen), sum(sent for sent, _ in seen)]
        return found

    try:
        yield read
    finally:
        for end in (end for own in ends for end in own):
            end.close()


def _sockets(process: int, copied: Callable[[int], int]) -> Iterator[socket.socket]:
    for number in sorted(int(name) for name in os.listdir(f"/proc/{process}/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile
            if not os.readlink(f"/proc/{process}/fd/{number}").startswith("socket:"):
                continue
            end = socket.socket(fileno=copied(number))
            joined = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
            with contextlib.suppress(OSError):
                if joined and end.getpeername():
                    yield end
                    continue
            end.close()


@contextmanager
def sampled(read: Counters, namespace: str = "") -> Iterator[list[Reading]]:
    """Readings as they come, by a thread of its own."""
    rows: list[Reading] = []
    over = threading.Event()

    def sample() -> None:
        if namespace:
            namespaces.enter(namespace)
        while not over.wait(INTERVAL):
            rows.append([time.time_ns(), *read()])

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield rows
    finally:
        over.set()
        thread.join()
