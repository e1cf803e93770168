"""Compares forecast and measured memory of real training steps: peak allocated and peak reserved.

Graphs are captured afresh without a device, or read: those that a campaign recorded on the device, or KEY/answer.graph.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell import capture_graph
from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.errors import RequirementNotMet
from foretell.graph import Graph
from foretell.hardware import device as known_device
from foretell.simulate.memory import replay
from foretell_bench.checkout import DATA
from foretell_bench.measuring.memory.collect import inside, lines

MIB: Final = 2**20
TARGETS: Final = {"allocated": 0.03, "reserved": 0.06}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Where the graphs of the steps come from; with neither folder they are captured."""

    recorded: Path | None = None
    captured: Path | None = None

    def of(self, row: dict[str, Any]) -> Graph | None:
        if self.recorded is None and self.captured is None:
            return capture_graph(row["source"], row["settings"])
        path = self.captured / row["key"] / "answer.graph" if self.captured else Path()
        if self.recorded is not None:
            path = self.recorded / f"{row['key']}.graph"
        return Graph.load(path) if path.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """How far the forecast peaks of one step are from the measured ones, relative to these."""

    source: str
    precision: str
    allocated: float
    reserved: float


def furthest_off(graph: Graph, temporaries: Sequence[int], folder: Path, key: str, most: int = 5) -> list[str]:
    measured = dict(inside(graph, json.loads((folder / f"{key}.inside.json").read_text())))
    order = sorted(measured, key=lambda i: -abs(measured[i] - temporaries[i]))[:most]
    return [f"{measured[i] / MIB:9.1f} MiB measured {temporaries[i] / MIB:9.1f} forecast  op {i} {graph.ops[i].target} "
            f"{[x.shape for x in graph.ops[i].signature.inputs[:3]]}" for i in order]  # fmt: skip


def summary(name: str, errors: Sequence[float]) -> str:
    off = sorted(map(abs, errors))
    return (f"{name:12} mean {statistics.mean(off):6.2%}  median {statistics.median(off):6.2%}  "
            f"90 % within {off[int(0.9 * (len(off) - 1))]:6.2%}  worst {off[-1]:6.2%}  bias {statistics.mean(errors):+6.2%}")  # fmt: skip


def run(parts: Sequence[str], graphs: Graphs, device: str = "h200", *, show_ops: bool = False) -> None:
    """Print the errors of every step, their means by family and precision, and whether they meet the targets."""
    found: list[Error] = []
    for row in [row for part in parts for row in lines(DATA / f"{device}_memory_{part}.jsonl")]:
        if (graph := graphs.of(row)) is None:
            print(f"no graph of {row['key']}")
            continue
        found.append(compared(row, graph, device, graphs.recorded if show_ops else None))
    by_group = defaultdict(list)
    for error in found:
        by_group[error.source.split("/")[0], error.precision].append(error)
    print(f"\n{'':24}{'steps':>6}{'allocated':>11}{'reserved':>10}   mean error")
    for (family, precision), rows in sorted(by_group.items()):
        allocated, reserved = (mean_error(rows, kind) for kind in TARGETS)
        print(f"{family + ' ' + precision:24}{len(rows):6}{allocated:11.2%}{reserved:10.2%}")
    print(f"\n{len(found)} steps of {len({row.source for row in found})} architectures")
    for kind in TARGETS:
        print(summary(kind, [getattr(row, kind) for row in found]))
    if any(mean_error(found, kind) > limit for kind, limit in TARGETS.items()):
        raise RequirementNotMet(f"the mean error is above the target {TARGETS}.")


def compared(row: dict[str, Any], graph: Graph, device: str, recorded: Path | None) -> Error:
    """Print one step; where it misses its target and was recorded, the ops whose temporaries are furthest off."""
    on = known_device(device)
    temporaries = temporary_bytes(graph, on)
    trace = replay(graph, temporaries=temporaries, kept_workspace=kept_workspaces(graph, on))
    errors = {kind: getattr(trace, f"peak_{kind}") / row[f"peak_{kind}"] - 1 for kind in TARGETS}
    shown = "".join(f"{row[f'peak_{kind}'] / MIB:8.0f} MiB {error:+7.2%}  " for kind, error in errors.items())
    print(f"{row['key']:80} {shown} at {graph.ops[trace.peak_op].target}", flush=True)
    if recorded is not None and abs(errors["allocated"]) > TARGETS["allocated"]:
        for line in furthest_off(graph, temporaries, recorded, row["key"]):
            print("    " + line)
    return Error(source=row["source"], precision=graph.precision.arithmetic, **errors)


def mean_error(rows: Sequence[Error], kind: str) -> float:
    return float(statistics.mean(abs(getattr(row, kind)) for row in rows))
