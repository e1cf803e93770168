"""The gated graph network of GHN-2: one traversal forward, one backward, each node updated after all it hears of.

The mean of the node states is the network's embedding; their sum, or the mean beside the logarithm of their number, are
others. A shape is encoded by the logarithms of its sides, or looked up side by side in tables, as GHN-2 does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from foretell.errors import InputError, check_choice
from foretell.methods.predictddl.ghn.architecture import KINDS, Architecture, Paths, Wave, paths, waves

WIDTH: Final = 32
Shapes = Literal["log", "lookup"]
Pooling = Literal["mean", "sum", "log-count"]
# Channels and pixels that have an entry of their own in the tables; others share the nearest one's, as in GHN-2.
_CHANNELS: Final = np.array(
    [0, *range(1, 17), 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024]
)
_PIXELS: Final = np.array([0, 1, 2, 3, 4, 5, 7, 8, 11, 14, 16, 32])
TRAINED: Final = Path(__file__).with_name("digits.safetensors")
_OCTAVES: Final = 8.0  # log2 of a size is divided by this, so that usual ones lie between 0 and 1
KIND_NUMBER: Final = {kind: number for number, kind in enumerate(KINDS)}
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
            nodes, message, place, weight = (
                torch.from_numpy(part).to(states.device) for part in (wave.nodes, wave.message, wave.place, wave.weight)
            )
            heard = states.new_zeros(len(nodes), width)
            if len(message):
                heard = heard.index_add(0, place, sent.index_select(0, message) * weight[:, None])
            new = self.cell(heard, states.index_select(0, nodes))
            sent.index_copy_(0, torch.cat([nodes, nodes + count]), torch.cat([self.near(new), self.far(new)]))
            updated.append(new)
            order.append(nodes)
        return torch.cat(updated).index_select(0, torch.argsort(torch.cat(order)))


class ShapeTables(nn.Module):
    """GHN-2's: channels out and in, height and width, each looked up; a quarter of the state for each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.channel, self.pixel = nn.Embedding(len(_CHANNELS), width // 4), nn.Embedding(len(_PIXELS), width // 4)

    def forward(self, sides: Tensor) -> Tensor:
        out, into, height, across = sides.T
        return torch.cat([self.channel(out), self.channel(into), self.pixel(height), self.pixel(across)], dim=1)


class Encoder(nn.Module):
    """Node states: the operator's embedding and its encoded shape, after the gated traversals and a layer norm."""

    def __init__(self, width: int = WIDTH, shapes: Shapes = "log") -> None:
        super().__init__()
        check_choice("shapes", shapes, get_args(Shapes), InputError)
        self.width, self.shapes = width, shapes
        self.kind = nn.Embedding(len(KINDS), width)
        encoded = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width))
        self.shape = ShapeTables(width) if shapes == "lookup" else encoded
        self.graph = GatedGraph(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> Tensor:
        """States of all nodes, network after network; `known` spares finding the paths again."""
        nodes, device = [node for architecture in batch for node in architecture], self.kind.weight.device
        kinds = torch.tensor([KIND_NUMBER[node.kind] for node in nodes], device=device)
        encode = looked_up if self.shapes == "lookup" else encoded_shape
        sizes = torch.tensor([encode(node.shape) for node in nodes], device=device)
        found = known or [paths(architecture) for architecture in batch]
        states: Tensor = self.norm(self.graph(self.kind(kinds) + self.shape(sizes), waves(found)))
        return states

    def embed(
        self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None, pooling: Pooling = "mean"
    ) -> Tensor:
        """One vector per network."""
        states = self(batch, known).split([len(architecture) for architecture in batch])
        return torch.stack([_pooled(s, pooling) for s in states])


def _pooled(states: Tensor, pooling: Pooling) -> Tensor:
    if pooling == "sum":
        return states.sum(dim=0)
    mean = states.mean(dim=0)
    return mean if pooling == "mean" else torch.cat([mean, mean.new_tensor([math.log2(len(states))])])


def looked_up(shape: tuple[int, ...]) -> list[int]:
    """The places of its sides in the tables: of channels for the first two, of pixels for the others."""
    sides = [*shape, 0, 0, 0, 0][:4]
    tables = (_CHANNELS, _CHANNELS, _PIXELS, _PIXELS)
    return [int(np.abs(table - side).argmin()) for table, side in zip(tables, sides, strict=True)]


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
    own = {name.removeprefix(_PREFIX): w for name, w in weights_of(path).items() if name.startswith(_PREFIX)}
    encoder = Encoder(*made_as(own))
    encoder.load_state_dict(own)
    return encoder.eval()


def made_as(weights: Mapping[str, Tensor]) -> tuple[int, Shapes]:
    """The width and the encoding of shapes that weights are of."""
    return weights["kind.weight"].shape[1], "lookup" if "shape.channel.weight" in weights else "log"
