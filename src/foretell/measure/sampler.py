"""Samples counters beside a running step, in a process of its own so that it takes neither the GIL nor the device.

The child writes one line per sample to a file: the monotonic clock, which all processes of a machine share, and the
counters. The parent reads the lines of a window afterwards. Standard library alone, so that the child starts at once.

Network counters are the kernel's, from /proc/net/dev, which shows the network namespace of whoever reads it. They count
whole packets: payload, headers, acknowledgements, and whatever else the host sends.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL_SECONDS = 0.02
COUNTERS = Path("/proc/net/dev")
_PATIENCE = 1.0  # seconds to wake up in


@dataclass(frozen=True, slots=True)
class Sample:
    time: float  # time.monotonic()
    received_bytes: int  # since the interfaces came up
    sent_bytes: int
    power_watts: float | None = None
    memory_utilization: float | None = None  # NVML: share of its window with memory being read or written


class Sampler:
    """A process that sleeps unless it is woken; `between` gives the samples of a window."""

    def __init__(self, device_uuid: str = "", interface: str = "", interval: float = INTERVAL_SECONDS) -> None:
        """Without an interface, all but the loopback are added up."""
        handle, path = tempfile.mkstemp(prefix="foretell-samples-")
        command = [sys.executable, __file__, device_uuid, interface, str(interval), str(os.getpid())]
        nothing = subprocess.DEVNULL  # one that outlives us must not hold the pipe that somebody reads us through
        self._process = subprocess.Popen(command, stdout=handle, stdin=nothing, stderr=nothing)
        os.close(handle)
        self._file = open(path)  # noqa: SIM115
        os.unlink(path)
        while not self._file.readline() and self._process.poll() is None:
            time.sleep(INTERVAL_SECONDS)  # until it is up: starting must not fall into a window
        self._process.send_signal(signal.SIGSTOP)
        self._samples: list[Sample] = []
        self._rest = ""
        self._since = 0.0
        atexit.register(self.close)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._file.close()
        atexit.unregister(self.close)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self._since = time.monotonic()
        self._process.send_signal(signal.SIGCONT)
        while not self._fresh() and self._process.poll() is None and time.monotonic() < self._since + _PATIENCE:
            time.sleep(INTERVAL_SECONDS / 20)  # differences start from a reading made now, not when it fell asleep
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def between(self, begin: float, end: float) -> list[Sample]:
        """Samples of a window of `time.monotonic()`, with the last before it, from which differences start.

        Windows are asked for in order: what came before is forgotten.
        """
        fresh = self._fresh()
        first = max((i for i, s in enumerate(fresh) if s.time < begin), default=0)
        self._samples = fresh[first:]
        return [s for s in self._samples if s.time <= end]

    def _fresh(self) -> list[Sample]:
        """What it saw since it was woken last."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        self._samples += [Sample(*json.loads(line)) for line in lines]
        return [s for s in self._samples if s.time >= self._since]


def read_interfaces() -> dict[str, tuple[int, int]]:
    """(received, sent) bytes of every interface of this host; none where the system does not count them."""
    try:
        lines = COUNTERS.read_text().splitlines()[2:]
    except OSError:
        return {}
    parts = ((name.strip(), counters.split()) for name, _, counters in (line.partition(":") for line in lines))
    return {name: (int(fields[0]), int(fields[8])) for name, fields in parts}


def read_network(interface: str = "") -> tuple[int, int]:
    """(received, sent) bytes of an interface, or of all but the loopback."""
    found = read_interfaces()
    counted = [found[interface]] if interface else [bytes for name, bytes in found.items() if name != "lo"]
    return sum(received for received, _ in counted), sum(sent for _, sent in counted)


def nvml_of(uuid: str) -> tuple[Any, Any] | None:
    """NVIDIA's management library and the handle of a device; None where either is missing, as in a plain image."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:
        return None


def _main(uuid: str, interface: str, interval: str, parent: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    counters = nvml_of(uuid) if uuid else None
    while os.getppid() == int(parent):
        power = memory = None
        if counters is not None:
            nvml, handle = counters
            power = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            memory = nvml.nvmlDeviceGetUtilizationRates(handle).memory / 100
        sys.stdout.write(json.dumps([time.monotonic(), *read_network(interface), power, memory]) + "\n")
        sys.stdout.flush()
        time.sleep(float(interval))


if __name__ == "__main__":
    _main(*sys.argv[1:])
