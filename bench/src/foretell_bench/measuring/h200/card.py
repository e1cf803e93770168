"""The figures of the H200 dataset: how much there is, how well it is aligned, and how far the same point moves.

The last table is the noise floor: what two measurements of one point, on separate occasions, differ by. No forecast can do
better.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import Final

from foretell.learn.fit import families_of
from foretell.measure.record import StepRow
from foretell.store.store import Store
from foretell_bench.checkout import DATA

MEASURES: Final = ("step_seconds", "device_seconds", "host_seconds", "peak_allocated")


def run(folder: Path = DATA / "h200") -> None:
    store = Store(folder)
    rows = list(store.steps())
    done = [r for r in rows if r.outcome in ("ok", "nan-loss")]
    steps = [r for r in done if r.kind == "step"]
    print(
        f"{len(steps)} steps: {len({r.point for r in steps})} points of {len({r.source for r in steps})} architectures"
    )
    print(
        f"{len(done) - len(steps)} operator points; {store.size() / 1e6:.1f} MB; {len({r.occasion for r in rows})} occasions"
    )
    print("families:", dict(Counter(families_of(store)[r.source] for r in steps).most_common()))
    print("precisions:", dict(Counter(r.precision for r in steps).most_common()))
    print("bound by:", dict(Counter(r.bound for r in steps)), "outcomes:", dict(Counter(r.outcome for r in rows)))
    print("marks:", dict(Counter(mark.partition(":")[0] for r in steps for mark in r.marks)))
    kernels = sum(r.kernel_seconds or 0.0 for r in done)
    unattributed = sum(r.unattributed_seconds or 0.0 for r in done)
    print(f"kernel time that no op owns: {unattributed / kernels:.4%} of {kernels:.1f} s")
    spread = [(r.step_high or 0) / (r.step_low or 1) - 1 for r in steps]
    print(f"spread of a step, p90 over p10: median {statistics.median(spread):.1%}")
    print(f"\n{'same point, other occasion':28}{'pairs':>6}{'mean':>8}{'median':>8}{'largest':>9}")
    for bound in ("", "device", "host"):
        for measure in MEASURES:
            differences = [d for pair in _pairs(steps) if not bound or {r.bound for r in pair} == {bound}
                     for d in [_difference(*pair, measure)] if d is not None]  # fmt: skip
            if differences:
                what = f"{measure}{', ' + bound + '-bound' if bound else ''}"
                print(
                    f"{what:28}{len(differences):6}{statistics.mean(differences):8.1%}{statistics.median(differences):8.1%}{max(differences):9.1%}"
                )


def _pairs(steps: list[StepRow]) -> list[tuple[StepRow, StepRow]]:
    by_point: dict[str, list[StepRow]] = defaultdict(list)
    for row in steps:
        if not any(mark.startswith("recorded alone") for mark in row.marks):  # no two of their steps are alike
            by_point[row.point].append(row)
    return [
        pair for rows in by_point.values() for pair in combinations(rows, 2) if pair[0].occasion != pair[1].occasion
    ]


def _difference(a: StepRow, b: StepRow, measure: str) -> float | None:
    first, second = getattr(a, measure), getattr(b, measure)
    return abs(first - second) / ((first + second) / 2) if first and second else None
