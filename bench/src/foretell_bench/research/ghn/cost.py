"""The encoder of the hypernetwork, with ATen operators for kinds, trained to predict what a step costs.

Its gated updates go in rounds, all nodes at once, where GHN-2 goes node by node: virtual edges reach far enough, and
hundreds of operators deep a traversal would cost more than it brings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from foretell.cost.flops import flops
from foretell.graph import Graph, Op
from foretell.methods.predictddl.ghn.architecture import Architecture, paths, side_by_side
from foretell.methods.predictddl.ghn.encoder import GatedGraph, encoded_shape
from foretell.methods.predictddl.ghn.vocabulary import Reader, four, read

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
OTHER: Final = "other"  # stands for an operator that was not there when a network learned
_WORK: Final = 2  # numbers a node has about its work
_POWERS: Final = 40.0  # log2 of operations and bytes is divided by this
_WIDTH: Final = 32
_ROUNDS: Final = 2
_REACH: Final = 2  # of virtual edges
_PATIENCE: Final = 10  # epochs without a better one
_RATE: Final = 3e-3
_DECAY: Final = 1e-2


def read_operators(graph: Graph) -> Architecture:
    """A step's network with a node for every forward operator that computes something."""
    return graph.remember("operators of a hypernetwork", lambda: read(graph, _as_operator))


def _as_operator(reader: Reader, op: Op, sources: tuple[int, ...]) -> int | None:
    signature, tensors = op.signature, reader.graph.tensors
    read_storages = {tensors[i].storage for i in op.inputs}
    is_view = not signature.mutates and all(tensors[i].storage in read_storages for i in op.outputs)
    if is_view or not signature.outputs:
        return None
    traffic = sum(layout.nbytes for layout in (*signature.inputs, *signature.outputs))
    work = (math.log2(1 + flops(signature)) / _POWERS, math.log2(1 + traffic) / _POWERS)
    return reader.add(signature.name, sources, four(signature.outputs[0].shape), work)


def renamed(architecture: Architecture, known: frozenset[str]) -> Architecture:
    """With operators that are not known called `other`."""
    return tuple(node if node.kind in known else replace(node, kind=OTHER) for node in architecture)


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Different networks as one set of nodes and edges, and which of them each row is about."""

    kind: Tensor
    sizes: Tensor
    edges: tuple[tuple[Tensor, Tensor, Tensor], ...]  # downstream and upstream: message row, hearer, weight
    network: Tensor  # of each node
    count: int
    row: Tensor

    @classmethod
    def of(cls, graphs: Sequence[Graph], kinds: Sequence[str]) -> Networks:
        different = list({id(graph): graph for graph in graphs}.values())
        place = {id(graph): i for i, graph in enumerate(different)}
        number = {kind: i for i, kind in enumerate(kinds)}
        read: list[Architecture] = [renamed(read_operators(graph), frozenset(kinds)) for graph in different]
        p = side_by_side([paths(architecture, _REACH) for architecture in read])
        far, weight = (p.distance > 1) * p.count, torch.tensor(1 / p.distance, dtype=torch.float32)[:, None]
        ways = ((p.source, p.target), (p.target, p.source))
        return cls(
            kind=torch.tensor([number[node.kind] for a in read for node in a]),
            sizes=torch.tensor([[*encoded_shape(n.shape), *(n.work or (0.0,) * _WORK)] for a in read for n in a]),
            edges=tuple((torch.tensor(by + far), torch.tensor(to), weight) for by, to in ways),
            network=torch.repeat_interleave(torch.arange(len(read)), torch.tensor([len(a) for a in read])),
            count=len(read),
            row=torch.tensor([place[id(graph)] for graph in graphs]),
        )


class CostNetwork(nn.Module):
    """What a linear model leaves over, from the mean of node states and the features of workload and cluster."""

    def __init__(self, kinds: Sequence[str], features: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kinds = tuple(kinds)
        self.kind = nn.Embedding(len(self.kinds), _WIDTH)
        self.shape = nn.Sequential(nn.Linear(4 + _WORK, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH))
        self.graph = GatedGraph(_WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)
        last = nn.Linear(_WIDTH, 1)
        nn.init.zeros_(last.weight)  # it begins as the linear model
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.Linear(_WIDTH + features, _WIDTH), nn.ReLU(), last)

    def forward(self, networks: Networks, features: Floats) -> Tensor:
        states = self.kind(networks.kind) + self.shape(networks.sizes)
        for _ in range(_ROUNDS):
            for message, hearer, weight in networks.edges:
                sent = torch.cat([self.graph.near(states), self.graph.far(states)])
                heard = torch.zeros_like(states).index_add(0, hearer, sent.index_select(0, message) * weight)
                states = self.graph.cell(heard, states)
        states = self.norm(states)
        nodes = torch.bincount(networks.network, minlength=networks.count)[:, None]
        means = states.new_zeros(networks.count, _WIDTH).index_add(0, networks.network, states) / nodes
        known = torch.tensor(features, dtype=torch.float32)
        predicted: Tensor = self.head(torch.cat([means[networks.row], known], dim=1))[:, 0]
        return predicted


def kinds_of(graphs: Sequence[Graph]) -> list[str]:
    """The operators these networks run, and a name for all others."""
    different = {id(graph): graph for graph in graphs}.values()
    return [OTHER, *sorted({node.kind for graph in different for node in read_operators(graph)})]


def train(
    network: CostNetwork, networks: Networks, features: Floats, target: Floats, *, epochs: int, watch: Bools | None
) -> int:
    """Full-batch training; with rows to `watch` it learns from the others and returns after how many epochs those were best."""
    wanted = torch.tensor(target, dtype=torch.float32)
    learns = torch.tensor(~watch if watch is not None else np.ones(len(target), dtype=bool))
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    best, at = float("inf"), 0
    for epoch in range(1, epochs + 1):
        predicted = network(networks, features)
        loss = nn.functional.huber_loss(predicted[learns], wanted[learns], delta=0.2)
        if watch is not None:
            error = float((predicted.detach()[~learns] - wanted[~learns]).abs().mean())
            if error < best:
                best, at = error, epoch - 1
            elif epoch - 1 - at > _PATIENCE:
                break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    network.eval()
    return at if watch is not None else epochs
