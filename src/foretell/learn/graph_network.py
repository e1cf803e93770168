"""Networks over the ops of a step, in PyTorch Geometric: one that corrects op times, and one that foretells whole steps.

Apart from what prepares their steps, so that the rest of `learn` works where PyTorch Geometric is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing, global_add_pool

from foretell.cost.interaction import MOST

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_TOGETHER: Final = 32  # steps in a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A measured step as a network is shown it; one row for each node."""

    table: Floats
    makes: Ints
    takes: Ints
    into: Floats  # share of an edge among those into its end
    onto: Floats  # among those out of its start
    share: Floats  # of the step, as the sum of op times says
    wanted: Floats  # log(measured ÷ said), nan where the op was not measured
    whole: float  # the same of the step; for whole-step networks the log of its seconds
    weight: float
    totals: Floats  # of the step, for whole-step networks


class _Along(MessagePassing):  # type: ignore[misc]
    """Adds up what comes along edges, each by its share."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, sent: Tensor, edges: Tensor, share: Tensor) -> Tensor:
        out: Tensor = self.propagate(edges, x=sent, share=share)
        return out

    def message(self, x_j: Tensor, share: Tensor) -> Tensor:
        return x_j * share[:, None]


class _Round(nn.Module):
    """A node hears from those it takes from, from those that take from it, and from the step as a whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.into, self.onto, self.whole = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.along = _Along()

    def forward(self, state: Tensor, steps: Batch) -> Tensor:
        edges = steps.edge_index
        whole = global_add_pool(state * steps.share[:, None], steps.batch, steps.num_graphs)
        told = self.own(state) + self.along(self.into(state), edges, steps.into)
        told = told + self.along(self.onto(state), edges.flip(0), steps.onto) + self.whole(whole)[steps.batch]
        return state + torch.relu(told)


class _States(nn.Module):
    def __init__(self, shown: Sequence[Shown], width: int, rounds: int, drop: float) -> None:
        super().__init__()
        table = np.vstack([s.table for s in shown])
        self.register_buffer("mean", torch.tensor(table.mean(0), dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(np.maximum(table.std(0), 0.05), dtype=torch.float32))
        self.encode = nn.Linear(table.shape[1], width)
        self.rounds = nn.ModuleList(_Round(width) for _ in range(rounds))
        self.drop = nn.Dropout(drop)

    def states(self, steps: Batch) -> Tensor:
        state: Tensor = torch.relu(self.encode((steps.x - self.mean) / self.scale))
        for round_ in self.rounds:
            state = self.drop(round_(state, steps))
        return state


class Corrector(_States):
    """Says for each node by how much the sum of op times is wrong there. Untrained it says nothing is."""

    def __init__(self, shown: Sequence[Shown], width: int = 16, rounds: int = 2, drop: float = 0.3) -> None:
        super().__init__(shown, width, rounds, drop)
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, steps: Batch) -> Tensor:
        said: Tensor = MOST * torch.tanh(self.head(self.states(steps))[:, 0])
        return said

    def loss(self, steps: Batch) -> Tensor:
        """Of every op by its part of the step, and of the step as a whole, robust against odd ones."""
        said = self(steps)
        by_op = steps.weight[steps.batch] * steps.share * steps.known * _huber(said, steps.wanted, 0.2)
        whole = global_add_pool((steps.share * torch.exp(said))[:, None], steps.batch, steps.num_graphs)[:, 0]
        by_step = steps.weight * _huber(torch.log(whole), steps.whole, 0.05)
        off: Tensor = (by_op.sum() + by_step.sum()) / steps.weight.sum()
        return off


class WholeStep(_States):
    """Foretells the logarithm of a step's seconds from its graph, with no model of ops."""

    def __init__(self, shown: Sequence[Shown], width: int = 32, rounds: int = 3, drop: float = 0.1) -> None:
        super().__init__(shown, width, rounds, drop)
        totals = np.vstack([s.totals for s in shown])
        self.register_buffer("total_mean", torch.tensor(totals.mean(0), dtype=torch.float32))
        self.register_buffer("total_scale", torch.tensor(totals.std(0) + 1e-3, dtype=torch.float32))
        self.read = nn.Sequential(nn.Linear(width + totals.shape[1], width), nn.ReLU(), nn.Linear(width, 1))
        self.usual = nn.Parameter(torch.tensor(float(np.mean([s.whole for s in shown]))))

    def forward(self, steps: Batch) -> Tensor:
        pooled = global_add_pool(self.states(steps) * steps.share[:, None], steps.batch, steps.num_graphs)
        totals = (steps.totals - self.total_mean) / self.total_scale
        said: Tensor = self.usual + self.read(torch.cat([pooled, totals], dim=1))[:, 0]
        return said

    def loss(self, steps: Batch) -> Tensor:
        off: Tensor = (steps.weight * _huber(self(steps), steps.whole, 0.2)).sum() / steps.weight.sum()
        return off


def train(
    network: Corrector | WholeStep, shown: Sequence[Shown], *, seed: int, epochs: int, rate: float = 3e-3,
    decay: float = 0.05,
) -> None:  # fmt: skip
    """On one thread, so that the same seed gives the same network everywhere."""
    steps = [_data(s) for s in shown]
    draw = np.random.default_rng(seed)
    batches = -(-len(steps) // _TOGETHER)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
    network.train()
    with one_thread():
        for _ in range(epochs):
            order = draw.permutation(len(steps)).tolist()
            for start in range(0, len(steps), _TOGETHER):
                batch = Batch.from_data_list([steps[i] for i in order[start : start + _TOGETHER]])
                optimizer.zero_grad()
                network.loss(batch).backward()
                optimizer.step()
                schedule.step()
    network.eval()


def says(network: Corrector | WholeStep, shown: Sequence[Shown]) -> Floats:
    """What a trained network says: of all nodes of all steps, or of all steps."""
    with torch.no_grad(), one_thread():
        said = [network(batch) for batch in DataLoader([_data(s) for s in shown], batch_size=64)]
    return np.asarray(torch.cat(said).numpy(), dtype=np.float64)


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


def _huber(said: Tensor, wanted: Tensor, delta: float) -> Tensor:
    return nn.functional.huber_loss(said, wanted, reduction="none", delta=delta) / delta


def _data(s: Shown) -> Data:
    def tensor(values: npt.ArrayLike) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    return Data(
        x=tensor(s.table), edge_index=torch.tensor(np.stack([s.makes, s.takes])), into=tensor(s.into), onto=tensor(s.onto),
        share=tensor(s.share), wanted=tensor(np.nan_to_num(s.wanted)), known=tensor(~np.isnan(s.wanted)),
        whole=tensor([s.whole]), weight=tensor([s.weight]), totals=tensor(s.totals[None]),
    )  # fmt: skip
