"""Samples counters beside a running step, in a process of its own so that it takes neither the GIL nor the device.

The child writes one line a sample to a file: the monotonic clock, which all processes of a machine share, and the
counters. The parent reads the lines of a window afterwards.
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
_PATIENCE = 1.0  # seconds to wake up in


@dataclass(frozen=True, slots=True)
class Sample:
    time: float  # time.monotonic()
    power_watts: float | None
    utilization: float | None  # NVML: share of its window with any kernel running
    memory_utilization: float | None  # NVML: share of its window with memory being read or written
    received_bytes: int  # all interfaces but loopback, since boot
    sent_bytes: int


class Sampler:
    """A process that sleeps unless it is told to be awake; `between` gives the samples of a window."""

    def __init__(self, device_uuid: str | None = None, interval: float = INTERVAL_SECONDS) -> None:
        handle, path = tempfile.mkstemp(prefix="foretell-samples-")
        command = [sys.executable, __file__, device_uuid or "", str(interval), str(os.getpid())]
        self._process = subprocess.Popen(command, stdout=handle, stdin=subprocess.DEVNULL)
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


def read_network() -> tuple[int, int]:
    """(received, sent) bytes over all interfaces but loopback."""
    received = sent = 0
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    except OSError:
        return 0, 0
    for line in lines:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            fields = counters.split()
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


def _nvml(uuid: str) -> tuple[Any, Any] | None:
    if not uuid:
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # a plain image has no pynvml: those columns stay empty
        return None


def _main() -> None:
    uuid, interval, parent = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    asked = _nvml(uuid)
    while os.getppid() == parent:
        power = utilization = memory = None
        if asked is not None:
            nvml, handle = asked
            power = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            utilization, memory = rates.gpu / 100, rates.memory / 100
        received, sent = read_network()
        sys.stdout.write(json.dumps([time.monotonic(), power, utilization, memory, received, sent]) + "\n")
        sys.stdout.flush()
        time.sleep(interval)


if __name__ == "__main__":
    _main()
