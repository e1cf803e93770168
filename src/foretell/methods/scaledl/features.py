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

from foretell.cost.features import density, inner_run
from foretell.cost.roofline import Price, peak_name, price_ops
from foretell.graph import ITEM_BYTES, Graph, Layout, Op, Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Cluster, Device
from foretell.methods.memo import once
from foretell.methods.protocol import Query
from foretell.plan import Plan
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
    spread: Floats  # what communication is told: `SPREAD`


SPREAD: Final = ("bytes", "workers", "nodes", "link", "ideal", "zero", "servers", "one process")


def sheet_of(query: Query) -> Sheet:
    """The sheet of a query that has a graph."""
    assert query.graph is not None
    return _read(query.graph, query.plan, query.cluster)


@once
def _read(graph: Graph, plan: Plan, cluster: Cluster) -> Sheet:
    device = slowest(cluster)
    spread = _spread(graph, plan, cluster)
    prices = price_ops(graph, device)
    layers: list[Layer] = []
    numbers: dict[tuple[int, str, int], int] = {}
    alike: dict[tuple[object, ...], int] = {}
    of_op = np.full(len(graph.ops), -1, dtype=np.int64)
    for i, (op, price) in enumerate(zip(graph.ops, prices, strict=True)):
        if price.work.kernel:
            parameters = _parameter_bytes(op, graph)
            key = (id(op.signature), op.phase, parameters)
            if key not in numbers:
                layer = _layer(op, price, parameters, device, graph.precision == "tf32", spread)
                numbers[key] = alike.setdefault(layer.key, len(layers))
                layers += [layer] * (numbers[key] == len(layers))
            of_op[i] = numbers[key]
    times = np.array([op.times for op in graph.ops], dtype=np.int64)
    kernels = np.flatnonzero(of_op >= 0)
    source, target = _edges(graph, kernels)
    layer_of, runs = of_op[kernels], times[kernels].astype(np.float64)
    first, member = _classes(layer_of, source, target)
    place = np.full(len(kernels), -1)
    place[first] = np.arange(len(first))
    into, outof = place[target] >= 0, place[source] >= 0
    return Sheet(
        layers=layers, layer=layer_of[first], runs=np.bincount(member, runs, len(first)).astype(np.float64), of_op=of_op, times=times,
        before=np.stack([member[source[into]], place[target[into]]]),
        after=np.stack([member[target[outof]], place[source[outof]]]), spread=spread,
    )  # fmt: skip


def slowest(cluster: Cluster) -> Device:
    """The device that the others wait for."""
    return min(cluster.device_kinds, key=lambda d: d.peak("bf16"))


def _spread(graph: Graph, plan: Plan, cluster: Cluster) -> Floats:
    """What the devices exchange and over what; zeros for one device."""
    workers, nodes = plan.devices, len(cluster.nodes)
    if workers == 1:
        return np.zeros(len(SPREAD))
    link = cluster.between_bandwidth if nodes > 1 else cluster.nodes[0].inside.bandwidth
    assert link is not None
    nbytes = float(graph.bytes_of("parameter")) if graph.training else 0.0
    ideal = 2 * (workers - 1) / workers * nbytes / link
    return np.array([
        _log(nbytes), math.log(workers), math.log(nodes), math.log(link), math.log(ideal + 1e-6), plan.zero,
        plan.servers, float(plan.data_parallel == "dp"),
    ])  # fmt: skip


def _parameter_bytes(op: Op, graph: Graph) -> int:
    stored = {graph.tensors[i].storage for i in op.inputs}
    return sum(graph.storages[s].nbytes for s in stored if graph.storages[s].role == "parameter")


def _edges(graph: Graph, kernels: Ints) -> tuple[Ints, Ints]:
    """From the op that last wrote a storage to the one that reads it: views in between take no time and no place."""
    number = {int(op): i for i, op in enumerate(kernels)}
    writer: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    storage = [t.storage for t in graph.tensors]
    for i, op in enumerate(graph.ops):
        node = number.get(i)
        if node is None:
            continue
        pairs += [(w, node) for w in {writer.get(storage[t], -1) for t in op.inputs} if w >= 0]
        for t in op.outputs:
            writer[storage[t]] = node
        for index in op.signature.mutates:
            writer[storage[op.inputs[index]]] = node
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


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


# Layers.


def _layer(op: Op, price: Price, parameters: int, device: Device, tf32: bool, spread: Floats) -> Layer:
    s, family = op.signature, operator_of(op.signature.name).family
    peak = device.peak(peak_name(s, tf32=tf32))
    flops, traffic = price.work.flops, float(price.work.traffic)
    values = _general(s, parameters) | {
        "flops": _log(flops), "arithmetic": _log(flops / peak * 1e9), "memory": _log(traffic / device.bandwidth * 1e9),
        "peak": math.log(peak), "bandwidth": math.log(device.bandwidth), "tf32": float(tf32),
        "workers": spread[SPREAD.index("workers")], "link": spread[SPREAD.index("link")],
    }  # fmt: skip
    values |= _OWN.get(family, _plain)(s)
    return Layer(f"{family}, {op.phase}", s.name, price.seconds, flops, traffic, values)


def _log(number: float) -> float:
    return math.log(max(number, 1.0))


def _general(s: Signature, parameters: int) -> Values:
    sides = (*s.inputs, *s.outputs)
    first = s.inputs[0] if s.inputs else s.outputs[0] if s.outputs else Layout((), (), "float32")
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


def _plain(s: Signature) -> Values:
    """Elementwise ops and copies: in which order they walk what they read and write."""
    out = s.outputs[0] if s.outputs else s.inputs[0] if s.inputs else Layout((), (), "float32")
    full = [x for x in s.inputs if x.numel == out.numel]
    other = [x for x in full if x.strides != out.strides]
    return {
        "full": float(len(full)), "other order": float(len(other)),
        "run in": _log(min((inner_run(x) for x in full), default=1)), "run out": _log(inner_run(out)),
        "step": _log(max((x.strides[-1] for x in other if x.strides), default=1)),
        "cast": float(bool(s.inputs) and s.inputs[0].dtype != out.dtype), "in place": float(bool(s.mutates)),
    }  # fmt: skip


def _matmul(s: Signature) -> Values:
    a, b = s.inputs[1:3] if operator_of(s.name).kind == "added" else s.inputs[:2]  # what is added comes first
    m, k = (a.shape[-2] if len(a.shape) > 1 else 1), (a.shape[-1] if a.shape else 1)
    n = b.shape[-1] if len(b.shape) > 1 else 1
    return {
        "groups": _log(math.prod(a.shape[:-2])), "m": _log(m), "n": _log(n), "k": _log(k),
        "a by rows": float(bool(a.strides) and a.strides[-1] == 1), "b by rows": float(bool(b.strides) and b.strides[-1] == 1),
        "thin": _log(min(m, n)), "even": float(m % 8 == 0 and n % 8 == 0 and k % 8 == 0),
    }  # fmt: skip


def _convolution(s: Signature) -> Values:
    backward = operator_of(s.name).family == "convolution_backward"
    x, weight, out = (s.inputs[1], s.inputs[2], s.inputs[0]) if backward else (*s.inputs[:2], s.outputs[0])
    groups = _number(s, "groups", 1)
    into, onto = weight.shape[1], weight.shape[0] / groups
    stride, dilation = s.argument("stride"), s.argument("dilation")
    mask = s.argument("output_mask")
    wants = [float(bool(m)) for m in mask] if isinstance(mask, tuple) else [1.0, 1.0, 1.0]
    return {
        "images": _log(x.shape[0]), "into": _log(into), "onto": _log(onto), "groups": _log(groups),
        "window": _log(math.prod(weight.shape[2:])), "tall": _log(weight.shape[2] if len(weight.shape) > 2 else 1),
        "stride": float(max(_ints(stride), default=1)), "dilation": float(max(_ints(dilation), default=1)),
        "in size": _log(math.prod(x.shape[2:])), "out size": _log(math.prod(out.shape[2:])), "width": _log(out.shape[-1]),
        "depthwise": float(groups > 1 and into == 1), "transposed": float(bool(s.argument("transposed"))),
        "dimensions": float(len(weight.shape) - 2), "x channels last": float(density(x) == 2.0),
        "weight channels last": float(density(weight) == 2.0), "even": float(into % 8 == 0 and onto % 8 == 0),
        "wants input": wants[0], "wants weight": wants[1],
    }  # fmt: skip


def _attention(s: Signature) -> Values:
    q, k = s.tensor("query"), s.tensor("key")
    if q is None or k is None:
        return _plain(s)
    mask = s.tensor("attn_bias") or s.tensor("attn_mask")
    return {
        "sequences": _log(q.shape[0]), "heads": _log(q.shape[1]), "queries": _log(q.shape[-2]),
        "keys": _log(k.shape[-2]), "head": _log(q.shape[-1]), "shared": _log(q.shape[1] / max(k.shape[1], 1)),
        "causal": float(bool(s.argument("is_causal"))), "masked": float(mask is not None and mask.numel > 0),
        "dropout": float(bool(s.argument("dropout_p"))),
    }  # fmt: skip


def _norm(s: Signature) -> Values:
    x = s.inputs[1] if operator_of(s.name).family == "norm_backward" and len(s.inputs) > 1 else s.inputs[0]
    channels = x.shape[1] if len(x.shape) > 1 else 1
    width = math.prod(_ints(s.argument("normalized_shape"))) or x.shape[-1]
    return {
        "channels": _log(channels), "positions": _log(math.prod(x.shape[2:])), "width": _log(width),
        "rows": _log(x.numel / max(width, 1)), "groups": _log(_number(s, "group", 1)),
        "trains": float(bool(s.argument("training", True))),
    }  # fmt: skip


def _reduction(s: Signature) -> Values:
    x = s.inputs[0]
    dims = s.argument("dim")
    chosen = _ints(dims) if isinstance(dims, tuple) else (dims,) if isinstance(dims, int) else ()
    axes = {d % len(x.shape) for d in chosen} if x.shape and chosen else set(range(len(x.shape)))
    nearest = min((x.strides[a] for a in axes if x.shape[a] > 1), default=1)
    reduced = math.prod(x.shape[a] for a in axes)
    return {"reduced": _log(reduced), "kept": _log(x.numel / max(reduced, 1)), "step": _log(nearest)}


def _pooling(s: Signature) -> Values:
    x, out = s.inputs[0], s.outputs[0] if s.outputs else s.inputs[0]
    return {
        "window": _log(math.prod(_ints(s.argument("kernel_size")))), "stride": float(max(_ints(s.argument("stride")), default=1)),
        "planes": _log(math.prod(x.shape[:2])), "scale": math.log(max(out.numel, 1) / max(x.numel, 1)),
        "width": _log(x.shape[-1] if x.shape else 1),
    }  # fmt: skip


def _index(s: Signature) -> Values:
    integers = [x for x in s.inputs if not x.dtype.startswith(("float", "bfloat", "complex"))]
    table = max(s.inputs, key=lambda x: x.numel, default=Layout((), (), "float32"))
    return {
        "rows": _log(max((x.numel for x in integers), default=1)), "table rows": _log(table.shape[0] if table.shape else 1),
        "width": _log(table.shape[-1] if table.shape else 1), "indices": float(len(integers)),
        "accumulates": float(bool(s.argument("accumulate"))),
    }  # fmt: skip


def _many(s: Signature) -> Values:
    return {
        "elements": _log(sum(x.numel for x in s.inputs)), "largest": _log(max((x.numel for x in s.inputs), default=1)),
        "chunks": _log(sum(math.ceil(x.numel / 65536) for x in s.inputs)),
    }  # fmt: skip


def _rnn(s: Signature) -> Values:
    x = s.inputs[0]
    length, sequences = (x.shape[1], x.shape[0]) if s.argument("batch_first") else (x.shape[0], x.shape[1])
    return {
        "length": _log(length), "sequences": _log(sequences), "width": _log(x.shape[-1]),
        "hidden": _log(_number(s, "hidden_size", 1)), "layers": _log(_number(s, "num_layers", 1)),
        "both ways": float(bool(s.argument("bidirectional"))), "cell": _number(s, "mode", 2),
    }  # fmt: skip


_OWN: Final = {
    "matmul": _matmul, "convolution": _convolution, "convolution_backward": _convolution, "attention": _attention,
    "attention_backward": _attention, "norm": _norm, "norm_backward": _norm, "reduction": _reduction,
    "pooling": _pooling, "index": _index, "foreach": _many, "rnn": _rnn,
}  # fmt: skip


def _ints(value: object) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return tuple(int(v) for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _number(s: Signature, name: str, default: float) -> float:
    value = s.argument(name)
    return float(value) if isinstance(value, int | float) else default
