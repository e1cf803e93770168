"""The gated graph network of GHN-2: one traversal forward, one backward, each node updated after all it hears of.

The mean of the node states is the network's embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from foretell.errors import InputError
from foretell.methods.predictddl.ghn.architecture import KINDS, Architecture, Paths, Wave, paths, waves

WIDTH: Final = 32
TRAINED: Final = Path(__file__).with_name("digits.safetensors")
_OCTAVES: Final = 8.0  # log2 of a size is divided by this, so that usual ones lie between 0 and 1
_NUMBER: Final = {kind: number for number, kind in enumerate(KINDS)}
_PREFIX: Final = "encoder."  # of its weights in the file of the whole hypernetwork


class GatedGraph(nn.Module):
    """Messages by one perceptron along edges and another along virtual edges, divided by the distance; one GRU cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(width // 2, 8)
        self.near, self.far = (
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU()) for _ in range(2)
        )
        self.cell = nn.GRUCell(width, width)

    def forward(self, states: Tensor, traversals: Sequence[Sequence[Wave]]) -> Tensor:
        for traversal in traversals:
            states = self._traverse(states, traversal)
        return states

    def _traverse(self, states: Tensor, traversal: Sequence[Wave]) -> Tensor:
        count, width = states.shape
        # Written in place, wave by wave: reading rows keeps only their numbers for the gradient, so it stays right.
        sent = states.new_zeros(2 * count, width)
        updated, order = [], []
        for wave in traversal:
            nodes = torch.from_numpy(wave.nodes)
            heard = states.new_zeros(len(nodes), width)
            if len(wave.message):
                messages = sent.index_select(0, torch.from_numpy(wave.message)) * torch.from_numpy(wave.weight)[:, None]
                heard = heard.index_add(0, torch.from_numpy(wave.place), messages)
            new = self.cell(heard, states.index_select(0, nodes))
            sent.index_copy_(0, torch.cat([nodes, nodes + count]), torch.cat([self.near(new), self.far(new)]))
            updated.append(new)
            order.append(nodes)
        return torch.cat(updated).index_select(0, torch.argsort(torch.cat(order)))


class Encoder(nn.Module):
    """Node states: the operator's embedding and its encoded shape, after the gated traversals and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(len(KINDS), WIDTH)
        self.shape = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.graph = GatedGraph(WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> Tensor:
        """States of all nodes, network after network; `known` spares finding the paths again."""
        nodes = [node for architecture in batch for node in architecture]
        kinds = torch.tensor([_NUMBER[node.kind] for node in nodes])
        sizes = torch.tensor([encoded_shape(node.shape) for node in nodes])
        found = known or [paths(architecture) for architecture in batch]
        states: Tensor = self.norm(self.graph(self.kind(kinds) + self.shape(sizes), waves(found)))
        return states

    def embed(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> Tensor:
        """One vector per network: the mean of its node states."""
        states = self(batch, known).split([len(architecture) for architecture in batch])
        return torch.stack([s.mean(dim=0) for s in states])


def encoded_shape(shape: tuple[int, ...]) -> list[float]:
    sides = [*shape, 0, 0, 0, 0][:4]
    return [math.log2(1 + side) / _OCTAVES for side in sides]


def weights_of(path: Path) -> dict[str, Tensor]:
    """Of a whole hypernetwork, as its training saves them."""
    from safetensors.torch import load_file

    if not path.exists():
        raise InputError(
            f"there is no trained hypernetwork in {path}. Train one: python -m foretell_bench.research.ghn.train"
        )
    found: dict[str, Tensor] = load_file(path)
    return found


def load(path: Path = TRAINED) -> Encoder:
    """The encoder as it was trained, ready to read networks."""
    encoder = Encoder()
    own = {name.removeprefix(_PREFIX): w for name, w in weights_of(path).items() if name.startswith(_PREFIX)}
    encoder.load_state_dict(own)
    return encoder.eval()
