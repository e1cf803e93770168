"""What PredictDDL adds to an embedding: the workload (batch, resolution, work) and the cluster, as its collector sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from foretell.cost.flops import total_flops
from foretell.graph import Graph
from foretell.methods.protocol import Query

Floats = npt.NDArray[np.float64]
NO_GRAPH = "the source does not say which network was run"


def graphs_of(queries: Sequence[Query]) -> list[Graph]:
    return [query.graph for query in queries if query.graph is not None]


def table(queries: Sequence[Query]) -> Floats:
    """A row per query that has a graph."""
    rows = [[*_graph(q.graph), *_request(q), *_collect(q, q.graph)] for q in queries if q.graph is not None]
    return np.array(rows, dtype=np.float64)


def _graph(graph: Graph) -> list[float]:
    """What a network's step does on one device."""
    shapes = [t.layout.shape for t in graph.tensors if graph.storages[t.storage].role == "input"]
    resolution = max((shape[-1] for shape in shapes if shape), default=1)
    sizes = (graph.bytes_of("parameter"), graph.bytes_of("activation"), len(graph.ops))
    flags = (graph.training, graph.precision.endswith("16"), graph.precision.startswith("amp"), _channels_last(graph))
    return [*_logs(resolution, total_flops(graph), *sizes), *map(float, flags)]


def _request(query: Query) -> list[float]:
    """Of the job: its batch, and how much of the data it goes through, in parts and in steps where the source says."""
    steps = float(query.settings.get("steps", 1))
    return _logs(query.batch, query.batch / query.plan.dp, query.fraction, steps)


def _collect(query: Query, graph: Graph) -> list[float]:
    """The cluster-resource collector: what the nodes have, the slowest of each where they differ."""
    cluster, nodes = query.cluster, query.cluster.nodes
    precision = graph.precision.removeprefix("amp-")
    inside = min(node.inside.bandwidth for node in nodes) if max(node.count for node in nodes) > 1 else 0.0
    amounts = _logs(
        len(nodes),
        cluster.devices,
        min(node.host.cores for node in nodes),
        min(node.device.memory_bytes for node in nodes),
        min(node.device.peak(precision) for node in nodes),
        min(node.device.bandwidth for node in nodes),
        inside,
        cluster.between_bandwidth or 0.0,
    )
    return [*amounts, float(query.plan.servers), float(query.plan.data_parallel == "dp")]


def _channels_last(graph: Graph) -> bool:
    """Whether the first convolution's kernel lies in memory with its channels innermost."""
    kernel = next((op.signature.inputs[1] for op in graph.ops if op.signature.name == "aten.convolution"), None)
    return kernel is not None and len(kernel.shape) == 4 and kernel.strides[1] == 1 and kernel.shape[2] > 1


def _logs(*amounts: float) -> list[float]:
    return [math.log2(amount) if amount > 0 else 0.0 for amount in amounts]
