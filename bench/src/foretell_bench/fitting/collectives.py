"""Public measurements of collectives as rows: what was measured where, and whether a fit leaves it out.

Some systems, or group sizes where a source has one system, are left out of fits (docs/internals/data.md).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from foretell.cost.collectives import collective_seconds
from foretell.hardware import Cluster, Fabric, Link, Node, device, fabric_of, host, link
from foretell.program import Collective, Group
from foretell.store.importers import Row as PublicRow
from foretell.store.importers import public_rows
from foretell_bench.fitting.published import NVLINK_5, NVSWITCH, PCIE, Published

SIZES_EACH: Final = 24  # of one kind on one topology, over its range
_LAUNCH: Final = 70e-6  # what torch's host takes for one all-reduce in collectives_by_topology: 40 to 66 µs up to 4 MiB
INSIDE: Final[Mapping[str, Sequence[Published]]] = {"nvswitch": NVSWITCH, "nvswitch-5": NVLINK_5, "pcie": PCIE}
KINDS: Final = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
                "alltoall": "all-to-all", "all_to_all": "all-to-all", "send_recv": "send-recv"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where something was measured, and the kind of link that decides it."""

    name: str
    fabric: str
    cluster: Cluster
    group: Group
    left_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    source: str
    topology: Topology
    collective: Collective
    measured: float
    host_bound: bool = False  # the time is of the host that launched it, so it says nothing of the link

    def estimate(self, fabrics: Callable[[Link], Fabric], latencies: Mapping[str, float]) -> float:
        return collective_seconds(self.collective, _with_latencies(self.topology.cluster, latencies), fabrics)


def _with_latencies(cluster: Cluster, latencies: Mapping[str, float]) -> Cluster:
    def changed(way: Link) -> Link:
        return dataclasses.replace(way, latency=latencies[way.name]) if way.name in latencies else way

    nodes = tuple(dataclasses.replace(node, inside=changed(node.inside)) for node in cluster.nodes)
    return dataclasses.replace(cluster, nodes=nodes, between=cluster.between and changed(cluster.between))


def _cluster(device_name: str, counts: Sequence[int], inside: str, between: str | None = None) -> Cluster:
    made = device(device_name)
    nodes = tuple(Node(device=made, count=n, host=host(made.host), inside=link(inside)) for n in counts)
    return Cluster(nodes=nodes, between=link(between) if between else None)


def _grouped(rows: Iterable[PublicRow], *keys: str) -> Iterator[tuple[tuple[Any, ...], list[PublicRow]]]:
    groups: dict[tuple[Any, ...], list[PublicRow]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return iter(sorted(groups.items()))


def _rows(source: str, topology: Topology, kind: str, part: Sequence[PublicRow], times: int = 1) -> Iterator[Row]:
    """Medians of a few sizes, evenly in their logarithm: a source with thousands of sizes weighs no more."""
    sizes = np.array([row["message_bytes"] * times for row in part], dtype=float)
    seconds = np.array([row["seconds"] for row in part])
    bins = np.unique(np.geomspace(max(sizes.min(), 1), sizes.max() + 1, SIZES_EACH + 1))
    place = np.clip(np.digitize(sizes, bins) - 1, 0, SIZES_EACH - 1)
    for bin in np.unique(place):
        within = place == bin
        middle = sorted(sizes[within])[int(within.sum()) // 2]
        collective = Collective(
            kind=kind, nbytes=int(middle), group=topology.group, name="", starts_after=0, waited_for_by=0
        )
        measured = median(seconds[within & (sizes == middle)].tolist())
        launch = kind == "all-reduce" and source == "collectives_by_topology" and len(topology.cluster.nodes) == 1
        host_bound = launch and measured < _LAUNCH
        yield Row(source=source, topology=topology, collective=collective, measured=measured, host_bound=host_bound)


def nccl(data: Path) -> Iterator[Row]:
    """Inside one node, on four systems; the H200s are left out, and four L40S between two and eight."""
    systems = {
        "a100_sxm": ("a100-80g-sxm", "nvlink-3", "nvswitch", ()),
        "h100_sxm": ("h100-sxm", "nvlink-4", "nvswitch", ()),
        "h200_sxm": ("h200", "nvlink-4", "nvswitch", (2, 4, 8)),
        "l40s": ("l40s", "pcie-4-host", "pcie-host", (4,)),
    }
    halves = [row for row in public_rows(data, "nccl") if row["dtype"] == "half"]  # switches do not add up bytes
    for (system, op, gpus), part in _grouped(halves, "system", "collective", "gpus"):
        name, inside, kind_of_link, unseen = systems[system]
        topology = Topology(
            name=f"{gpus} {system}", fabric=kind_of_link, cluster=_cluster(name, [gpus], inside), group=Group(size=gpus),
            left_out=gpus in unseen,
        )  # fmt: skip
        yield from _rows("nccl", topology, KINDS[op], part)


def allreduce_single_node(data: Path) -> Iterator[Row]:
    """Two to eight A100: the sizes of a group that are no power of two are left out."""
    for (gpus,), part in _grouped(public_rows(data, "allreduce_single_node"), "gpus"):
        topology = Topology(
            name=f"{gpus} a100", fabric="nvswitch", cluster=_cluster("a100-80g-sxm", [gpus], "nvlink-3"),
            group=Group(size=gpus), left_out=gpus not in (2, 4, 8),
        )  # fmt: skip
        yield from _rows("allreduce_single_node", topology, "all-reduce", part)


def collectives_by_topology(data: Path) -> Iterator[Row]:
    """NVSwitch, NVLink in pairs, PCIe, and Ethernet between nodes."""
    devices = {"a100_dgx": "a100-80g-sxm", "a100_pairwise_nvlink": "a100-80g-pcie", "a40_pairwise_nvlink": "a40"}
    insides = {
        "a100_dgx": "nvlink-3",
        "a100_pairwise_nvlink": "nvlink-bridge-600",
        "a40_pairwise_nvlink": "pcie-4-host",
    }
    betweens = {"a100_dgx": "eth-100g", "a100_pairwise_nvlink": "eth-25g", "a40_pairwise_nvlink": "eth-25g"}
    unseen = {("a100_dgx", 4, 4), ("a100_dgx", 8, 4), ("a100_dgx", 4, 2), ("a100_pairwise_nvlink", 2, 1)}
    rows = public_rows(data, "collectives_by_topology")
    for (system, op, workers, each), part in _grouped(rows, "system", "collective", "workers", "devices_per_node"):
        nodes = max(workers // each, 1)
        if nodes > 1:
            decides = "tcp"
        else:
            decides = fabric_of(link(insides[system])).name
            decides = "pcie" if decides == "nvlink-pair" and workers > 2 else decides
        # Ports of the large machines belong to a device each; the catalog's Ethernet is one per node.
        cluster = _cluster(devices[system], [each] * nodes, insides[system], betweens[system])
        topology = Topology(
            name=f"{nodes}x{each} {system}", fabric=decides, cluster=cluster, group=Group(size=workers),
            left_out=(system, workers, each) in unseen,
        )  # fmt: skip
        yield from _rows("collectives_by_topology", topology, KINDS[op], part)


def v100_collectives(data: Path) -> Iterator[Row]:
    """Two, four and eight V100 of a DGX-1; four are left out. all_gather counts one rank's share."""
    rows = [row for row in public_rows(data, "v100_collectives") if row["message_bytes"] > 0]
    for (op, gpus), part in _grouped(rows, "collective", "gpus"):
        topology = Topology(
            name=f"{gpus} v100", fabric="nvlink-mesh", cluster=_cluster("v100-16g-sxm", [gpus], "nvlink-2"),
            group=Group(size=gpus), left_out=gpus == 4,
        )  # fmt: skip
        yield from _rows("v100_collectives", topology, KINDS[op], part, gpus if op == "all_gather" else 1)


def published_inside() -> Iterator[Row]:
    """Figures that operators published of links inside nodes."""
    for name, figures in INSIDE.items():
        for each in figures:
            topology = Topology(
                name=each.cluster, fabric=name, cluster=Cluster.parse(each.cluster), group=each.collective.group,
                left_out=False,
            )  # fmt: skip
            yield Row(source=each.source, topology=topology, collective=each.collective, measured=each.seconds)


def measured_rows(data: Path) -> list[Row]:
    """Of all sources in a folder of public measurements, and of single figures that were published."""
    sources = (nccl, allreduce_single_node, collectives_by_topology, v100_collectives)
    return [*(row for source in sources for row in source(data)), *published_inside()]
