"""A network over the ops of a step that corrects their times, in PyTorch Geometric, and what trains such networks.

Apart from what prepares their steps, so that the rest of `learn` works where PyTorch Geometric is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SimpleConv, global_add_pool

from foretell.cost.interaction import MAX_CORRECTION, Outline

Floats = npt.NDArray[np.float64]
_TOGETHER: Final = 32  # steps in a batch


class Sample(Data):  # type: ignore[misc]
    """A measured step as a network sees it; one row for each node.

    `into` and `onto` are an edge's share among those into its end and out of its start, `share` the node's of the step,
    `wanted` log(measured ÷ predicted) of a node where `known`, `whole` the same of the step.
    """

    @classmethod
    def of(
        cls, step: Outline, *, table: Floats, share: Floats, wanted: Floats, whole: float, weight: float, **more: Any
    ) -> Sample:
        values = {"x": table, "into": step.shares(), "onto": step.shares(onto=True), "share": share, **more}
        values |= {"wanted": np.nan_to_num(wanted), "known": ~np.isnan(wanted), "whole": [whole], "weight": [weight]}
        tensors = {name: torch.tensor(np.asarray(value), dtype=torch.float32) for name, value in values.items()}
        return cls(edge_index=torch.tensor(np.stack([step.makes, step.takes])), **tensors)


class _Round(nn.Module):
    """A node hears from those it takes from, from those that take from it, and from the step as a whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.into, self.onto, self.whole = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.along = SimpleConv(aggr="add")

    def forward(self, state: Tensor, steps: Batch) -> Tensor:
        edges = steps.edge_index
        whole = global_add_pool(state * steps.share[:, None], steps.batch, steps.num_graphs)
        heard = self.own(state) + self.along(self.into(state), edges, steps.into)
        heard = heard + self.along(self.onto(state), edges.flip(0), steps.onto) + self.whole(whole)[steps.batch]
        return state + torch.relu(heard)


class States(nn.Module):
    """States of nodes after a few rounds; a subclass reads them, and has a loss."""

    def __init__(self, samples: Sequence[Sample], width: int, rounds: int, drop: float) -> None:
        super().__init__()
        table = torch.cat([s.x for s in samples]).double()
        self.register_buffer("mean", table.mean(0).float())
        self.register_buffer("scale", table.std(0, correction=0).clamp(min=0.05).float())
        self.encode = nn.Linear(table.shape[1], width)
        self.rounds = nn.ModuleList(_Round(width) for _ in range(rounds))
        self.drop = nn.Dropout(drop)

    def states(self, steps: Batch) -> Tensor:
        state: Tensor = torch.relu(self.encode((steps.x - self.mean) / self.scale))
        for round_ in self.rounds:
            state = self.drop(round_(state, steps))
        return state

    def loss(self, steps: Batch) -> Tensor:
        raise NotImplementedError


class Corrector(States):
    """Predicts for each node by how much the sum of op times is wrong there. Untrained it predicts no error."""

    def __init__(self, samples: Sequence[Sample], width: int = 16, rounds: int = 2, drop: float = 0.3) -> None:
        super().__init__(samples, width, rounds, drop)
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, steps: Batch) -> Tensor:
        predicted: Tensor = MAX_CORRECTION * torch.tanh(self.head(self.states(steps))[:, 0])
        return predicted

    def loss(self, steps: Batch) -> Tensor:
        """Of every op by its part of the step, and of the step as a whole, robust against odd ones."""
        predicted = self(steps)
        by_op = steps.weight[steps.batch] * steps.share * steps.known * huber(predicted, steps.wanted, 0.2)
        whole = global_add_pool((steps.share * torch.exp(predicted))[:, None], steps.batch, steps.num_graphs)[:, 0]
        by_step = steps.weight * huber(torch.log(whole), steps.whole, 0.05)
        total: Tensor = (by_op.sum() + by_step.sum()) / steps.weight.sum()
        return total


def train(
    network: States, samples: Sequence[Sample], *, seed: int, epochs: int, rate: float = 3e-3, decay: float = 0.05
) -> None:
    """On one thread, so that the same seed gives the same network everywhere."""
    draw = np.random.default_rng(seed)
    batches = -(-len(samples) // _TOGETHER)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
    network.train()
    with one_thread():
        for _ in range(epochs):
            order = draw.permutation(len(samples)).tolist()
            for start in range(0, len(samples), _TOGETHER):
                optimizer.zero_grad()
                network.loss(Batch.from_data_list([samples[i] for i in order[start : start + _TOGETHER]])).backward()
                optimizer.step()
                schedule.step()
    network.eval()


def predictions(network: nn.Module, samples: Sequence[Sample]) -> Floats:
    """Of a trained network: for all nodes of all steps, or for all steps."""
    with torch.no_grad(), one_thread():
        found = [network(Batch.from_data_list([one])) for one in samples]
    return np.asarray(torch.cat(found).numpy(), dtype=np.float64)


def weights(network: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    return {name: value.detach().numpy().astype(np.float32) for name, value in network.state_dict().items()}


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seeded(seed: int) -> None:
    torch.manual_seed(seed)


def huber(predicted: Tensor, wanted: Tensor, delta: float) -> Tensor:
    return nn.functional.huber_loss(predicted, wanted, reduction="none", delta=delta) / delta
