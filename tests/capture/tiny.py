"""Tiny workloads, captured once each, and what the tests ask of their graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from foretell.graph import Graph, Op, Storage
from foretell.workload import Workload

SGD = torch.optim.SGD
MLP_NUMBERS = 8 * 16 + 16 + 16 * 4 + 4  # weights and biases of the two layers


def workload(model: Callable[[], Any], batch: Callable[[], Any], **settings: Any) -> Workload:
    """Trains with plain SGD on the mean of what the model returns, unless told otherwise."""
    given = {"name": "tiny", "loss": lambda model, x: model(x).float().mean(), "optimizer": SGD}
    return Workload(**{**given, "model": model, "batch": batch, **settings})


def mlp(**settings: Any) -> Workload:
    """Two layers on two samples, with a cross entropy over four classes."""
    return workload(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        lambda: {"x": torch.randn(2, 8), "y": torch.randint(4, (2,))},
        **{"loss": lambda model, b: nn.functional.cross_entropy(model(b["x"]), b["y"]), **settings},
    )


def names(graph: Graph, phase: str | None = None) -> list[str]:
    return [op.signature.name for op in graph.ops if phase in (None, op.phase)]


def named(graph: Graph, name: str, phase: str | None = None) -> list[Op]:
    return [op for op in graph.ops if op.signature.name == f"aten.{name}" and phase in (None, op.phase)]


def the(graph: Graph, name: str, phase: str | None = None) -> Op:
    (op,) = named(graph, name, phase)
    return op


def storage_of(graph: Graph, tensor: int) -> Storage:
    return graph.storages[graph.tensors[tensor].storage]


def roles(graph: Graph) -> dict[str, int]:
    """Bytes by role, of what the step does not make and drop on its way."""
    return {role: graph.bytes_of(role) for role in ("parameter", "gradient", "optimizer", "input", "host")}


def codes(graph: Graph) -> set[str]:
    return {caveat.code for caveat in graph.caveats}
