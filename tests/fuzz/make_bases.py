"""Captures the small graphs that the fuzzer mutates: `PYTHONPATH=src:. python tests/fuzz/make_bases.py`.

One step each of the kinds of operators that pricing, memory and plans know something about.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from foretell.capture import capture
from foretell.workload import Workload
from tests.parallel import models

BASES = Path(__file__).parent / "bases"


class Recurrent(nn.Module):
    """An LSTM over embedded words, with a bag of words beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bag = nn.Embedding(50, 16), nn.EmbeddingBag(50, 24, mode="mean")
        self.lstm, self.head = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(48, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.head(self.lstm(self.words(x))[0]) + self.bag(x).repeat_interleave(2, 1)[:, None, :7]
        return torch.as_tensor(out)


class Mixed(nn.Module):
    """Pooling, grouped, transposed and plain convolutions, norms of all kinds, resizing, sorting."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2))
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(self.deep(self.stem(x)))
        x = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear")
        x = F.pad(x, (1, 0, 0, 1)).roll((1, 1), (2, 3))
        x = self.norm(x.mean((2, 3)))
        return torch.as_tensor(self.head(x.sort(-1)[0].cumsum(-1)))


class Experts(nn.Module):
    """A router and four experts as one grouped product."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.router = nn.Embedding(32, 16), nn.Linear(16, 4)
        self.into, self.out = (nn.Parameter(torch.randn(4, *shape)) for shape in ((16, 32), (32, 16)))
        self.head = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x).flatten(0, 1)
        share, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort()
        ends = torch.histc(expert[order].float(), 4, 0, 3).cumsum(0).int()
        rows = F.relu(torch._grouped_mm(x[order].bfloat16(), self.into.bfloat16(), offs=ends))
        made = torch._grouped_mm(rows, self.out.bfloat16(), offs=ends).float()
        return torch.as_tensor(self.head(x.index_add(0, order, made * share[order, None])))


def words(size: int, classes: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"x": torch.randint(size, (2, 8)), "y": torch.randint(classes, (2, 8))}


def made(name: str, build: Callable[[], nn.Module], batch: Callable[[], Any], **settings: Any) -> Workload:
    adam = {"optimizer": lambda p: torch.optim.AdamW(p, fused=True), "loss": models.loss}
    return Workload(name=name, model=build, batch=batch, **{**adam, **settings})


WORKLOADS = (
    models.workload("cnn", precision="amp-fp16", clip_grad_norm=1.0),
    made("vit", lambda: models.Vit(layers=2), lambda: models.images(16, 12), precision="amp-bf16"),
    made("llama", lambda: models.Llama(layers=2), models.text, precision="bf16", grad_accumulation=2),
    made("recurrent", Recurrent, words(50, 7)),
    made("mixed", Mixed, lambda: models.images(34, 16), channels_last=True),
    made("experts", Experts, words(32, 32)),
    made("inference", models.Vit, lambda: models.images(16, 12), optimizer=None, loss=lambda model, b: model(b["x"])),
)

if __name__ == "__main__":
    BASES.mkdir(exist_ok=True)
    for workload in WORKLOADS:
        graph = capture(workload)
        graph.save(BASES / f"{graph.name}.graph")
        print(graph.name, len(graph.ops), "ops", (BASES / f"{graph.name}.graph").stat().st_size, "bytes")
