"""Counters of every emulated host: bytes over its port of the switch, and the processor time it has used.

    python -m foretell_bench.emulated.counters HOSTS CGROUPS INTERVAL

Runs in the switch's namespace until its input closes, then prints all readings as JSON, after an empty line: rows of
[time.monotonic(), busy seconds of the machine, then of each host: received bytes, sent bytes, nanoseconds]. One process
for all hosts, so that their series share a clock; standard library alone, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Of all cores, since the machine came up."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _, _, irq, soft, *_ = (int(n) for n in first.split()[1:])
    return (user + nice + system + irq + soft) / TICKS


def port_bytes(ports: int) -> list[tuple[int, int]]:
    """Bytes that each host received and sent, read by the calling thread in the switch's namespace."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        found[name.strip()] = counters.split()
    # What the switch receives at a port, the host sent.
    return [(int(found[f"port{i}"][8]), int(found[f"port{i}"][0])) for i in range(ports)]


def main(hosts: int, cgroups: str, interval: float) -> None:
    # A sample that comes late is a sample less, and a nice value does not count where the hosts have cgroups.
    (Path("/sys/fs/cgroup/cpu") / f"{cgroups}-sampler" / "cgroup.procs").write_text(str(os.getpid()))
    usages = [Path("/sys/fs/cgroup/cpuacct") / f"{cgroups}-{i}" / "cpuacct.usage" for i in range(hosts)]
    rows: list[list[float]] = []
    while not select.select([sys.stdin], [], [], interval)[0]:
        row = [time.monotonic(), busy_seconds()]
        for ports, usage in zip(port_bytes(hosts), usages, strict=True):
            row += [*ports, int(usage.read_text())]
        if not rows:
            print(flush=True)  # the first reading is there
        rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
