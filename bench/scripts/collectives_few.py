"""How far collectives are off on topologies held back from the fit of the catalog, after a few of their own times.

    python bench/scripts/collectives_few.py DATA [--points 0,2,5,10] [--seeds 5]

DATA is a folder of public measurements, as for collectives.py, whose topologies these are. Of a topology (one system with so
many devices, one source), a few times of any kind and size are drawn; the links of a profile are fitted on them, as
`foretell.learn.adapt.collectives` does for users; the error is of all the others.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

from collectives import Row, allreduce_single_node, collectives_by_topology, nccl, v100_collectives

from foretell.learn.adapt.collectives import Timed, fit_collectives
from foretell.profile import AS_LISTED

SOURCES = (nccl, allreduce_single_node, collectives_by_topology, v100_collectives)


def held_back(data: Path) -> dict[tuple[str, str], list[Timed]]:
    found: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for row in (row for source in SOURCES for row in source(data)):
        if row.topology.held_back:
            found[row.topology.fabric, f"{row.source}: {row.topology.name}"].append(_timed(row))
    return found


def _timed(row: Row) -> Timed:
    return Timed(collective=row.collective, cluster=row.topology.cluster, seconds=row.measured)


def errors(times: list[Timed], points: int, seeds: int) -> list[float]:
    """Of the times that were not drawn, over the seeds."""
    found = []
    for seed in range(seeds if points else 1):
        chosen = set(random.Random(seed).sample(range(len(times)), points))
        few = [times[i] for i in sorted(chosen)]
        links = fit_collectives(few, name="few").links if few else AS_LISTED
        rest = [each for i, each in enumerate(times) if i not in chosen]
        found += [abs(each.predicted(links) / each.seconds - 1) for each in rest]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--points", default="0,2,5,10,20")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    counts = [int(n) for n in options.points.split(",")]
    topologies = held_back(options.data)
    every: dict[int, list[float]] = {n: [] for n in counts}
    print(f"| fabric | topology | times | {' | '.join(f'after {n}' for n in counts)} |")
    print(f"|---|---|---|{'---|' * len(counts)}")
    for (fabric, name), times in sorted(topologies.items()):
        by_count = {n: errors(times, n, options.seeds) for n in counts if n < len(times) / 2}
        for n, found in by_count.items():
            every[n].append(median(found))
        cells = (f"{median(by_count[n]):.0%}, {mean(by_count[n]):.0%}" if n in by_count else "" for n in counts)
        print(f"| {fabric} | {name} | {len(times)} | {' | '.join(cells)} |")
    print(
        "| all | mean of medians | | " + " | ".join(f"{mean(every[n]):.1%}" if every[n] else "" for n in counts) + " |"
    )


if __name__ == "__main__":
    main()
