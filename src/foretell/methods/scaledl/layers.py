"""Models of layers, one per kind: a small nonlinear regressor of log(time) on log features, or a linear one.

A regressor is a straight line beside two hidden layers, both on standardised logarithms. What is asked far from what was
measured is guarded twice: a feature counts as at most one deviation beyond those seen, and a time as at most as many
times the roofline as its kind was seen to take. Kinds with few rows, and kinds never seen, share one line over what all
layers have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from foretell.methods.scaledl.features import FLOOR, GENERAL, Floats, Ints, Layer

Shape = Literal["mlp", "linear"]
_FEWEST: Final = 40  # rows a kind needs for a regressor of its own
_NARROWEST: Final = 0.05  # the deviation of a column that hardly varies
_LEAST: Final = 1e-7  # seconds
_BEYOND: Final = 1.0  # deviations that a feature may lie outside what was seen
_ODD: Final = 0.002  # the share of rows whose distance from the roofline is not taken for a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How `descend` trains."""

    epochs: int = 40
    rate: float = 4e-3
    batch: int = 512
    decay: float = 1e-4
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSettings(Training):
    """What is chosen of a layer's regressor."""

    shape: Shape = "mlp"
    width: int = 96


class _Regressor(nn.Module):
    """log(time) of one kind of layer."""

    def __init__(self, columns: int, operators: int, width: int) -> None:
        super().__init__()
        self.made_with = (columns, operators, width)
        self.operator = nn.Embedding(operators + 1, 8)  # the last is for operators that were not seen
        self.line = nn.Linear(columns, 1)
        self.bend = nn.Sequential(
            nn.Linear(columns + 8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, x: Tensor, operator: Tensor) -> Tensor:
        predicted: Tensor = self.line(x) + self.bend(torch.cat([x, self.operator(operator)], 1))
        return predicted[:, 0]


@dataclass(slots=True, kw_only=True)
class _Kind:
    """A fitted kind, with what standardises its columns: nothing is needed beside it."""

    columns: tuple[str, ...]
    operators: tuple[str, ...]
    mean: Floats
    deviation: Floats
    line: Floats
    constant: float
    centre: float
    seen: tuple[Floats, Floats]  # the range of every column, in deviations
    slower: tuple[float, float]  # the range of log(time ÷ roofline)
    network: _Regressor | None = None

    def table(self, layers: Sequence[Layer]) -> Floats:
        low, high = self.seen
        scaled = (_columns(layers, self.columns) - self.mean) / self.deviation
        return np.clip(scaled, low - _BEYOND, high + _BEYOND)

    def names(self, layers: Sequence[Layer]) -> Ints:
        place = {name: i for i, name in enumerate(self.operators)}
        return np.array([place.get(layer.operator, len(self.operators)) for layer in layers])

    def predict(self, layers: Sequence[Layer]) -> Floats:
        x = self.table(layers)
        if self.network is None:
            predicted = x @ self.line + self.constant
        else:
            with torch.no_grad():
                found = self.network(torch.tensor(x, dtype=torch.float32), torch.tensor(self.names(layers)))
            predicted = found.double().numpy() + self.centre
        least = _least(layers)
        return np.asarray(np.clip(predicted, least + self.slower[0], least + self.slower[1]), dtype=np.float64)


@dataclass(slots=True)
class LayerModels:
    """Fitted models of layers; `seconds` answers for any layer."""

    settings: LayerSettings = field(default_factory=LayerSettings)
    kinds_: dict[str, _Kind] = field(default_factory=dict)
    any_: _Kind | None = None

    def fit(self, layers: Sequence[Layer], seconds: Floats, weight: Floats) -> Self:
        """Layers, the seconds of each, and how much each matters."""
        wanted = np.log(np.maximum(seconds, _LEAST))
        self.any_ = _line(layers, wanted, weight, GENERAL)
        self.kinds_ = {}
        for kind, rows in sorted(_by_kind(layers).items()):
            if len(rows) >= _FEWEST:
                own = [layers[i] for i in rows]
                columns = tuple(dict.fromkeys((*GENERAL, *(name for layer in own for name in layer.values))))
                fitted = _line(own, wanted[rows], weight[rows], columns)
                if self.settings.shape == "mlp":
                    fitted.network = _bent(fitted, own, wanted[rows], weight[rows], self.settings)
                self.kinds_[kind] = fitted
        return self

    def seconds(self, layers: Sequence[Layer]) -> Floats:
        assert self.any_ is not None, "fit first"
        logs = np.zeros(len(layers))
        for kind, rows in _by_kind(layers).items():
            logs[rows] = self.kinds_.get(kind, self.any_).predict([layers[i] for i in rows])
        return np.exp(logs)


def _by_kind(layers: Sequence[Layer]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        rows.setdefault(layer.kind, []).append(i)
    return rows


def _columns(layers: Sequence[Layer], columns: Sequence[str]) -> Floats:
    return np.array([[layer.values.get(c, 0.0) for c in columns] for layer in layers])


def _least(layers: Sequence[Layer]) -> Floats:
    """log of the roofline, above a floor that every kernel pays."""
    return np.log([FLOOR + layer.roofline for layer in layers])


def _line(layers: Sequence[Layer], wanted: Floats, weight: Floats, columns: Sequence[str]) -> _Kind:
    from sklearn.linear_model import Ridge

    rows = _columns(layers, columns)
    mean, deviation = rows.mean(axis=0), np.maximum(rows.std(axis=0), _NARROWEST)
    scaled = (rows - mean) / deviation
    ridge = Ridge(alpha=1.0).fit(scaled, wanted, sample_weight=weight)
    low, high = np.quantile(wanted - _least(layers), (_ODD, 1 - _ODD)).tolist()
    return _Kind(
        columns=tuple(columns),
        operators=tuple(sorted({layer.operator for layer in layers})),
        mean=mean,
        deviation=deviation,
        line=ridge.coef_,
        constant=float(ridge.intercept_),
        centre=float(np.average(wanted, weights=weight)),
        seen=(scaled.min(axis=0), scaled.max(axis=0)),
        slower=(low, high),
    )


def _bent(kind: _Kind, layers: Sequence[Layer], wanted: Floats, weight: Floats, settings: LayerSettings) -> _Regressor:
    """Two hidden layers beside the line, which it starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = _Regressor(len(kind.columns), len(kind.operators), settings.width)
        with torch.no_grad():
            network.line.weight.copy_(torch.tensor(kind.line[None]))
            network.line.bias.fill_(kind.constant - kind.centre)
            nn.init.zeros_(network.bend[-1].weight)  # type: ignore[arg-type]
        x, names = torch.tensor(kind.table(layers), dtype=torch.float32), torch.tensor(kind.names(layers))
        y = torch.tensor(wanted - kind.centre, dtype=torch.float32)
        heavy = torch.tensor(weight / weight.mean(), dtype=torch.float32)
        descend(network, len(layers), lambda rows: _loss(network, x[rows], names[rows], y[rows], heavy[rows]), settings)
    return network.eval()


def _loss(network: _Regressor, x: Tensor, names: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    if network.training:  # an operator nobody measured must be bearable: some lose their name
        names = torch.where(torch.rand(len(names)) < 0.03, network.operator.num_embeddings - 1, names)
    return (weight * nn.functional.huber_loss(network(x, names), y, reduction="none", delta=0.3)).mean()


def descend(network: nn.Module, rows: int, loss: Callable[[Tensor], Tensor], settings: Training) -> None:
    """AdamW under one cycle of the learning rate, over shuffled batches."""
    batches = max(1, rows // settings.batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.decay, fused=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.rate, total_steps=settings.epochs * batches, pct_start=0.15
    )
    network.train()
    for _ in range(settings.epochs):
        for chosen in torch.randperm(rows).tensor_split(batches):
            optimizer.zero_grad()
            loss(chosen).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            cycle.step()
