"""GHN-2: a network's graph goes in, weights for it come out. The mean of the node states is the network's embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from foretell.errors import InputError
from foretell.methods.predictddl.ghn.architecture import KINDS, REACH, Architecture, Node, Paths, paths, waves
from foretell.methods.predictddl.ghn.gated import GatedGraph

WIDTH: Final = 32
TRAINED: Final = Path(__file__).with_name("digits.safetensors")
_TILE: Final = 32  # channels that are generated; wider layers repeat them
_SIDE: Final = 8  # pixels that are generated; smaller kernels are cut from the middle
_CLASSES: Final = 10
_OCTAVES: Final = 8.0  # log2 of a size is divided by this, so that usual ones lie between 0 and 1


class Encoder(nn.Module):
    """Node states: the operator's embedding and its encoded shape, after the gated traversals and a layer norm."""

    def __init__(self, kinds: Sequence[str] = KINDS, *, width: int = WIDTH, work: int = 0, reach: int = REACH) -> None:
        super().__init__()
        self.kinds = tuple(kinds)
        self.reach = reach
        self.work = work
        self.kind = nn.Embedding(len(self.kinds), width)
        self.shape = nn.Sequential(nn.Linear(4 + work, width), nn.ReLU(), nn.Linear(width, width))
        self.graph = GatedGraph(width)
        self.norm = nn.LayerNorm(width)

    @cached_property
    def _number(self) -> Mapping[str, int]:
        return {kind: number for number, kind in enumerate(self.kinds)}

    def forward(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> Tensor:
        """States of all nodes, network after network; `known` spares finding the paths again."""
        nodes = [node for architecture in batch for node in architecture]
        kinds = torch.tensor([self._number[node.kind] for node in nodes])
        sizes = torch.tensor([[*encoded_shape(node.shape), *(node.work or (0.0,) * self.work)] for node in nodes])
        found = known or [paths(architecture, self.reach) for architecture in batch]
        states: Tensor = self.graph(self.kind(kinds) + self.shape(sizes), waves(found))
        normed: Tensor = self.norm(states)
        return normed

    def embed(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> Tensor:
        """One vector a network: the mean of its node states."""
        states = self(batch, known).split([len(architecture) for architecture in batch])
        return torch.stack([s.mean(dim=0) for s in states])


class Hypernetwork(nn.Module):
    """The encoder, and a decoder that writes each node's parameter from its state."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.pixels = nn.Sequential(nn.Linear(WIDTH, WIDTH * _SIDE * _SIDE), nn.ReLU())
        self.channels = nn.Sequential(nn.Conv2d(WIDTH, 64, 1), nn.ReLU(), nn.Conv2d(64, _TILE * _TILE, 1))
        self.classes = nn.Linear(_TILE, _CLASSES)
        self.vectors = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2 * _TILE))

    def forward(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> list[dict[int, Tensor]]:
        """For each network its weights, by node."""
        states = self.encoder(batch, known).split([len(architecture) for architecture in batch])
        return [self._weights(architecture, own) for architecture, own in zip(batch, states, strict=True)]

    def _weights(self, architecture: Architecture, states: Tensor) -> dict[int, Tensor]:
        kernels = [i for i, node in enumerate(architecture) if len(node.shape) == 4 and node.kind != "input"]
        pixels = self.pixels(states[kernels]).view(-1, WIDTH, _SIDE, _SIDE)
        weights = {i: self._kernel(architecture[i], own) for i, own in zip(kernels, pixels, strict=True)}
        vectors = self.vectors(states)
        for i, node in enumerate(architecture):
            if len(node.shape) == 1:
                gain = node.kind in ("bn", "ln")
                written = _tiled(vectors[i][:_TILE] if gain else vectors[i][_TILE:], node.shape)
                weights[i] = 2 * torch.sigmoid(written / 2) if gain else torch.tanh(0.2 * written)
        return weights

    def _kernel(self, node: Node, pixels: Tensor) -> Tensor:
        _, into, height, width = node.shape
        top, left = (_SIDE - height) // 2, (_SIDE - width) // 2
        block = self.channels(pixels[:, top : top + height, left : left + width]).view(_TILE, _TILE, height, width)
        if node.classes:
            block = self.classes(block.movedim(0, -1)).movedim(-1, 0)
        written = _tiled(block, node.shape)
        if node.kind == "pos_enc":  # a positional encoding is added, not multiplied with
            return written
        scale = 1.0 if into == 1 else 2.0  # GHN-2's: He's for dense kernels, less for depthwise ones
        return written * math.sqrt(scale / (into * height * width))


def _tiled(block: Tensor, shape: tuple[int, ...]) -> Tensor:
    repeats = [-(-wanted // there) for wanted, there in zip(shape, block.shape, strict=True)]
    return block.repeat(repeats)[tuple(slice(0, wanted) for wanted in shape)]


def encoded_shape(shape: tuple[int, ...]) -> list[float]:
    sides = [*shape, 0, 0, 0, 0][:4]
    return [math.log2(1 + side) / _OCTAVES for side in sides]


def load(path: Path = TRAINED) -> Hypernetwork:
    """The hypernetwork as it was trained, ready to read networks."""
    from safetensors.torch import load_file

    if not path.exists():
        raise InputError(
            f"there is no trained hypernetwork in {path}. Train one: python -m foretell.methods.predictddl.ghn.train"
        )
    network = Hypernetwork()
    network.load_state_dict(load_file(path))
    return network.eval()
