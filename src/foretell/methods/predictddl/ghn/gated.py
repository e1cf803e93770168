"""The gated graph network of GHN-2: one traversal forward, one backward, each node updated after all it hears of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foretell.methods.predictddl.ghn.architecture import Wave


def perceptron(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out), nn.ReLU())


class GatedGraph(nn.Module):
    """Messages by one perceptron along edges and another along virtual edges, divided by the distance; one GRU cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near = perceptron(width, max(width // 2, 8), width)
        self.far = perceptron(width, max(width // 2, 8), width)
        self.cell = nn.GRUCell(width, width)

    def forward(self, states: Tensor, traversals: Sequence[Sequence[Wave]]) -> Tensor:
        for traversal in traversals:
            states = self._traverse(states, traversal)
        return states

    def _traverse(self, states: Tensor, traversal: Sequence[Wave]) -> Tensor:
        count, width = states.shape
        # Written in place, wave by wave: reading rows keeps only their numbers for the gradient, so it stays right.
        told = states.new_zeros(2 * count, width)
        updated, order = [], []
        for wave in traversal:
            nodes = torch.from_numpy(wave.nodes)
            heard = states.new_zeros(len(nodes), width)
            if len(wave.message):
                messages = told.index_select(0, torch.from_numpy(wave.message)) * torch.from_numpy(wave.weight)[:, None]
                heard = heard.index_add(0, torch.from_numpy(wave.place), messages)
            new = self.cell(heard, states.index_select(0, nodes))
            told.index_copy_(0, torch.cat([nodes, nodes + count]), torch.cat([self.near(new), self.far(new)]))
            updated.append(new)
            order.append(nodes)
        return torch.cat(updated).index_select(0, torch.argsort(torch.cat(order)))
