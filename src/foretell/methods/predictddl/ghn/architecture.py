"""A network as the hypernetwork reads it: nodes of fifteen kinds, what they hear of each other, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

KINDS: Final = (
    "max_pool", "avg_pool", "sep_conv", "dil_conv", "conv", "msa", "cse", "sum", "concat", "input", "bias", "bn", "ln",
    "pos_enc", "glob_avg",
)  # fmt: skip
REACH: Final = 50  # virtual edges join nodes whose shortest path is at most this long
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator; its inputs are earlier nodes. Linear layers are convolutions of one pixel."""

    kind: str
    inputs: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()  # of its parameter: out, in, height, width; or channels; empty: it has none
    work: tuple[float, ...] = ()  # logarithms of what it does, for a reader that learns cost
    stride: int = 1
    activate: bool = False  # its input goes through a ReLU first
    classes: bool = False  # it is the last layer, whose outputs are the classes


Architecture = tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Which nodes hear of which: `source` is upstream of `target`, `distance` edges away by the shortest path."""

    count: int
    source: Ints
    target: Ints
    distance: Ints
    depth: Ints  # edges on the longest path from a start
    height: Ints  # edges on the longest path to an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Nodes that are updated together, because none is upstream of another, and the messages they hear."""

    nodes: Ints
    message: Ints  # row of the message: a node's own number, or `count` more where it travels a virtual edge
    place: Ints  # which of `nodes` hears it
    weight: Floats  # 1 / distance


def paths(architecture: Sequence[Node], reach: int = REACH) -> Paths:
    count = len(architecture)
    depth, height = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    away = np.full((count, count), np.inf, dtype=np.float32)  # [at, from]: a node's inputs come before it
    for at, node in enumerate(architecture):
        away[at, at] = 0
        for before in node.inputs:
            np.minimum(away[at, :at], away[before, :at] + 1, out=away[at, :at])
        depth[at] = max((depth[before] + 1 for before in node.inputs), default=0)
    for at in range(count - 1, -1, -1):
        for before in architecture[at].inputs:
            height[before] = max(height[before], height[at] + 1)
    source, target = np.nonzero(((away > 0) & (away <= reach)).T)
    hops = away[target, source].astype(np.int64)
    return Paths(count=count, source=source, target=target, distance=hops, depth=depth, height=height)


def side_by_side(batch: Sequence[Paths]) -> Paths:
    """Several networks as one, their nodes numbered one after another."""
    firsts = np.cumsum([0, *(p.count for p in batch)])
    names = ("source", "target", "distance", "depth", "height")
    whole = {name: np.concatenate([getattr(p, name) for p in batch]) for name in names}
    moved = np.repeat(firsts[:-1], [len(p.source) for p in batch])
    return Paths(count=int(firsts[-1]), **whole | {n: whole[n] + moved for n in ("source", "target")})


def waves(batch: Sequence[Paths]) -> tuple[list[Wave], list[Wave]]:
    """The forward and the backward traversal of several networks at once."""
    p = side_by_side(batch)
    return (
        _waves(p.depth, p.source, p.target, p.distance, p.count),
        _waves(p.height, p.target, p.source, p.distance, p.count),
    )


def _waves(level: Ints, sender: Ints, hearer: Ints, distance: Ints, count: int) -> list[Wave]:
    message = sender + count * (distance > 1)
    weight = (1 / distance).astype(np.float32)
    of_edge = level[hearer]
    order, nodes = np.argsort(of_edge, kind="stable"), np.argsort(level, kind="stable")
    steps = np.arange(int(level.max(initial=0)) + 2)
    edge_ends, node_ends = np.searchsorted(of_edge[order], steps), np.searchsorted(level[nodes], steps)
    place = np.empty(count, dtype=np.int64)
    found = []
    for step in steps[:-1]:
        those = nodes[node_ends[step] : node_ends[step + 1]]
        edges = order[edge_ends[step] : edge_ends[step + 1]]
        place[those] = np.arange(len(those))
        found.append(Wave(nodes=those, message=message[edges], place=place[hearer[edges]], weight=weight[edges]))
    return found
