"""Images: classifiers, dense predictors, generators from noise, warps."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.convolutional import block, finer, norm, tower
from foretell.design.generated.draw import REGRESSIONS, Draw, Network, classify, regress

_PIXELS = (2**19, 2**24)  # of the first feature map over the batch


class Classifier(nn.Module):
    def __init__(self, draw: Draw, channels: int, width: int, size: int, classes: int) -> None:
        super().__init__()
        kernel = draw.choice((3, 4, 7))
        self.stem = nn.Conv2d(
            channels, width, kernel, padding=kernel // 2 if kernel % 2 else 0, stride=4 if kernel == 4 else 1
        )
        grid = size // 4 if kernel == 4 else size
        self.tower, out = tower(draw, 2, width, (grid, grid), mirrored=False)
        self.pool = nn.AdaptiveAvgPool2d(1) if draw.chance(0.7) else nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(out, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.pool(self.tower(self.stem(x))).flatten(1))
        return out


class Dense(nn.Module):
    """An image for an image; some warp their input by a flow they predict."""

    def __init__(self, draw: Draw, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.tower, out = tower(draw, 2, width, (size, size), mirrored=True)
        self.flow = nn.Conv2d(out, 2, 3, padding=1) if draw.chance(0.3) else None
        self.head = nn.Conv2d(out, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.tower(self.stem(x))
        if self.flow is not None:
            flow = self.flow(features).permute(0, 2, 3, 1).tanh()
            x = F.grid_sample(x.float(), flow.float(), align_corners=False, padding_mode="border").to(x.dtype)
        out: torch.Tensor = self.head(features)
        return out + x


class Generator(nn.Module):
    def __init__(self, draw: Draw, latent: int, width: int, doublings: int, channels: int) -> None:
        super().__init__()
        widths = [max(8, width >> i) for i in range(doublings + 1)]
        self.first, self.width = nn.Linear(latent, widths[0] * 16), widths[0]
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            size = 4 * 2 ** (i + 1)
            layers += [finer(draw, 2, a, b), norm(draw, 2, b), draw.activation()]
            layers += [block(draw, 2, b, (size, size))] if draw.chance(0.5) else []
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 3, padding=1), nn.Tanh())

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(self.first(z).reshape(-1, self.width, 4, 4))
        return out


def network(draw: Draw) -> Network:
    kind = draw.weighted({"classifier": 5, "dense": 4, "generator": 2})
    channels, width = draw.choice((1, 3, 3, 4, 12)), draw.width(16, 128)
    if kind == "generator":
        latent, doublings, top = draw.width(32, 512), draw.count(2, 5), draw.width(64, 512)
        size = 4 * 2**doublings
        batch = max(1, min(512, draw.between(2**19, 2**23) // (size * size * 16)))
        return Network(
            model=lambda: Generator(draw.again("model"), latent, top, doublings, channels),
            batch_size=batch,
            batch=lambda n: {"x": torch.randn(n, latent), "y": torch.randn(n, channels, size, size)},
            loss=regress("l1"),
        )
    size = 8 * draw.between(3, 40)
    batch = max(1, min(1024, draw.between(*_PIXELS) // (size * size * max(1, width // 32))))
    if kind == "classifier":
        classes = draw.width(10, 20000)
        return Network(
            model=lambda: Classifier(draw.again("model"), channels, width, size, classes),
            batch_size=batch,
            batch=lambda n: {"x": torch.randn(n, channels, size, size), "y": torch.randint(classes, (n,))},
            loss=classify,
        )

    def pictures(n: int) -> dict[str, Any]:
        return {"x": torch.randn(n, channels, size, size), "y": torch.randn(n, channels, size, size)}

    return Network(
        model=lambda: Dense(draw.again("model"), channels, width, size),
        batch_size=batch,
        batch=pictures,
        loss=regress(draw.choice(list(REGRESSIONS))),
    )
