"""Sparse gradients: only rows that were looked up have gradients, and only they are updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from foretell import Workload, forecast
from foretell.capture import capture
from foretell.graph import Graph

ROWS, WIDTH, BATCH, EACH = 10_000, 16, 32, 5


class Table(nn.Module):
    def __init__(self, bag: str) -> None:
        super().__init__()
        kind = nn.EmbeddingBag(ROWS, WIDTH, mode=bag, sparse=True) if bag else nn.Embedding(ROWS, WIDTH, sparse=True)
        self.bag, self.table, self.head = bag, kind, nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.table(x)
        return self.head(found if self.bag else found.sum(1)).squeeze(-1)  # type: ignore[no-any-return]


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "sparse adam": lambda parameters: torch.optim.SparseAdam([p for p in parameters if len(p) == ROWS]),
}


def captured(bag: str = "sum", optimizer: str = "sparse adam", accumulate: int = 1) -> Graph:
    numbers = (torch.arange(BATCH * EACH) % 100).view(BATCH, EACH)  # a hundred rows, some of them twice
    return capture(
        Workload(
            name="table", model=lambda: Table(bag), optimizer=OPTIMIZERS[optimizer], grad_accumulation=accumulate,
            batch=lambda: {"x": numbers, "y": torch.rand(BATCH)},
            loss=lambda model, b: nn.functional.mse_loss(model(b["x"]), b["y"]),
        )
    )  # fmt: skip


def rows_added(graph: Graph) -> list[tuple[int, ...]]:
    found = [op.signature for op in graph.ops if op.signature.name == "aten.index_add_" and op.phase == "optimizer"]
    return [s.inputs[2].shape for s in found if s.inputs[0].shape == (ROWS, WIDTH)]


@pytest.mark.parametrize("bag", ["", "sum", "mean"])
@pytest.mark.parametrize(("optimizer", "updates"), [("sgd", 1), ("adagrad", 2), ("sparse adam", 3)])
def test_only_rows_that_were_looked_up_are_updated(bag: str, optimizer: str, updates: int) -> None:
    graph = captured(bag, optimizer)
    rows = BATCH * EACH if optimizer == "sgd" else 100  # plain descent adds equal rows one after another
    assert rows_added(graph) == [(rows, WIDTH)] * updates
    whole = [op for op in graph.ops for layout in op.signature.outputs if layout.shape == (ROWS, WIDTH)]
    assert {op.signature.name for op in whole} <= {"aten.index_add_", "aten.detach", "aten.view"}


def test_gradients_take_the_memory_of_their_rows() -> None:
    graph = captured()
    assert graph.bytes_of("gradient") < 4 * BATCH * EACH * WIDTH * 4
    found = forecast(graph, on="h100-sxm")
    table, parts = ROWS * WIDTH * 4, found.memory.breakdown
    assert parts.parameters + parts.optimizer == pytest.approx(3 * table, rel=0.01)
    assert parts.gradients + parts.activations + parts.temporaries < table / 4


def test_accumulated_gradients_are_captured_too() -> None:
    graph = captured(accumulate=2, optimizer="sgd")
    [(rows, _)] = rows_added(graph)
    assert rows >= BATCH * EACH
    assert "ran-on-cpu" in {caveat.code for caveat in graph.caveats}  # a fake tensor cannot grow in place
