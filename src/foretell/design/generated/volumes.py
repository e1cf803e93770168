"""Volumes: scans and videos, classified or segmented voxel by voxel."""

from __future__ import annotations

import torch
from torch import nn

from foretell.design.generated.convolutional import tower
from foretell.design.generated.draw import Draw, Network, classify

_VOXELS = (2**18, 2**22)


class Voxels(nn.Module):
    def __init__(self, draw: Draw, channels: int, width: int, grid: tuple[int, ...], classes: int, dense: bool) -> None:
        super().__init__()
        self.stem = nn.Conv3d(channels, width, 3, padding=1)
        self.tower, out = tower(draw, 3, width, grid, mirrored=dense)
        self.head = nn.Conv3d(out, classes, 1) if dense else nn.Linear(out, classes)
        self.dense = dense

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.tower(self.stem(x))
        out: torch.Tensor = self.head(features if self.dense else features.flatten(2).amax(2))
        return out


def network(draw: Draw) -> Network:
    channels, width, dense = draw.choice((1, 1, 2, 3)), draw.width(8, 48), draw.chance(0.5)
    grid = (4 * draw.count(2, 12), *[8 * draw.count(2, 12)] * 2)
    classes = draw.width(2, 32) if dense else draw.width(2, 400)
    voxels = grid[0] * grid[1] * grid[2]
    batch = max(1, min(64, draw.between(*_VOXELS) // voxels))
    places = grid if dense else ()
    return Network(
        model=lambda: Voxels(draw.again("model"), channels, width, grid, classes, dense),
        batch_size=batch,
        batch=lambda n: {"x": torch.randn(n, channels, *grid), "y": torch.randint(classes, (n, *places))},
        loss=classify,
    )
