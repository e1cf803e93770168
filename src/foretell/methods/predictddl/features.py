"""What PredictDDL adds to an embedding: the workload (batch, resolution, work), the plan and the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from foretell.cost.flops import total_flops
from foretell.graph import Graph
from foretell.methods.protocol import Query
from foretell.methods.surroundings import surroundings

Floats = npt.NDArray[np.float64]
NO_GRAPH = "the source does not say which network was run"


def graphs_of(queries: Sequence[Query]) -> list[Graph]:
    return [query.graph for query in queries if query.graph is not None]


def table(queries: Sequence[Query], *, work: bool = True) -> Floats:
    """A row per query that has a graph; without `work` it has nothing of what the network does, only what surrounds it."""
    rows = [_row(q, q.graph, work) for q in queries if q.graph is not None]
    return np.array(rows, dtype=np.float64)


def _row(query: Query, graph: Graph, work: bool) -> list[float]:
    """The request and the cluster, as its collector sees it; and of the network its inputs, layout and work."""
    shapes = [t.layout.shape for t in graph.tensors if graph.storages[t.storage].role == "input"]
    resolution = max((shape[-1] for shape in shapes if shape), default=1)
    around = [*surroundings(query).values(), math.log2(max(resolution, 1)), float(_channels_last(graph))]
    return [*around, *_work(graph)] if work else around


def _work(graph: Graph) -> list[float]:
    """What a network's step does on one device."""
    sizes = (graph.bytes_of("parameter"), graph.bytes_of("activation"), len(graph.ops))
    return [math.log2(amount) if amount > 0 else 0.0 for amount in (total_flops(graph), *sizes)]


def _channels_last(graph: Graph) -> bool:
    """Whether the first convolution's kernel lies in memory with its channels innermost."""
    kernel = next((op.signature.inputs[1] for op in graph.ops if op.signature.name == "aten.convolution"), None)
    return kernel is not None and len(kernel.shape) == 4 and kernel.strides[1] == 1 and kernel.shape[2] > 1
