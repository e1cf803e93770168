"""Real jobs on emulated hosts, network namespaces of one machine, as examples; and what an H200 does over a step.

`foretell bench emulated` makes the runs; bench/data/README.md says what is in them.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Final

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.graph.rescale import extend
from foretell.hardware import Cluster, Link, Node, device, host, link
from foretell.methods.examples import dataset_of
from foretell.methods.protocol import JOB_TIME, STEP_TIME, Example, Query
from foretell.plans import Plan
from foretell.store.importers import Selection
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources.examples import h200_steps
from foretell_bench.sources.question import evenly

_COUNTED: Final = ("idle_seconds", "active_seconds", "peak")
HOST_TARGETS: Final = tuple(f"{r}_{what}" for r in ("network_rx", "network_tx", "compute") for what in _COUNTED)
SHARED_TARGETS: Final = tuple(
    f"{r}_{what}" for r in ("device", "memory_bandwidth", "network_rx", "network_tx") for what in _COUNTED
)
H200_TARGETS: Final = tuple(f"{r}_{what}" for r in ("device", "memory_bandwidth") for what in _COUNTED)


def emulated_cluster(hosts: int, bytes_per_second: float, of: str = "cpu") -> Cluster:
    """Hosts of one device each, joined by links of this rate."""
    chip, usual = device(of), link("eth-1g")
    wire = Link(name="wire", title="a limited link", bandwidth=bytes_per_second or usual.bandwidth, latency=usual.latency,
                kind="between", source="tc", fabric="tcp")  # fmt: skip
    node = Node(device=chip, count=1, host=host(chip.host), inside=link(chip.inside))
    return Cluster(nodes=(node,) * hosts, between=wire if hosts > 1 else None)


def host_jobs(folder: Path, say: Say = quiet, most: int | None = None) -> Selection[Example]:
    """A cluster has the workers' hosts; servers are in the plan. A step is the slowest worker's, resources their mean."""
    path = folder / "runs.jsonl"
    if not path.exists():
        raise InputError(f"there are no runs in {folder}. Make them with: foretell bench emulated hosts")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    chosen = evenly(lines, most, by=lambda r: (r["plan"], r["mbit"], r["architecture"]))
    say(f"reading {len(chosen)} runs of {folder}")
    graphs: dict[str, Graph] = {}
    examples = []
    for r in sorted(chosen, key=lambda r: str(r["run"])):
        name = f"{r['architecture'].removeprefix('box/')}-{r['batch']}.graph"
        if name not in graphs:
            graphs[name] = Graph.load(folder / "graphs" / name)
        settings = {"rate": f"{r['mbit']}e6", "steps": str(r["steps"]), "share": str(r["share"]), "run": r["run"]}
        query = Query(
            architecture=r["architecture"], plan=Plan.parse(r["plan"]), graph=graphs[name], settings=settings,
            cluster=emulated_cluster(r["workers"], r["mbit"] * 1e6 / 8), batch=float(r["batch"] * r["workers"]),
            fraction=r["fraction"], dataset=dataset_of(graphs[name]),
        )  # fmt: skip
        measured = {STEP_TIME: r["step_time"], JOB_TIME: r["job_seconds"], **{t: r[t] for t in HOST_TARGETS if t in r}}
        examples.append(Example(query=query, measured=measured, cost=r["job_seconds"]))
    rest = len(lines) - len(chosen)
    return Selection(items=tuple(examples), left_out={"not drawn": rest} if rest else {})


def shared_gpu_jobs(folder: Path, say: Say = quiet) -> list[Example]:
    """Two workers that share an H200, each in a host of its own: the device's resources are of both, the network's their mean."""
    path = folder / "runs.jsonl.gz"
    if not path.exists():
        raise InputError(f"there are no runs in {folder}. Make them with: foretell bench emulated gpu")
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    say(f"reading {len(lines)} runs of {folder}")
    graphs: dict[tuple[str, int], Graph] = {}
    captured: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for file in (folder / "graphs").glob("*.graph"):
        name, _, batch = file.stem.rpartition("-")
        captured[name].append((int(batch), file))
    examples = []
    for r in sorted(lines, key=lambda r: str(r["run"])):
        name, batch = r["architecture"].removeprefix("box/"), r["batch"]
        if (name, batch) not in graphs:
            (small, first), (large, second) = sorted(captured[name])
            graphs[name, batch] = extend(Graph.load(first), Graph.load(second), sizes=(small, large), to=batch)
        query = Query(
            architecture=r["architecture"], plan=Plan.parse(r["plan"]), graph=graphs[name, batch],
            settings={"rate": f"{r['mbit']}e6", "run": r["run"], "device": "shared by the workers"},
            cluster=emulated_cluster(r["workers"], r["mbit"] * 1e6 / 8, "h200"), batch=float(batch * r["workers"]),
            dataset=dataset_of(graphs[name, batch]),
        )  # fmt: skip
        measured = {STEP_TIME: r["step_time"], **{t: r[t] for t in SHARED_TARGETS if t in r}}
        examples.append(Example(query=query, measured=measured, cost=r["steps"] * r["step_time"]))
    return examples


def h200_resources(path: Path, say: Say = quiet, most: int | None = None) -> list[Example]:
    """Steps of one H200 with what they do to the device and its memory; a single device has no network to speak of."""
    from foretell.store.store import Store

    rows = {s.id: s for s in Store(path).steps("kind = 'step' AND outcome = 'ok' AND world_size = 1")}
    examples = []
    for e in h200_steps(path, say, most).items:
        row = rows[e.query.settings["record"]]
        found = {t: float(value) for t in H200_TARGETS if (value := getattr(row, t)) is not None}
        examples.append(replace(e, measured={**e.measured, **found}))
    return examples
