"""Small steps for tests of the instrument; `kind` says what goes wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.nn.functional import cross_entropy

import foretell


def perceptron(
    batch: int = 8,
    width: int = 64,
    precision: Literal["fp32", "bf16", "amp-bf16"] = "fp32",
    grad_accumulation: int = 1,
    training: bool = True,
    own_step: bool = False,
) -> foretell.Workload:
    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()

    def forward(model: Any, batch: Any) -> Any:
        return cross_entropy(model(batch["x"]), batch["y"]) if training else model(batch["x"])

    return foretell.Workload(
        name="perceptron",
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.Linear(width, 10)
        ),
        batch=lambda: {"x": torch.randn(batch, width), "y": torch.randint(10, (batch,))},
        loss=forward,
        optimizer=(lambda params: torch.optim.AdamW(params)) if training else None,
        precision=precision,
        grad_accumulation=grad_accumulation,
        step=step if own_step else None,
    )


def wrong(kind: str = "nan") -> foretell.Workload:
    def out_of_memory() -> None:
        torch.empty(2**50)

    def cublas() -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    def full() -> None:
        raise MemoryError

    def bug() -> None:
        {}["nothing"]

    does: dict[str, Callable[[], object]] = {
        "memory": out_of_memory, "cublas": cublas, "full": full, "bug": bug, "hang": lambda: time.sleep(1000),
        "crash": os.abort,
    }  # fmt: skip

    def loss(model: Any, x: Any) -> Any:
        does.get(kind, lambda: None)()
        return model(x).sum() * (float("nan") if kind == "nan" else 1.0)

    return foretell.Workload(
        name=f"wrong-{kind}",
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda: torch.ones(2, 8),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
