"""The byte counters of a network interface, and a program that samples them.

Counters are the kernel's, from /proc/net/dev, which shows the network namespace of whoever reads it. They count whole
packets: payload, headers, acknowledgements, and whatever else the host sends. Standard library alone, so that the
sampling process starts at once; being a process, it takes the GIL of no step.
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COUNTERS: Final = Path("/proc/net/dev")


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of an interface at one moment."""

    time: float  # time.monotonic(), one clock for all processes of a host
    received: int  # bytes, since the interface came up
    sent: int


def read_all() -> dict[str, Reading]:
    """Every interface of this host, by name."""
    lines = COUNTERS.read_text().splitlines()[2:]
    now = time.monotonic()
    readings = {}
    for line in lines:
        name, _, counters = line.partition(":")
        fields = counters.split()
        readings[name.strip()] = Reading(now, int(fields[0]), int(fields[8]))
    return readings


def _sample(interface: str, interval: float) -> None:
    readings = []
    ready = False
    # The input closes when the parent asks for the readings, and also when the parent is gone.
    while not select.select([sys.stdin], [], [], interval)[0]:
        readings.append(read_all()[interface])
        if not ready:
            ready = True
            print(flush=True)
    print(json.dumps([(r.time, r.received, r.sent) for r in readings]))


if __name__ == "__main__":
    _sample(sys.argv[1], float(sys.argv[2]))
