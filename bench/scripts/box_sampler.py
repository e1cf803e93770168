"""Samples what every host of the box does: bytes over its port of the switch, and the processor time it has used.

    python bench/scripts/box_sampler.py HOSTS CGROUPS INTERVAL

Runs in the switch's namespace until its input closes, then prints all it saw as JSON, after an empty line: rows of
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
    user, nice, system, _, _, irq, soft, *_ = (
        int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / TICKS


def main(hosts: int, cgroups: str, interval: float) -> None:
    # A sample that comes late is a sample less, and a nice value does not count beside the hosts' cgroups.
    (Path("/sys/fs/cgroup/cpu") / f"{cgroups}-sampler" / "cgroup.procs").write_text(str(os.getpid()))
    usages = [Path("/sys/fs/cgroup/cpuacct") / f"{cgroups}-{i}" / "cpuacct.usage" for i in range(hosts)]
    rows: list[list[float]] = []
    while not select.select([sys.stdin], [], [], interval)[0]:
        row = [time.monotonic(), busy_seconds()]
        ports = {}
        for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
            name, _, counters = line.partition(":")
            ports[name.strip()] = counters.split()
        for i, usage in enumerate(usages):
            port = ports[f"port{i}"]  # what the switch receives here, the host sent
            row += [int(port[8]), int(port[0]), int(usage.read_text())]
        if not rows:
            print(flush=True)  # it has begun
        rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
