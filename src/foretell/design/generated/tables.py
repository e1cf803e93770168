"""Tables: recommenders over embeddings and bags of them, and plain columns of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.draw import Draw, Network, classify, mlp

_TABLE_NUMBERS = 2**30  # in all tables of a network


class Recommender(nn.Module):
    def __init__(self, draw: Draw, rows: tuple[int, ...], width: int, numbers: int, bags: bool) -> None:
        super().__init__()
        mode = draw.choice(("sum", "mean", "sum"))
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(count, width, mode=mode) if bags else nn.Embedding(count, width) for count in rows
        )
        self.bags = bags
        self.bottom = mlp(draw, (numbers, draw.width(32, 512), width))
        self.kind = draw.weighted({"dots": 3, "cross": 2, "plain": 2, "machine": 2})
        fields = len(rows) + 1
        pairs = fields * (fields - 1) // 2
        self.register_buffer("upper", torch.triu_indices(fields, fields, 1))
        inputs = {"dots": pairs + width, "cross": fields * width, "plain": fields * width, "machine": width}[self.kind]
        self.cross = nn.ModuleList(
            nn.Linear(inputs, inputs) for _ in range(2 if self.kind == "cross" and inputs <= 4096 else 0)
        )
        hidden = draw.width(64, 2048)
        self.top = mlp(draw, (inputs, hidden, hidden // 2, 1), norm=draw.chance(0.4), dropout=draw.choice((0.0, 0.2)))

    def forward(self, x: torch.Tensor, looked_up: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(x)
        found = [table(looked_up[:, i] if self.bags else looked_up[:, i, 0]) for i, table in enumerate(self.tables)]
        fields = torch.stack([dense, *(f.to(dense.dtype) for f in found)], 1)
        if self.kind == "dots":
            products = fields @ fields.transpose(1, 2)
            upper: Any = self.upper
            features = torch.cat((dense, products[:, upper[0], upper[1]]), 1)
        elif self.kind == "machine":  # a factorization machine
            features = 0.5 * (fields.sum(1).pow(2) - fields.pow(2).sum(1))
        else:
            features = fields.flatten(1)
            first = features
            for layer in self.cross:
                features = first * layer(features) + features
        out: torch.Tensor = self.top(features)
        return out


class Columns(nn.Module):
    def __init__(self, draw: Draw, numbers: int, width: int, outputs: int) -> None:
        super().__init__()
        self.scale = nn.BatchNorm1d(numbers)
        sizes = [numbers, *[width] * draw.count(2, 8)]
        self.layers = mlp(draw, sizes, norm=draw.chance(0.5), dropout=draw.choice((0.0, 0.1, 0.5)))
        self.left, self.right = nn.Parameter(torch.randn(width, 32) * 0.05), nn.Parameter(torch.randn(width, 32) * 0.05)
        self.head = nn.Linear(width + 32, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers(self.scale(x))
        crossed = torch.einsum("bi,ir,jr,bj->br", h, self.left.to(h.dtype), self.right.to(h.dtype), h)
        out: torch.Tensor = self.head(torch.cat((h, crossed), 1))
        return out


def network(draw: Draw) -> Network:
    numbers = draw.width(8, 512)
    if draw.chance(0.35):
        width, outputs, batch = draw.width(64, 4096), draw.width(2, 1000), draw.between(64, 32768)
        return Network(
            model=lambda: Columns(draw.again("model"), numbers, width, outputs),
            batch_size=batch,
            batch=lambda n: {"x": torch.randn(n, numbers), "y": torch.randint(outputs, (n,))},
            loss=classify,
        )
    width, fields, bags = draw.width(4, 128, 4), draw.count(2, 26), draw.chance(0.5)
    largest = max(2000, _TABLE_NUMBERS // width // fields)
    rows = tuple(draw.between(1000, min(largest, 100_000_000)) for _ in range(fields))
    each, batch = (draw.between(2, 40) if bags else 1), draw.between(64, 16384)

    def clicks(n: int) -> dict[str, Any]:
        ids = torch.stack([torch.randint(count, (n, each)) for count in rows], 1)
        return {"x": torch.randn(n, numbers), "ids": ids, "y": torch.rand(n, 1)}

    def loss(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(b["x"], b["ids"]).float(), b["y"].float())

    return Network(
        model=lambda: Recommender(draw.again("model"), rows, width, numbers, bags),
        batch_size=batch,
        batch=clicks,
        loss=loss,
        forward=lambda model, b: model(b["x"], b["ids"]),
    )
