"""Seven small steps of unlike kinds, with few ops that keep a device busy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell.capture import capture
from foretell.graph import Graph
from foretell.graph.rescale import extend
from foretell.laws.scope import Step
from foretell.workload import Workload

SIZES = (8, 16)  # that steps are captured at; at other batches they are continued
BATCHES = (16, 17, 24, 32, 48, 64)
WORDS, WIDTH, BLOCKS, LENGTH = 4_000, 512, 8, 256
PRECISIONS = ("amp-bf16", "fp32", "torch-fp32", "tf32", "bf16", "fp16", "amp-fp16")


class Residual(nn.Module):
    """Two convolutions and what goes past them; depthwise ones between wide ones of 1×1 where `groups` says so."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


def images(depthwise: bool) -> nn.Module:
    stages: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=4, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for width in (64, 128, 256):
        stages += [Residual(width, width if depthwise else 1), Residual(width, width if depthwise else 1)]
        stages += [nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Blocks(nn.Module):
    """A transformer over words, or over patches of images."""

    def __init__(self, words: bool) -> None:
        super().__init__()
        self.words = words
        self.embed = nn.Embedding(WORDS, WIDTH) if words else nn.Conv2d(3, WIDTH, 16, stride=16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(BLOCKS if words else 3)
        )
        self.head = nn.Linear(WIDTH, WORDS if words else 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x if self.words else x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x if self.words else x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x))[0])


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 32 * 32, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
    )


def _pictures(batch: int, side: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, 3, side, side), "y": torch.randint(1000, (batch,))}


def _texts(batch: int) -> dict[str, Tensor]:
    return {"x": torch.randint(WORDS, (batch, LENGTH)), "y": torch.randint(WORDS, (batch, LENGTH))}


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "convolutions": (lambda: images(False), lambda batch: _pictures(batch, 160)),
    "depthwise": (lambda: images(True), lambda batch: _pictures(batch, 160)),
    "words": (lambda: Blocks(True), _texts),
    "patches": (lambda: Blocks(False), lambda batch: _pictures(batch, 224)),
    "dense": (dense, lambda batch: _pictures(batch, 32)),
    "recurrent": (Recurrent, _texts),
    "compiled": (lambda: images(False), lambda batch: _pictures(batch, 160)),
}


def workload(kind: str, precision: str, batch: int) -> Workload:
    model, data = KINDS[kind]

    def loss(module: nn.Module, b: dict[str, Tensor]) -> Tensor:
        found = module(b["x"])
        return F.cross_entropy(found.flatten(0, -2), b["y"].flatten())

    return Workload(
        name=kind,
        model=model,
        batch=lambda: data(batch),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        precision=precision,
        compile=kind == "compiled",
    )


@cache
def captured(kind: str, precision: str, batch: int) -> Graph:
    return capture(workload(kind, precision, batch))


@cache
def step(kind: str) -> Step:
    def make(precision: str, batch: int) -> Graph:
        if batch in SIZES:
            return captured(kind, precision, batch)
        small, large = (captured(kind, precision, size) for size in SIZES)
        return extend(small, large, sizes=SIZES, to=batch)

    precisions = (*PRECISIONS, "fp8") if kind in ("words", "patches", "dense") else PRECISIONS
    batches = SIZES if kind == "compiled" else BATCHES  # the compiler writes other kernels for another batch
    return Step(name=kind, make=make, precisions=precisions, batches=batches)
