"""Collectives in a cluster in a box: a profile's links fitted on a few times, held against sizes and hosts they had not seen.

    python bench/scripts/box_collectives.py [--fit-hosts 2] [--hosts 2,3,4] [--rates 1e9,2e8] [--listed 1e9] [--json]

Hosts are network namespaces of this machine, joined by links of a limited rate (`tc tbf`), one rank each over gloo; needs
root and iproute2. The forecast believes every link to have the rate `--listed` until it is fitted on three sizes of
all-reduce among `--fit-hosts`. Errors are of all-reduce, all-gather and broadcast at other sizes, among every number of hosts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import numpy as np

from foretell.hardware import Cluster, Link, Node, device, host, link
from foretell.learn.adapt.collectives import Timed, fit_collectives, timed
from foretell.measure.record import Record
from foretell.profile import AS_LISTED, Links
from foretell.units import KIB
from tests.measure import netns

PORT = "29500"
FITTED_ON = tuple(KIB * 4**i for i in (1, 5, 7))  # 4 KiB, 1 MiB, 16 MiB
ASKED = tuple(KIB * 2**i for i in (0, 5, 8, 11, 13))  # 1, 32, 256 KiB, 2, 8 MiB
LONG = 250_000  # bytes from which the wire decides, and not the scheduler of a machine that is all hosts
KINDS = ("all-reduce", "all-gather", "broadcast")


def rank(out: str) -> None:
    """One rank: everything that is asked for, on the links as they are."""
    from foretell.measure.ranks.collectives import measure_collectives
    from foretell.measure.ranks.world import join

    with join(backend="gloo") as world:
        records = measure_collectives(world, sizes=sorted({*FITTED_ON, *ASKED}), kinds=KINDS, seconds=1.0)
        if records:
            Path(out).write_text("".join(record.to_line() + "\n" for record in records), encoding="utf-8")


def measured(hosts: int, rate: float) -> list[Record]:
    with (
        tempfile.TemporaryDirectory(prefix="foretell-box-") as folder,
        netns.cluster(hosts, bits_per_second=rate) as made,
    ):
        out = Path(folder) / "out.jsonl"
        processes = []
        for number in range(hosts):
            environment = {"RANK": str(number), "WORLD_SIZE": str(hosts), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1",
                           "MASTER_ADDR": made.address(0), "MASTER_PORT": PORT}  # fmt: skip
            command = [sys.executable, str(Path(__file__).resolve()), "--rank", str(out)]
            log = Path(folder) / f"host{number}.log"
            processes.append(made.start(number, command, log=log, environment=environment))
        codes = [process.wait(600) for process in processes]
        if any(codes):
            sys.exit((Path(folder) / f"host{next(i for i, c in enumerate(codes) if c)}.log").read_text()[-3000:])
        return [Record.from_line(line) for line in out.read_text(encoding="utf-8").splitlines()]


def listed(rate: float) -> Cluster:
    cpu = device("cpu")
    wire = Link(name="wire", title="as listed", bandwidth=rate / 8, latency=link("eth-1g").latency, kind="between",
                source="tc", fabric="tcp")  # fmt: skip
    node = Node(device=cpu, count=1, host=host(cpu.host), inside=link(cpu.inside))
    return Cluster(nodes=(node, node), between=wire)


def _was_fitted_on(each: Timed) -> bool:
    """Of three hosts, bytes are rounded to whole shares."""
    return any(abs(each.collective.nbytes - nbytes) < 64 for nbytes in FITTED_ON)


def errors(times: Sequence[Timed], links: Links) -> float:
    return float(np.mean([abs(each.predicted(links) / each.seconds - 1) for each in times]))


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit-hosts", type=int, default=2)
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--rates", default="1e9,2e8", help="bits per second")
    parser.add_argument("--listed", type=float, default=1e9, help="bits per second that the forecast believes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := netns.why_not():
        sys.exit(f"no cluster can be made here: {reason}.")
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    found = []
    for rate in map(float, options.rates.split(",")):
        times = {
            n: timed((r.step for r in measured(n, rate)), listed(options.listed))
            for n in map(int, options.hosts.split(","))
        }
        few = [
            t
            for t in times[options.fit_hosts]
            if t.collective.kind == "all-reduce" and t.collective.nbytes in FITTED_ON
        ]
        links = fit_collectives(few, name="box").links  # none where times left out say that it does not help
        for hosts, every in times.items():
            new = [t for t in every if not _was_fitted_on(t) and t.collective.group.size == hosts]
            for kind, long in itertools.product(KINDS, (True, False)):
                asked = [t for t in new if t.collective.kind == kind and (t.collective.nbytes >= LONG) == long]
                row = {"rate": rate, "hosts": hosts, "kind": kind, "long": long, "bandwidth": links.bandwidth / links.neighbours,
                       "latency": links.latency, "before": errors(asked, AS_LISTED), "after": errors(asked, links),
                       "each": [[t.collective.nbytes, t.seconds, t.predicted(links)] for t in asked]}  # fmt: skip
                found.append(row)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print("| rate, Mbit/s | hosts | collective | as listed | fitted | below 256 KiB, as listed | fitted |")
    print("|---|---|---|---|---|---|---|")
    for long, short in zip(found[::2], found[1::2], strict=True):
        shown = " | ".join(f"{row[when]:.0%}" for row in (long, short) for when in ("before", "after"))
        print(f"| {long['rate'] / 1e6:.0f} | {long['hosts']} | {long['kind']} | {shown} |")


if __name__ == "__main__":
    main()
