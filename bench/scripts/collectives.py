"""Fits how each kind of link performs in collectives, and shows the error on topologies that were held back.

    python bench/scripts/collectives.py DATA [--write]

DATA is a folder of public measurements (docs/internals/data.md). Some systems, or group sizes where a source has one system, are
held back from the fit. `--write` puts the fitted numbers into the catalog: fabrics/*.toml, and latencies of links.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from foretell.cost.collectives import collective_seconds
from foretell.hardware import Cluster, Fabric, Link, Node, Protocol, device, fabric, fabric_of, host, link
from foretell.hardware.catalog import SHIPPED
from foretell.program import Collective, Group
from foretell.store.importers import Row as PublicRow
from foretell.store.importers import public_rows

SIZES_EACH = 24  # of one kind on one topology, over its range
KINDS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
         "alltoall": "all-to-all", "all_to_all": "all-to-all", "send_recv": "send-recv"}  # fmt: skip
FITTED = "fitted by bench/scripts/collectives.py on public measurements of collectives (docs/internals/data.md)"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where something was measured, and the kind of link that decides it."""

    name: str
    fabric: str
    cluster: Cluster
    group: Group
    held_back: bool


@dataclass(frozen=True, kw_only=True)
class Row:
    source: str
    topology: Topology
    collective: Collective
    measured: float

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
        yield Row(source=source, topology=topology, collective=collective, measured=measured)


def nccl(data: Path) -> Iterator[Row]:
    """Inside one node, on four systems; the H200s are held back, and four L40S between two and eight."""
    systems = {
        "a100_sxm": ("a100-80g-sxm", "nvlink-3", "nvswitch", ()),
        "h100_sxm": ("h100-sxm", "nvlink-4", "nvswitch", ()),
        "h200_sxm": ("h200", "nvlink-4", "nvswitch", (2, 4, 8)),
        "l40s": ("l40s", "pcie-4-host", "pcie-host", (4,)),
    }
    halves = [row for row in public_rows(data, "nccl") if row["dtype"] == "half"]  # switches do not add up bytes
    for (system, op, gpus), part in _grouped(halves, "system", "collective", "gpus"):
        name, inside, kind_of_link, held = systems[system]
        topology = Topology(
            name=f"{gpus} {system}", fabric=kind_of_link, cluster=_cluster(name, [gpus], inside), group=Group(size=gpus),
            held_back=gpus in held,
        )  # fmt: skip
        yield from _rows("nccl", topology, KINDS[op], part)


def allreduce_single_node(data: Path) -> Iterator[Row]:
    """Two to eight A100: the sizes of a group that are no power of two are held back."""
    for (gpus,), part in _grouped(public_rows(data, "allreduce_single_node"), "gpus"):
        topology = Topology(
            name=f"{gpus} a100", fabric="nvswitch", cluster=_cluster("a100-80g-sxm", [gpus], "nvlink-3"),
            group=Group(size=gpus), held_back=gpus not in (2, 4, 8),
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
    held_back = {("a100_dgx", 4, 4), ("a100_dgx", 8, 4), ("a100_dgx", 4, 2), ("a100_pairwise_nvlink", 2, 1)}
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
            held_back=(system, workers, each) in held_back,
        )  # fmt: skip
        yield from _rows("collectives_by_topology", topology, KINDS[op], part)


def v100_collectives(data: Path) -> Iterator[Row]:
    """Two, four and eight V100 of a DGX-1; four are held back. all_gather counts one rank's share."""
    rows = [row for row in public_rows(data, "v100_collectives") if row["message_bytes"] > 0]
    for (op, gpus), part in _grouped(rows, "collective", "gpus"):
        topology = Topology(
            name=f"{gpus} v100", fabric="nvlink-mesh", cluster=_cluster("v100-16g-sxm", [gpus], "nvlink-2"),
            group=Group(size=gpus), held_back=gpus == 4,
        )  # fmt: skip
        yield from _rows("v100_collectives", topology, KINDS[op], part, gpus if op == "all_gather" else 1)


@dataclass(frozen=True)
class Fit:
    fabric: Fabric
    latencies: Mapping[str, float]


def fit(start: Fabric, rows: Sequence[Row]) -> Fit:
    """The numbers of one fabric that make estimates and measurements agree, in ratios and robustly."""
    kinds = sorted({row.collective.kind for row in rows})
    switched = start.in_switch is not None
    ways = {way.name: way for row in rows for way in _links(row) if fabric_of(way).name == start.name}
    names = sorted(name for name, way in ways.items() if way.kind == "inside")  # a network's latency is its own
    own = ["efficiency", "knee", "copy"]
    first = [np.log(max(start.startup, 0.1)), start.sharing, np.log(start.through or 1e12)]
    first += [np.log(link(name).latency) for name in names]
    protocols = [start.protocols[kind] for kind in kinds] + ([start.in_switch] if start.in_switch else [])
    for protocol in protocols:
        first += [np.log(max(getattr(protocol, each), 0.05)) for each in own]

    def made(values: np.ndarray) -> Fit:
        startup, sharing = float(np.exp(values[0])), float(values[1]) if start.sharing else 0.0
        through = float(np.exp(values[2])) if start.through else None
        latencies = {name: float(np.exp(v)) for name, v in zip(names, values[3:], strict=False)}
        rest = values[3 + len(names) :].reshape(-1, len(own))
        fitted = [
            Protocol(**dict(zip(own, np.minimum(np.exp(v), [1.4, 1e4, 20.0]).tolist(), strict=True))) for v in rest
        ]
        if through:  # the rest is headers, which is arithmetic
            fitted = [dataclasses.replace(p, efficiency=q.efficiency) for p, q in zip(fitted, protocols, strict=True)]
        in_switch = fitted.pop() if switched else None
        # A kind nobody measured on this link behaves as a gather, or as an all-reduce where there is none either.
        usual = dict(zip(kinds, fitted, strict=True))
        stand_in = usual.get("all-gather") or usual.get("all-reduce") or fitted[0]
        chosen = {kind: usual.get(kind, stand_in) for kind in start.protocols}
        return Fit(
            dataclasses.replace(
                start, startup=startup, sharing=sharing, through=through, protocols=chosen, in_switch=in_switch
            ),
            latencies,
        )

    def off(values: np.ndarray) -> np.ndarray:
        tried = made(values)
        found = [np.log(row.estimate(_fabrics(tried.fabric), tried.latencies) / row.measured) for row in rows]
        return np.concatenate([found, 0.02 * (values - np.array(first))])  # what the rows do not say stays

    # Physics bounds what a fit may say: no link beats its rate, and a hop stays a hop.
    low = [
        np.log(1.0),
        0.0,
        np.log(1e9),
        *[np.log(0.5e-6)] * len(names),
        *np.log([0.1, 0.05, 0.01]).tolist() * len(protocols),
    ]
    high = [
        np.log(30.0),
        3.0,
        np.log(1e13),
        *[np.log(8e-6)] * len(names),
        *np.log([0.98, 300.0, 5.0]).tolist() * len(protocols),
    ]
    first = np.clip(first, np.array(low) + 1e-3, np.array(high) - 1e-3).tolist()
    found = least_squares(off, first, bounds=(low, high), loss="soft_l1", f_scale=0.2, max_nfev=40, diff_step=1e-3)
    return made(found.x)


def _links(row: Row) -> Iterator[Link]:
    cluster = row.topology.cluster
    for node in cluster.nodes[:1]:
        yield node.inside
        if node.inside.beyond:
            yield link(node.inside.beyond)
    if cluster.between:
        yield cluster.between


def _fabrics(fitted: Fabric) -> Callable[[Link], Fabric]:
    cache: dict[str, Fabric] = {}

    def find(way: Link) -> Fabric:
        if way.name not in cache:
            usual = fabric_of(way)
            cache[way.name] = fitted if usual.name == fitted.name else usual
        return cache[way.name]

    return find


def report(rows: Sequence[Row], fits: Mapping[str, Fit]) -> None:
    off: dict[tuple[str, str, str, bool], list[float]] = {}
    for row in rows:
        fitted = fits[row.topology.fabric]
        error = row.estimate(_fabrics(fitted.fabric), fitted.latencies) / row.measured - 1
        key = (row.source, row.topology.fabric, row.topology.name, row.topology.held_back)
        off.setdefault(key, []).append(error)
    print("| source | fabric | topology | held back | median error | mean error | bias |")
    print("|---|---|---|---|---|---|---|")
    for (source, kind, name, held), errors in off.items():
        e = np.array(errors)
        shown = f"{np.median(abs(e)):.1%} | {abs(e).mean():.1%} | {np.median(e):+.1%}"
        print(f"| {source} | {kind} | {name} | {'yes' if held else ''} | {shown} |")
    for held in (False, True):
        e = np.abs(np.concatenate([v for key, v in off.items() if key[3] is held]))
        print(
            f"{'held back' if held else 'fitted on'}: median {np.median(e):.1%}, mean {e.mean():.1%}, {len(e)} points"
        )


def _error(rows: Iterable[Row], fitted: Fit) -> float:
    """Nine of ten are within it, of topologies held back or, where that is more, of those it was fitted on; at least 0.3
    where none was held back."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row.topology.fabric == fitted.fabric.name:
            log = np.log(row.estimate(_fabrics(fitted.fabric), fitted.latencies) / row.measured)
            found[row.topology.held_back].append(abs(log))
    widest = max(float(np.quantile(each, 0.9)) for each in found.values() if each)
    return widest if found[True] else max(widest, 0.3)


def write(fits: Mapping[str, Fit], rows: Sequence[Row]) -> None:
    for name, fitted in fits.items():
        path = SHIPPED / "fabrics" / f"{name}.toml"
        path.write_text(_toml(dataclasses.replace(fitted.fabric, error=_error(rows, fitted))))
        for way, latency in fitted.latencies.items():
            _set_latency(SHIPPED / "links" / f"{way}.toml", latency)


def _toml(fabric: Fabric) -> str:
    lines = [f'title = "{fabric.title}"', f"startup = {fabric.startup:.3g}"]
    if fabric.full_at != 1:
        lines.append(f"full_at = {fabric.full_at:.3g}")
    if fabric.sharing:
        lines.append(f"sharing = {fabric.sharing:.3g}")
    if fabric.ports != "device":
        lines.append(f'ports = "{fabric.ports}"')
    if fabric.through:
        lines.append(f'through = "{fabric.through / 1e9:.3g} GB/s"')
    lines += [f"units = {fabric.units}", f"error = {fabric.error:.3g}", f'source = "{FITTED}; estimate: units"']
    for kind, protocol in fabric.protocols.items():
        lines += ["", f"[{kind}]", *_numbers(protocol)]
    if fabric.in_switch is not None:
        lines += ["", "[in-switch]", *_numbers(fabric.in_switch), f"from = {fabric.in_switch_from}"]
    return "\n".join(lines) + "\n"


def _numbers(protocol: Protocol) -> list[str]:
    return [f"{name} = {getattr(protocol, name):.3g}" for name in ("efficiency", "knee", "copy")]


def _set_latency(path: Path, latency: float) -> None:
    text = re.sub(r'latency = "[^"]*"', f'latency = "{latency * 1e6:.3g} us"', path.read_text())
    text = re.sub(r"estimate: latency[^\"]*", "latency fitted by bench/scripts/collectives.py", text)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="into the catalogue of this checkout")
    options = parser.parse_args()
    sources = (nccl, allreduce_single_node, collectives_by_topology, v100_collectives)
    rows = [row for source in sources for row in source(options.data)]
    fits = {}
    for name in dict.fromkeys(row.topology.fabric for row in rows):
        seen = [row for row in rows if row.topology.fabric == name and not row.topology.held_back]
        fits[name] = fit(fabric(name), seen)
    report(rows, fits)
    if options.write:
        write(fits, rows)


if __name__ == "__main__":
    main()
