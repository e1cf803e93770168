"""Small networks for hosts with a third of a core: a step takes tens to hundreds of milliseconds, links included.

    foretell inspect foretell_bench.emulated.models:network --set name=plain-24x3 --set batch=8

They are of six families, and within a family they differ in depth and width: compute and gradients do not go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import nn

import foretell

CLASSES: Final = 100
TOKENS, WORDS = 32, 512


def mlp(depth: int, width: int) -> nn.Module:
    """On flattened images."""
    sides = [3 * 16 * 16, *[width] * depth]
    layers = [layer for a, b in pairwise(sides) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), *layers, nn.Linear(width, CLASSES))


def plain(depth: int, width: int) -> nn.Module:
    """Convolutions, wider as they go."""
    layers: list[nn.Module] = []
    before = 3
    for i in range(depth):
        after = width * 2 ** min(i, 3)
        layers += [nn.Conv2d(before, after, 3, stride=1 + (i % 2), padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


class Around(nn.Module):
    """A block and a way around it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.block(x))


def residual(depth: int, width: int) -> nn.Module:
    def block() -> nn.Module:
        one = (nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        return Around(nn.Sequential(*one, nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)))

    stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
    pooled = (nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, CLASSES))
    return nn.Sequential(stem, *[block() for _ in range(depth)], *pooled)


def separable(depth: int, width: int) -> nn.Module:
    """Depthwise convolutions between thin and wide ones: many ops, few parameters."""

    def block() -> nn.Module:
        wide = 4 * width
        return Around(nn.Sequential(
            nn.Conv2d(width, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, width, 1), nn.BatchNorm2d(width),
        ))  # fmt: skip

    stem = nn.Conv2d(3, width, 4, stride=4)
    return nn.Sequential(
        stem, *[block() for _ in range(depth)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)
    )


class Words(nn.Module):
    """Embeds words, reads them, and classifies the text."""

    def __init__(self, width: int, reader: nn.Module) -> None:
        super().__init__()
        self.embedding, self.reader, self.head = nn.Embedding(WORDS, width), reader, nn.Linear(width, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        read = self.reader(self.embedding(words))
        return self.head((read[0] if isinstance(read, tuple) else read).mean(1))  # type: ignore[no-any-return]


def transformer(depth: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return Words(width, nn.TransformerEncoder(layer, depth, enable_nested_tensor=False))


def recurrent(depth: int, width: int) -> nn.Module:
    return Words(width, nn.GRU(width, width, depth, batch_first=True))


# name → how to build it, and its usual batch
NETWORKS: Final[dict[str, tuple[Callable[[], nn.Module], int]]] = {
    f"{make.__name__}-{width}x{depth}": (partial(make, depth, width), batch)
    for make, depth, width, batch in (
        (mlp, 2, 256, 32), (mlp, 4, 512, 32), (mlp, 8, 256, 64), (mlp, 1, 1024, 16),
        (plain, 3, 24, 8), (plain, 5, 24, 4), (plain, 4, 48, 2), (plain, 6, 32, 2),
        (residual, 2, 48, 4), (residual, 4, 32, 4), (residual, 3, 80, 2), (residual, 6, 64, 1),
        (separable, 3, 32, 8), (separable, 6, 48, 4), (separable, 4, 96, 4),
        (transformer, 2, 64, 8), (transformer, 4, 96, 4), (transformer, 2, 192, 4), (transformer, 3, 128, 8),
        (recurrent, 1, 192, 8), (recurrent, 2, 256, 4), (recurrent, 3, 96, 8),
    )
}  # fmt: skip

# For workers with a device: eight of each family, and the smallest of eight batches, each twice the one before. Gradients
# are up to 6 MB, so that a slow link takes no more than a tenth of a second a step.
ON_A_DEVICE: Final[dict[str, tuple[Callable[[], nn.Module], int]]] = {
    f"{make.__name__}-{width}x{depth}": (partial(make, depth, width), batch)
    for make, batch, sizes in (
        (mlp, 64, ((1, 512), (1, 1024), (2, 256), (2, 768), (4, 384), (4, 512), (8, 256), (12, 192))),
        (plain, 16, ((3, 24), (3, 64), (4, 32), (4, 48), (5, 24), (5, 40), (6, 32), (8, 24))),
        (residual, 16, ((2, 48), (2, 96), (2, 160), (3, 80), (4, 64), (6, 64), (8, 48), (12, 32))),
        (separable, 32, ((3, 32), (3, 128), (4, 96), (4, 160), (6, 48), (6, 96), (8, 64), (12, 48))),
        (transformer, 16, ((2, 64), (2, 128), (2, 192), (3, 128), (4, 96), (4, 160), (6, 64), (8, 96))),
        (recurrent, 32, ((1, 192), (1, 384), (2, 128), (2, 256), (3, 96), (3, 192), (4, 128), (5, 96))),
    )
    for depth, width in sizes
}  # fmt: skip


def classifying(
    name: str, make: Callable[[], nn.Module], data: Callable[[], dict[str, torch.Tensor]], batch: int
) -> foretell.Workload:
    """How every network here is trained: to predict the class y of x."""
    return foretell.Workload(
        name=name,
        model=make,
        batch=data,
        loss=lambda model, b: nn.functional.cross_entropy(model(b["x"]), b["y"]),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
        samples=batch,
    )


def network(name: str = "plain-24x3", batch: int = 8) -> foretell.Workload:
    make, _ = (NETWORKS | ON_A_DEVICE)[name]

    def data() -> dict[str, torch.Tensor]:
        reads = name.startswith(("transformer", "recurrent"))
        x = torch.randint(WORDS, (batch, TOKENS)) if reads else torch.randn(batch, 3, 32, 32)
        return {"x": x, "y": torch.randint(CLASSES, (batch,))}

    return classifying(name, make, data, batch)


def cnn(width: int = 200, accumulate: int = 1) -> foretell.Workload:
    """A small network with some megabytes of gradients: cheap to run, worth sending."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 1000),
        )

    return foretell.Workload(
        name="cnn",
        model=model,
        batch=lambda: {"x": torch.randn(2, 3, 12, 12), "y": torch.randint(1000, (2,))},
        loss=lambda model, b: nn.functional.cross_entropy(model(b["x"]), b["y"]),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        grad_accumulation=accumulate,
    )


def save_graphs(
    folder: Path, make: Callable[[str, int], foretell.Workload], wanted: Iterable[tuple[str, int]]
) -> list[str]:
    """Captures the network of each name and batch that has no graph in the folder yet; returns the files it wrote."""
    (folder / "graphs").mkdir(parents=True, exist_ok=True)
    written = []
    for name, batch in wanted:
        path = folder / "graphs" / f"{name}-{batch}.graph"
        if not path.exists():
            foretell.capture_graph(make(name, batch)).save(path)
            written.append(path.name)
    return written
