"""Steps as after-ScaleDL reads them: ops as layers with log features, and the directed graph they form.

Two ops whose neighbourhoods look alike for as many rounds as messages are passed end in the same state, whatever the
network's weights. So a step is kept as classes of such ops with how often they run, which loses nothing and makes a
network over thousands of ops cheap: the twelve equal blocks of a transformer are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import density, describe
from foretell.cost.roofline import Price, peak_name, price_ops
from foretell.graph import ITEM_BYTES, Graph, Layout, Op, Signature
from foretell.graph.operators import on_tf32
from foretell.hardware import Cluster, Device
from foretell.methods.graphs import data_flow
from foretell.methods.protocol import Query
from foretell.plans import Plan
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Values = dict[str, float]
FLOOR: Final[Seconds] = 2e-6  # a kernel that has next to nothing to do
ROUNDS: Final = 3  # of message passing that classes of ops can bear
GENERAL: Final = (  # what every kind has; the network sees these, a kind of layer its own beside them
    "flops", "read", "written", "parameters", "arithmetic", "memory", "peak", "bandwidth", "workers", "link",
    "batch", "first", "out", "last", "rank", "inputs", "item", "out item", "half", "tf32", "strided", "channels last",
)  # fmt: skip
COMMUNICATION: Final = ("bytes", "workers", "nodes", "link", "ideal", "zero", "servers", "one process")
# Of how our own models describe an op: what knows the device's units and caches is not of a layer, the rest is there already.
_NOT_OF_A_LAYER: Final = ("wave", "fill", "edge", "chunk", "in_cache", "copied", "split_k", "balance", "skipped")
_THERE: Final = frozenset(("read", "written", "arithmetic", "memory", "inputs", "rank", "first_numel", "first_item",
                           "out_numel", "out_item", "first_floats", "outputs", "align"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """A distinct op on a device: its kind, and the logarithms a regressor sees of it."""

    kind: str  # family of operators and phase, like `matmul, backward`: forward and backward have models of their own
    operator: str
    roofline: Seconds
    flops: float
    traffic: float
    values: Values

    @property
    def key(self) -> tuple[object, ...]:
        """What its model sees of it."""
        return (self.kind, self.operator, *self.values.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A step: its classes of ops, how often each runs, and who hands data to whom."""

    layers: Sequence[Layer]
    layer: Ints  # of each class
    runs: Floats  # of each class, in a step
    before: Ints  # 2 × edges: from a producer to its consumer
    after: Ints  # 2 × edges: back from a consumer to its producer
    of_op: Ints  # the layer of each op of the graph; -1: no kernel
    times: Ints  # runs of each op of the graph
    communication: Floats  # what the devices exchange, and over what: `COMMUNICATION`


def sheet_of(query: Query) -> Sheet:
    """The sheet of a query that has a graph."""
    assert query.graph is not None
    asked = (query.graph, query.plan, query.cluster)
    return query.graph.remember((Sheet, *asked[1:]), lambda: _read(*asked))


def _read(graph: Graph, plan: Plan, cluster: Cluster) -> Sheet:
    device = min(cluster.device_kinds, key=lambda d: d.peak("bf16"))  # the others wait for the slowest
    communication = _communication(graph, plan, cluster)
    layers: list[Layer] = []
    numbers: dict[tuple[int, str, int], int] = {}
    alike: dict[tuple[object, ...], int] = {}
    of_op = np.full(len(graph.ops), -1, dtype=np.int64)
    for i, (op, price) in enumerate(zip(graph.ops, price_ops(graph, device), strict=True)):
        if price.work.kernel:
            parameters = _parameter_bytes(op, graph)
            key = (id(op.signature), op.phase, parameters)
            if key not in numbers:
                layer = _layer(
                    op, price, parameters, device, on_tf32(op.signature.name, graph.precision), communication
                )
                numbers[key] = alike.setdefault(layer.key, len(layers))
                layers += [layer] * (numbers[key] == len(layers))
            of_op[i] = numbers[key]
    times = np.array([op.times for op in graph.ops], dtype=np.int64)
    kernels = np.flatnonzero(of_op >= 0)
    source, target = np.searchsorted(kernels, np.array(data_flow(graph, kernels.tolist())).reshape(-1, 2).T)
    first, member = _classes(of_op[kernels], source, target)
    place = np.full(len(kernels), -1)
    place[first] = np.arange(len(first))
    into, outof = place[target] >= 0, place[source] >= 0
    return Sheet(
        layers=layers,
        layer=of_op[kernels][first],
        runs=np.bincount(member, times[kernels], len(first)).astype(np.float64),
        before=np.stack([member[source[into]], place[target[into]]]),
        after=np.stack([member[target[outof]], place[source[outof]]]),
        of_op=of_op,
        times=times,
        communication=communication,
    )


def _communication(graph: Graph, plan: Plan, cluster: Cluster) -> Floats:
    """Zeros for one device."""
    workers, nodes = plan.devices, len(cluster.nodes)
    if workers == 1:
        return np.zeros(len(COMMUNICATION))
    link = cluster.between_bandwidth if nodes > 1 else cluster.nodes[0].inside.bandwidth
    assert link is not None
    nbytes = float(graph.bytes_of("parameter")) if graph.training else 0.0
    ideal = 2 * (workers - 1) / workers * nbytes / link
    sizes = (_log(nbytes), math.log(workers), math.log(nodes), math.log(link), math.log(ideal + 1e-6))
    return np.array([*sizes, plan.zero, plan.servers, float(plan.data_parallel == "dp")])


def _parameter_bytes(op: Op, graph: Graph) -> int:
    stored = {graph.tensors[i].storage for i in op.inputs}
    return sum(graph.storages[s].nbytes for s in stored if graph.storages[s].role == "parameter")


def _classes(layer: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """(the first op of each class, the class of each op): equal layers whose neighbourhoods are equal, `ROUNDS` deep."""
    colour = _mixed(layer.astype(np.uint64))
    for _ in range(ROUNDS):
        before, after = np.zeros_like(colour), np.zeros_like(colour)
        np.add.at(before, target, _mixed(colour[source]))  # a sum of hashes: a multiset's
        np.add.at(after, source, _mixed(colour[target] + np.uint64(1)))
        colour = _mixed(colour + _mixed(before) * np.uint64(3) + _mixed(after) * np.uint64(5))
    _, first, member = np.unique(colour, return_index=True, return_inverse=True)
    return first, member


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _layer(op: Op, price: Price, parameters: int, device: Device, tf32: bool, communication: Floats) -> Layer:
    s, described = op.signature, describe(op.signature, device, tf32=tf32)
    peak = device.peak(peak_name(s, tf32=tf32))
    flops, traffic = price.work.flops, float(price.work.traffic)
    values = _general(s, parameters) | {
        "flops": _log(flops), "arithmetic": _log(flops / peak * 1e9), "memory": _log(traffic / device.bandwidth * 1e9),
        "peak": math.log(peak), "bandwidth": math.log(device.bandwidth), "tf32": float(tf32),
        "workers": communication[COMMUNICATION.index("workers")], "link": communication[COMMUNICATION.index("link")],
    }  # fmt: skip
    own = {
        f"own {name}": value
        for name, value in described.values.items()
        if name not in _THERE and not any(word in name for word in _NOT_OF_A_LAYER)
    }
    return Layer(f"{described.family}, {op.phase}", s.name, price.seconds, flops, traffic, values | own)


def _log(number: float) -> float:
    return math.log(max(number, 1.0))


def _general(s: Signature, parameters: int) -> Values:
    sides = (*s.inputs, *s.outputs)
    first = sides[0] if sides else Layout((), (), "float32")
    out = s.outputs[0] if s.outputs else first
    largest = max(sides, key=lambda x: x.numel, default=first)
    return {
        "read": _log(sum(x.distinct_bytes for x in s.inputs)), "written": _log(sum(x.distinct_bytes for x in s.outputs)),
        "parameters": _log(parameters), "batch": _log(first.shape[0] if first.shape else 1), "first": _log(first.numel),
        "out": _log(out.numel), "last": _log(out.shape[-1] if out.shape else 1), "rank": float(len(first.shape)),
        "inputs": _log(len(s.inputs)), "item": _log(ITEM_BYTES[first.dtype]), "out item": _log(ITEM_BYTES[out.dtype]),
        "half": float(largest.dtype in ("bfloat16", "float16")),
        "strided": float(any(density(x) in (0.0, 3.0) for x in sides[:6])), "channels last": float(density(largest) == 2.0),
    }  # fmt: skip
