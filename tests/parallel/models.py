"""Small models of three families, as workloads; torch's parallel code and the plans are compared on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from foretell.capture import capture
from foretell.graph import Graph
from foretell.workload import Workload


class Residual(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.short(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(8, 8), Residual(8, 12), Residual(12, 12)])
        self.up, self.down, self.head = nn.Linear(12, 32), nn.Linear(32, 12), nn.Linear(12, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.down(F.relu(self.up(x.mean((2, 3))))))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, *, causal: bool, bias: bool) -> None:
        super().__init__()
        self.size, self.causal = width // heads, causal
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.v = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, self.size).transpose(1, 2) for p in (self.q, self.k, self.v))
        repeat = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(repeat, 1) if repeat > 1 else t for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class GatedMlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], attention: nn.Module, mlp: nn.Module, width: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(width), attention, norm(width), mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.zeros(1, 16, width))
        self.blocks = nn.ModuleList(
            Block(nn.LayerNorm, Attention(width, 4, 4, causal=False, bias=True), Mlp(width), width)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Llama(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3, vocabulary: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Block(nn.RMSNorm, Attention(width, 4, 2, causal=True, bias=False), GatedMlp(width), width)
            for _ in range(layers)
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def images(size: int, classes: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 3, size, size), "y": torch.randint(classes, (4,))}


def text() -> dict[str, torch.Tensor]:
    return {"x": torch.randint(96, (2, 16)), "y": torch.randint(96, (2, 16))}


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]], str]] = {
    "cnn": (Cnn, lambda: images(8, 16), "blocks"),
    "vit": (Vit, lambda: images(16, 12), "blocks"),
    "llama": (Llama, text, "layers"),
}


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    out = model(batch["x"])
    return F.cross_entropy(out.flatten(0, -2), batch["y"].flatten())


def workload(family: str, **settings: Any) -> Workload:
    build, batch, _ = FAMILIES[family]
    return Workload(
        name=family, model=build, batch=batch, loss=loss, optimizer=lambda p: torch.optim.AdamW(p), **settings
    )


@cache
def graph(family: str, **settings: Any) -> Graph:
    return capture(workload(family, **settings))
