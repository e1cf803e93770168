"""Drawing a network: numbers that depend on the seed alone, and parts that every kind of network uses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

T = TypeVar("T")
Module = Callable[[], nn.Module]

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu-in-place": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "leaky": lambda: nn.LeakyReLU(0.1, inplace=True),
    "elu": nn.ELU,
    "prelu": nn.PReLU,
    "hardswish": nn.Hardswish,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What one kind of network drew: a step without its precision and optimizer."""

    model: Module
    batch_size: int
    batch: Callable[[int], dict[str, Any]]  # by its size
    loss: Callable[[Any, Any], Any]
    forward: Callable[[Any, Any], Any] = lambda model, b: model(b["x"])  # of inference


class Draw:
    """Random choices that a seed and a name determine."""

    def __init__(self, seed: int | str, name: str) -> None:
        self._key = f"{seed}/{name}"
        self._random = random.Random(self._key)

    def again(self, name: str) -> Draw:
        """Choices of their own, the same whenever they are asked for: a model may be built twice."""
        return Draw(self._key, name)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def weighted(self, options: Mapping[T, float]) -> T:
        return self._random.choices(list(options), list(options.values()))[0]

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, least: int, most: int) -> int:
        """Any whole number, small ones as likely as large ones by their logarithm."""
        return round(float(least * (most / least) ** self._random.random()))

    def width(self, least: int, most: int, multiple: int = 1) -> int:
        """Mostly round, as people write them; a quarter of them odd ones."""
        size = self.between(least, most)
        step = multiple if self.chance(0.25) else max(multiple, 8, 2 ** (size.bit_length() - 3))
        step = -(-step // multiple) * multiple
        return max(step, size // step * step)

    def divisor(self, number: int, most: int | None = None) -> int:
        return self.choice([d for d in range(1, min(number, most or number) + 1) if number % d == 0])

    def activation(self) -> nn.Module:
        return ACTIVATIONS[self.choice(list(ACTIVATIONS))]()

    def count(self, least: int, most: int) -> int:
        return self._random.randint(least, most)


class Residual(nn.Module):
    """x + f(x), in place for some."""

    def __init__(self, inner: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.inner, self.in_place = inner, in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out.add_(x) if self.in_place else x + out


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def mlp(draw: Draw, sizes: Sequence[int], norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b, bias=draw.chance(0.8)))
        if i < len(sizes) - 2:
            layers += [nn.BatchNorm1d(b)] if norm else []
            layers += [draw.activation()]
            layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


def classify(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
    return F.cross_entropy(model(b["x"]), b["y"])


REGRESSIONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.smooth_l1_loss,
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "cosine": lambda x, y: 1 - F.cosine_similarity(x.flatten(1), y.flatten(1)).mean(),
}


def regress(name: str) -> Callable[[Any, Any], torch.Tensor]:
    return lambda model, b: REGRESSIONS[name](model(b["x"]).float(), b["y"].float())
