"""Errors on topologies left out of the fit of the catalog, after a few of their own times.

Of a topology (one system with so many devices, one source), a few times of any kind and size are drawn; the links of a
profile are fitted on them, as `foretell.learn.adapt.collectives` does for users; the error is of all the others.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean, median

from foretell.learn.adapt.collectives import Timed, fit_collectives
from foretell.profile import AS_LISTED
from foretell_bench.fitting.collectives import Row


def left_out(rows: Sequence[Row]) -> dict[tuple[str, str], list[Timed]]:
    """Fabric and topology → its times."""
    found: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for row in rows:
        if row.topology.left_out:
            time = Timed(collective=row.collective, cluster=row.topology.cluster, seconds=row.measured)
            found[row.topology.fabric, f"{row.source}: {row.topology.name}"].append(time)
    return found


def errors(times: Sequence[Timed], points: int, seeds: int) -> list[float]:
    """Of the times that were not drawn, over the seeds."""
    found = []
    for seed in range(seeds if points else 1):
        chosen = set(random.Random(seed).sample(range(len(times)), points))
        few = [times[i] for i in sorted(chosen)]
        links = fit_collectives(few, name="few").links if few else AS_LISTED
        rest = [each for i, each in enumerate(times) if i not in chosen]
        found += [abs(each.predicted(links) / each.seconds - 1) for each in rest]
    return found


def report(rows: Sequence[Row], counts: Sequence[int], seeds: int, say: Callable[[str], None]) -> None:
    """Median and mean errors of every topology after so many times."""
    every: dict[int, list[float]] = {n: [] for n in counts}
    say(f"| fabric | topology | times | {' | '.join(f'after {n}' for n in counts)} |")
    say(f"|---|---|---|{'---|' * len(counts)}")
    for (fabric, name), times in sorted(left_out(rows).items()):
        by_count = {n: errors(times, n, seeds) for n in counts if n < len(times) / 2}
        for n, found in by_count.items():
            every[n].append(median(found))
        cells = (f"{median(by_count[n]):.0%}, {mean(by_count[n]):.0%}" if n in by_count else "" for n in counts)
        say(f"| {fabric} | {name} | {len(times)} | {' | '.join(cells)} |")
    means = (f"{mean(every[n]):.1%}" if every[n] else "" for n in counts)
    say(f"| all | mean of medians | | {' | '.join(means)} |")
