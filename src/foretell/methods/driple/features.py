"""A step as Driple's network sees it: ops gathered into at most 100 groups, undirected; or op by op, directed and typed.

A group has three numbers: the elements its ops write, how many ops it has, and how often their operators occur in the
corpus, summed. Groups are communities of the graph, found by the algorithm the release uses (asynchronous fluid
communities). What a group looks like depends on the graph alone; how often operators occur, on the corpus fitted on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.graph import Graph
from foretell.methods.graphs import data_flow

GROUPS: Final = 100
_SEED: Final = 42  # of the release
FEATURES: Final = ("size", "count", "frequency")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The nodes of a graph and what joins them. A directed edge goes from the op that writes to the one that reads."""

    operators: tuple[Mapping[str, int], ...]  # by node: operator → ops
    sizes: tuple[float, ...]  # by node: elements written
    edges: tuple[tuple[int, int], ...]  # each once
    directed: bool

    @property
    def nodes(self) -> int:
        return len(self.sizes)


def coarse(graph: Graph, groups: int = GROUPS) -> Skeleton:
    """The largest connected part of the graph, in as many groups, or op by op where it has fewer."""
    import networkx as nx
    from networkx.algorithms.community import asyn_fluidc

    whole = nx.Graph(data_flow(graph))
    largest = whole.subgraph(max(nx.connected_components(whole), key=len)) if whole else whole
    found = asyn_fluidc(largest, k=groups, seed=_SEED) if len(largest) > groups else ([op] for op in largest)
    # Ops that share no tensor are one group.
    parts = sorted(sorted(part) for part in found) or [list(range(len(graph.ops)))]
    place = {op: number for number, part in enumerate(parts) for op in part}
    pairs = {(min(a, b), max(a, b)) for a, b in ((place[a], place[b]) for a, b in largest.edges) if a != b}
    return Skeleton(
        operators=tuple(Counter(graph.ops[op].signature.name for op in part) for part in parts),
        sizes=tuple(sum(_written(graph, op) for op in part) for part in parts),
        edges=tuple(sorted(pairs)),
        directed=False,
    )


def typed(graph: Graph) -> Skeleton:
    """Op by op, with the direction of every edge."""
    return Skeleton(
        operators=tuple({op.signature.name: 1} for op in graph.ops),
        sizes=tuple(_written(graph, i) for i in range(len(graph.ops))),
        edges=tuple(sorted(data_flow(graph))),
        directed=True,
    )


def corpus(skeletons: Iterable[Skeleton]) -> dict[str, float]:
    """Operator → its share of all ops."""
    counts: Counter[str] = Counter()
    for skeleton in skeletons:
        for node in skeleton.operators:
            counts.update(node)
    total = sum(counts.values())
    return {name: n / total for name, n in sorted(counts.items())}


def node_features(skeleton: Skeleton, frequencies: Mapping[str, float]) -> Floats:
    """Size, count and frequency of every node. Sizes span nine orders of magnitude, so all three go by their logarithm."""
    counts = [sum(node.values()) for node in skeleton.operators]
    often = [sum(n * frequencies.get(name, 0.0) for name, n in node.items()) for node in skeleton.operators]
    return np.log1p(np.array([skeleton.sizes, counts, [1e3 * f for f in often]], dtype=np.float64)).T


def types(skeleton: Skeleton, vocabulary: Sequence[str]) -> list[int]:
    """Of each node, the number of its commonest operator; 0: one that the corpus does not have."""
    numbers = {name: i + 1 for i, name in enumerate(vocabulary)}
    return [numbers.get(max(node, key=lambda name: node[name]), 0) for node in skeleton.operators]


def _written(graph: Graph, op: int) -> float:
    return float(sum(layout.numel for layout in graph.ops[op].signature.outputs))
