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
from foretell.cost.roofline import Price, on_tf32, peak_name, price_ops
from foretell.graph import ITEM_BYTES, Graph, Layout, Op, Signature
from foretell.hardware import Device
from foretell.methods.graphs import data_flow
from foretell.methods.protocol import Query
from foretell.methods.scaledl.ranks import Exchange, Rank, rank_of
from foretell.methods.surroundings import surroundings
from foretell.precision import HALF_DTYPES
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
    communicates: bool = False  # a collective: its time is its bytes and its link's, whatever layers learn

    @property
    def numbers(self) -> str:
        """What it computes in, for models that have a rate for each."""
        return "16 bits" if self.values["half"] else "tf32" if self.values["tf32"] else "32 bits"

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
    of_op: Ints  # the layer of each op of the rank's graph; -1: no kernel
    times: Floats  # runs of each op of the rank's graph
    around: Floats  # precision, batch, plan and cluster
    waiting: float  # for other stages of a pipeline, as a part of what it does

    @property
    def shares(self) -> bool:
        """Whether it has anything to do with other ranks."""
        return self.waiting > 0 or any(layer.communicates for layer in self.layers)


def sheet_of(query: Query) -> Sheet:
    """The sheet of a query that has a graph: of what its busiest rank runs."""
    assert query.graph is not None
    return query.graph.remember((Sheet, query.plan, query.cluster, query.batch), lambda: _read(query))


def _read(query: Query) -> Sheet:
    assert query.graph is not None
    device = min(query.cluster.device_kinds, key=lambda d: d.peak("bf16"))  # the others wait for the slowest
    rank = rank_of(query.graph, query.plan, query.cluster, device)
    layers, of_op = _layers(rank, device, query.plan.devices)
    kernels = np.flatnonzero(of_op >= 0)
    pairs = np.array(data_flow(rank.graph, kernels.tolist()), dtype=np.int64).reshape(-1, 2)
    flow = np.searchsorted(kernels, pairs)
    nodes, runs = [*of_op[kernels].tolist()], [rank.runs[i] for i in kernels]
    for exchange in rank.exchanges:
        flow = np.concatenate([flow, _joined(exchange, kernels, len(nodes))])
        nodes.append(len(layers))
        runs.append(exchange.runs)
        layers.append(_exchanged(exchange, device))
    layer, (source, target) = np.array(nodes, dtype=np.int64), flow.T
    first, member = _classes(layer, source, target)
    place = np.full(len(layer), -1)
    place[first] = np.arange(len(first))
    into, outof = place[target] >= 0, place[source] >= 0
    return Sheet(
        layers=layers,
        layer=layer[first],
        runs=np.bincount(member, runs, len(first)).astype(np.float64),
        before=np.stack([member[source[into]], place[target[into]]]),
        after=np.stack([member[target[outof]], place[source[outof]]]),
        of_op=of_op,
        times=np.array(rank.runs),
        around=np.array([*surroundings(query).values()]),
        waiting=rank.waiting,
    )


def _layers(rank: Rank, device: Device, workers: int) -> tuple[list[Layer], Ints]:
    """The distinct layers of a rank's ops, and the layer of each op."""
    graph = rank.graph
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
                    op, price, parameters, device, on_tf32(op.signature.name, graph.precision, device), workers
                )
                numbers[key] = alike.setdefault(layer.key, len(layers))
                layers += [layer] * (numbers[key] == len(layers))
            of_op[i] = numbers[key]
    return layers, of_op


def _joined(exchange: Exchange, kernels: Ints, node: int) -> Ints:
    """From the last kernel before its data is ready, and to the first that needs them."""
    before = int(np.searchsorted(kernels, exchange.after, side="right")) - 1
    after = int(np.searchsorted(kernels, exchange.before))
    joined = [(before, node)] if before >= 0 else []
    joined += [(node, after)] if after < len(kernels) else []
    return np.array(joined, dtype=np.int64).reshape(-1, 2)


def _exchanged(exchange: Exchange, device: Device) -> Layer:
    """A collective as a layer: no kind has models of it, so its time is by its bytes and its link."""
    nbytes = _log(exchange.nbytes)
    values = dict.fromkeys(GENERAL, 0.0) | {
        "read": nbytes, "written": nbytes, "memory": _log(exchange.ideal * 1e9), "workers": _log(exchange.size),
        "link": math.log(exchange.bandwidth), "peak": math.log(device.peak("bf16")), "bandwidth": math.log(device.bandwidth),
    }  # fmt: skip
    kind = f"{exchange.kind}, communication"
    return Layer(kind, exchange.kind, exchange.ideal, 0.0, float(exchange.nbytes), values, communicates=True)


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


def _layer(op: Op, price: Price, parameters: int, device: Device, tf32: bool, workers: int) -> Layer:
    s, described = op.signature, describe(op.signature, device, tf32=tf32)
    peak = device.peak(peak_name(s, tf32=tf32))
    flops, traffic = price.work.flops, float(price.work.traffic)
    values = _general(s, parameters) | {
        "flops": _log(flops), "arithmetic": _log(flops / peak * 1e9), "memory": _log(traffic / device.bandwidth * 1e9),
        "peak": math.log(peak), "bandwidth": math.log(device.bandwidth), "tf32": float(tf32),
        "workers": _log(workers), "link": 0.0,
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
        "half": float(largest.dtype in HALF_DTYPES),
        "strided": float(any(density(x) in (0.0, 3.0) for x in sides[:6])), "channels last": float(density(largest) == 2.0),
    }  # fmt: skip
