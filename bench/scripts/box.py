"""A cluster in a box: DDP over gloo on hosts joined by links of a limited rate, beside what Foretell says.

    python bench/scripts/box.py [--hosts 2,3,4] [--rates 1e9,5e8,2e8] [--width 400] [--json]

Hosts are network namespaces of this machine; needs root and iproute2. They share its cores, so compute is taken from a
step of as many hosts over links without a limit; bytes on the wire and the time they add are forecast.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from foretell.capture import capture
from foretell.cost.collectives import collective_seconds, sent_bytes
from foretell.cost.model import ROOFLINE, load_model
from foretell.graph import Graph
from foretell.hardware import Cluster, Link, Node, device, host, link
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.simulate.step import Durations, simulate
from tests.measure import netns
from tests.measure.box import SOURCE, Run, measured

UNLIMITED = 1e11  # bits a second, more than this machine moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    hosts: int
    bits_per_second: float
    sent_bytes: int  # of the rank that is farthest off
    forecast_bytes: int
    step_seconds: float  # of the slowest rank
    forecast_seconds: float
    compute_seconds: float  # a step over links without a limit

    @property
    def bytes_off(self) -> float:
        return self.sent_bytes / self.forecast_bytes - 1

    @property
    def step_off(self) -> float:
        return self.forecast_seconds / self.step_seconds - 1


def cluster_of(hosts: int, bits_per_second: float) -> Cluster:
    cpu = device("cpu")
    wire = Link(name="wire", title="a limited link", bandwidth=bits_per_second / 8, latency=link("eth-1g").latency,
                kind="between", source="tc", fabric="tcp")  # fmt: skip
    node = Node(device=cpu, count=1, host=host(cpu.host), inside=link(cpu.inside))
    return Cluster(nodes=(node,) * hosts, between=wire)


def forecast_step(graph: Graph, cluster: Cluster, compute_seconds: float) -> tuple[float, int]:
    """The step and the bytes a rank sends, with all compute of the step taking what was measured."""
    [role] = parallelize(graph, Plan(dp=cluster.devices)).roles
    seconds = load_model(ROOFLINE).price(role.graph, cluster.nodes[0].device).seconds
    scale = compute_seconds / seconds.sum()
    durations = Durations(
        device=seconds * scale,
        host=np.zeros(len(seconds)),
        waits=np.zeros(len(seconds), dtype=bool),
        collectives=[collective_seconds(c, cluster) for c in role.collectives],
    )
    return simulate(role, durations).makespan, sum(sent_bytes(c) for c in role.collectives)


def rows(hosts: int, rates: Sequence[float], width: int) -> Iterator[Row]:
    settings = {"width": str(width)}
    graph = capture(SOURCE, settings)
    runs = [Run(bits_per_second=rate, plan=f"dp={hosts}", settings=settings) for rate in (UNLIMITED, *rates)]
    with tempfile.TemporaryDirectory(prefix="foretell-box-") as folder:
        results = measured(hosts, runs, Path(folder))
    steps = [max(record.step.step_seconds or 0.0 for record in records) for records in results]
    for rate, step, records in zip(rates, steps[1:], results[1:], strict=True):
        seconds, expected = forecast_step(graph, cluster_of(hosts, rate), steps[0])
        sent = [record.step.sent_bytes or 0 for record in records]
        yield Row(
            hosts=hosts, bits_per_second=rate, sent_bytes=max(sent, key=lambda b: abs(b - expected)),
            forecast_bytes=expected, step_seconds=step, forecast_seconds=seconds, compute_seconds=steps[0],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--rates", default="1e9,5e8,2e8", help="bits per second")
    parser.add_argument("--width", type=int, default=400, help="of the network: its gradients grow with the square")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := netns.why_not():
        sys.exit(f"no cluster can be made here: {reason}.")
    rates = [float(rate) for rate in options.rates.split(",")]
    found = [row for hosts in map(int, options.hosts.split(",")) for row in rows(hosts, rates, options.width)]
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in found], indent=1))
        return
    print("| hosts | rate, Mbit/s | sent a step | forecast | off | step | forecast | off | without a limit |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in found:
        print(
            f"| {row.hosts} | {row.bits_per_second / 1e6:.0f} | {row.sent_bytes:,} | {row.forecast_bytes:,} | {row.bytes_off:+.2%} "
            f"| {row.step_seconds * 1e3:.0f} ms | {row.forecast_seconds * 1e3:.0f} ms | {row.step_off:+.1%} "
            f"| {row.compute_seconds * 1e3:.0f} ms |"
        )


if __name__ == "__main__":
    main()
