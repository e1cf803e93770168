"""A small network with some megabytes of gradients: cheap to run, worth sending."""

from __future__ import annotations

import torch
from torch import nn

import foretell


def cnn(width: int = 200, accumulate: int = 1) -> foretell.Workload:
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


def gradient_bytes(width: int = 200) -> int:
    return sum(p.numel() * p.element_size() for p in cnn(width).model().parameters())
