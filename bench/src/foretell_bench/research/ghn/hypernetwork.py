"""GHN-2: a network's graph goes in, weights for it come out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from foretell.methods.predictddl.ghn.architecture import Architecture, Node, Paths
from foretell.methods.predictddl.ghn.encoder import TRAINED, WIDTH, Encoder, Shapes, made_as, weights_of

PICTURES: Final = Path(__file__).parents[4] / "data" / "ghn" / "pictures.safetensors"  # trained by `together`
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
        return [self.decode(architecture, own) for architecture, own in zip(batch, states, strict=True)]

    def decode(self, architecture: Architecture, states: Tensor) -> dict[int, Tensor]:
        """A network's weights by node; kernels of one size are written together."""
        by_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, node in enumerate(architecture):
            if len(node.shape) == 4 and node.kind != "input":
                by_size[node.shape[2:]].append(i)
        weights: dict[int, Tensor] = {}
        for (height, width), nodes in by_size.items():
            top, left = (_SIDE - height) // 2, (_SIDE - width) // 2
            chosen = states.index_select(0, torch.tensor(nodes).to(states.device, non_blocking=True))
            pixels = self.pixels(chosen).view(-1, self.encoder.width, _SIDE, _SIDE)
            written = self.channels(pixels[:, :, top : top + height, left : left + width])
            scales = torch.tensor([1.0 if (n := architecture[i]).classes else _scale(n) for i in nodes])
            written = written.view(-1, _TILE, _TILE, height, width) * scales.to(states.device, non_blocking=True).view(
                -1, 1, 1, 1, 1
            )
            for i, block in zip(nodes, written.unbind(), strict=True):
                if architecture[i].classes:
                    block = self.classes(block.movedim(0, -1)).movedim(-1, 0) * _scale(architecture[i])
                weights[i] = _tiled(block, architecture[i].shape)
        return weights | self._vectors(architecture, states)

    def _vectors(self, architecture: Architecture, states: Tensor) -> dict[int, Tensor]:
        gains, biases = self.vectors(states).split(_TILE, dim=1)
        both = ((2 * torch.sigmoid(gains / 2)).unbind(), torch.tanh(0.2 * biases).unbind())
        return {
            i: _tiled(both[node.kind not in ("bn", "ln")][i], node.shape)
            for i, node in enumerate(architecture)
            if len(node.shape) == 1
        }


def _scale(node: Node) -> float:
    """GHN-2's: He's for dense kernels, less for depthwise ones; a positional encoding is added, not multiplied with."""
    _, into, height, width = node.shape
    return 1.0 if node.kind == "pos_enc" else math.sqrt((1.0 if into == 1 else 2.0) / (into * height * width))


def _tiled(block: Tensor, shape: tuple[int, ...]) -> Tensor:
    block = block[tuple(slice(0, wanted) for wanted in shape)]
    if block.shape == shape:
        return block
    repeats = [-(-wanted // there) for wanted, there in zip(shape, block.shape, strict=True)]
    return block.repeat(repeats)[tuple(slice(0, wanted) for wanted in shape)]


def load(path: Path = TRAINED) -> Hypernetwork:
    """The hypernetwork as it was trained."""
    weights = weights_of(path)
    prefix = "encoder."
    network = Hypernetwork(*made_as({n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}))
    network.load_state_dict(weights)
    return network.eval()
