"""Bytes on the wire and step time of data-parallel training over several hosts, beside what the algorithms must move.

    python bench/scripts/wire.py [--hosts 2,3,4] [--rates 1e9,5e8,2e8] [--json]

Hosts are network namespaces of this machine, joined by links of a limited rate; needs root and iproute2. A step cannot
be shorter than its bytes over the rate of a link; what it is longer by is the compute of all hosts on this machine's
cores, and what of the communication that does not hide.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.measure import netns
from tests.measure.box import Run, measured
from tests.measure.cnn import gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    hosts: int
    plan: str
    bits_per_second: float
    sent_bytes: int  # of the rank that is farthest off
    expected_bytes: int
    step_seconds: float  # of the slowest rank

    @property
    def ratio(self) -> float:
        return self.sent_bytes / self.expected_bytes

    @property
    def bound_seconds(self) -> float:
        return self.expected_bytes * 8 / self.bits_per_second


def rows(hosts: int, rates: list[float]) -> list[Row]:
    """DDP and FSDP at every rate."""
    part = (hosts - 1) / hosts * gradient_bytes()  # what a rank sends when a ring passes all gradients once
    # All-reduce passes them twice. FSDP gathers parameters for forward and backward, and gloo has no reduce-scatter of
    # its own: it runs an all-reduce.
    plans = {f"dp={hosts}": 2 * part, f"dp={hosts},zero=3": 4 * part}
    runs = [Run(bits_per_second=rate, plan=plan) for plan in plans for rate in rates]
    with tempfile.TemporaryDirectory(prefix="foretell-wire-") as folder:
        results = measured(hosts, runs, Path(folder))
    found = []
    for run, records in zip(runs, results, strict=True):
        expected = round(plans[run.plan])
        sent = [record.step.sent_bytes or 0 for record in records]
        found.append(
            Row(
                hosts=hosts,
                plan=run.plan,
                bits_per_second=run.bits_per_second,
                sent_bytes=max(sent, key=lambda b: abs(b - expected)),
                expected_bytes=expected,
                step_seconds=max(record.step.step_seconds or 0.0 for record in records),
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--rates", default="1e9,5e8,2e8", help="bits per second")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := netns.why_not():
        sys.exit(f"no cluster can be made here: {reason}.")
    found: list[Row] = []
    for hosts in map(int, options.hosts.split(",")):
        found += rows(hosts, [float(rate) for rate in options.rates.split(",")])
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in found], indent=1))
        return
    print("| hosts | plan | rate, Mbit/s | sent a step | expected | ratio | step | bytes / rate |")
    print("|---|---|---|---|---|---|---|---|")
    for row in found:
        print(
            f"| {row.hosts} | {row.plan} | {row.bits_per_second / 1e6:.0f} | {row.sent_bytes:,} | {row.expected_bytes:,} "
            f"| {row.ratio:.4f} | {row.step_seconds * 1e3:.0f} ms | {row.bound_seconds * 1e3:.0f} ms |"
        )


if __name__ == "__main__":
    main()
