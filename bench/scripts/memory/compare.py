"""Compares forecast and measured memory of real training steps: peak allocated and peak reserved.

    python bench/scripts/memory/compare.py --recorded FOLDER   graphs that campaign.py recorded on the device
    python bench/scripts/memory/compare.py --captured FOLDER   KEY/answer.graph, captured without a device
    python bench/scripts/memory/compare.py                     captures every workload afresh, without a device

`--inside` (with --recorded) adds, for each step off by more than 3 %, the ops whose temporaries are furthest off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "src")]

from collect import DATA, inside, lines
from configurations import located

from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.graph import Graph
from foretell.hardware import device
from foretell.simulate.memory import replay

MIB = 2**20
TARGETS = {"allocated": 0.03, "reserved": 0.06}


def graph_of(row: dict[str, Any], options: argparse.Namespace) -> Graph | None:
    if options.recorded or options.captured:
        path = (
            options.recorded / f"{row['key']}.graph"
            if options.recorded
            else options.captured / row["key"] / "answer.graph"
        )
        return Graph.load(path) if path.exists() else None
    from foretell.capture import capture

    return capture(located(row["source"]), row["settings"])


def furthest_off(graph: Graph, taken: Sequence[int], folder: Path, key: str, most: int = 5) -> list[str]:
    measured = dict(inside(graph, json.loads((folder / f"{key}.inside.json").read_text())))
    order = sorted(measured, key=lambda i: -abs(measured[i] - taken[i]))[:most]
    return [f"{measured[i] / MIB:9.1f} MiB measured {taken[i] / MIB:9.1f} forecast  op {i} {graph.ops[i].target} "
            f"{[x.shape for x in graph.ops[i].signature.inputs[:3]]}" for i in order]  # fmt: skip


def summary(name: str, errors: Sequence[float]) -> str:
    off = sorted(map(abs, errors))
    return (f"{name:12} mean {statistics.mean(off):6.2%}  median {statistics.median(off):6.2%}  "
            f"90 % within {off[int(0.9 * (len(off) - 1))]:6.2%}  worst {off[-1]:6.2%}  bias {statistics.mean(errors):+6.2%}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--captured", type=Path)
    parser.add_argument(
        "--part", choices=["all", "steps", "unseen"], default="all", help="unseen: nothing was derived from these"
    )
    parser.add_argument("--device", default="h200")
    parser.add_argument("--inside", action="store_true")
    options = parser.parse_args()
    target = device(options.device)
    found: list[dict[str, Any]] = []
    parts = ("steps", "unseen") if options.part == "all" else (options.part,)
    for row in [row for part in parts for row in lines(DATA / f"{options.device}_memory_{part}.jsonl")]:
        graph = graph_of(row, options)
        if graph is None:
            print(f"no graph of {row['key']}")
            continue
        taken = temporary_bytes(graph, target)
        trace = replay(graph, temporaries=taken, kept_workspace=kept_workspaces(graph, target))
        errors = {kind: getattr(trace, f"peak_{kind}") / row[f"peak_{kind}"] - 1 for kind in TARGETS}
        found.append({"source": row["source"], "precision": graph.precision.arithmetic, **errors})
        shown = "".join(f"{row[f'peak_{kind}'] / MIB:8.0f} MiB {error:+7.2%}  " for kind, error in errors.items())
        print(f"{row['key']:80} {shown} at {graph.ops[trace.peak_op].target}", flush=True)
        if options.inside and options.recorded and abs(errors["allocated"]) > TARGETS["allocated"]:
            for line in furthest_off(graph, taken, options.recorded, row["key"]):
                print("    " + line)
    by_group = defaultdict(list)
    for row in found:
        by_group[row["source"].split("/")[0], row["precision"]].append(row)
    print(f"\n{'':24}{'steps':>6}{'allocated':>11}{'reserved':>10}   mean error")
    for (family, precision), rows in sorted(by_group.items()):
        means = [statistics.mean(abs(row[kind]) for row in rows) for kind in TARGETS]
        print(f"{family + ' ' + precision:24}{len(rows):6}{means[0]:11.2%}{means[1]:10.2%}")
    print(f"\n{len(found)} steps of {len({row['source'] for row in found})} architectures")
    for kind in TARGETS:
        print(summary(kind, [row[kind] for row in found]))
    if any(statistics.mean(abs(row[kind]) for row in found) > limit for kind, limit in TARGETS.items()):
        sys.exit(f"mean error above target {TARGETS}")


if __name__ == "__main__":
    main()
