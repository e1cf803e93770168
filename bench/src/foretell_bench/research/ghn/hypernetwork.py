"""GHN-2: a network's graph goes in, weights for it come out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from foretell.methods.predictddl.ghn.architecture import Architecture, Node, Paths
from foretell.methods.predictddl.ghn.encoder import TRAINED, WIDTH, Encoder, Shapes, made_as, weights_of

_TILE: Final = 32  # channels that are generated; wider layers repeat them
_SIDE: Final = 8  # pixels that are generated; smaller kernels are cut from the middle
_CLASSES: Final = 10


class Hypernetwork(nn.Module):
    """The encoder, and a decoder that writes each node's parameter from its state."""

    def __init__(self, width: int = WIDTH, shapes: Shapes = "log") -> None:
        super().__init__()
        self.encoder = Encoder(width, shapes)
        self.pixels = nn.Sequential(nn.Linear(width, width * _SIDE * _SIDE), nn.ReLU())
        self.channels = nn.Sequential(nn.Conv2d(width, 64, 1), nn.ReLU(), nn.Conv2d(64, _TILE * _TILE, 1))
        self.classes = nn.Linear(_TILE, _CLASSES)
        self.vectors = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2 * _TILE))

    def forward(self, batch: Sequence[Architecture], known: Sequence[Paths] | None = None) -> list[dict[int, Tensor]]:
        """For each network its weights, by node."""
        states = self.encoder(batch, known).split([len(architecture) for architecture in batch])
        return [self._weights(architecture, own) for architecture, own in zip(batch, states, strict=True)]

    def _weights(self, architecture: Architecture, states: Tensor) -> dict[int, Tensor]:
        kernels = [i for i, node in enumerate(architecture) if len(node.shape) == 4 and node.kind != "input"]
        pixels = self.pixels(states[kernels]).view(-1, self.encoder.width, _SIDE, _SIDE)
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


def load(path: Path = TRAINED) -> Hypernetwork:
    """The hypernetwork as it was trained."""
    weights = weights_of(path)
    prefix = "encoder."
    network = Hypernetwork(*made_as({n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}))
    network.load_state_dict(weights)
    return network.eval()
