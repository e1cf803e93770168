"""A small job for tests of watching."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

import foretell
from foretell.forecasting.result import Forecast
from tests.measure.small import perceptron

STEPS = 40


@cache
def forecast() -> Forecast:
    """On a device that is not here, as far as the tests care: what is watched need not be near it."""
    return foretell.forecast(perceptron(), on="cpu")


def train(batches: Iterable[Any]) -> int:
    """How many batches there were."""
    work = perceptron()
    model = work.model()
    assert work.optimizer is not None
    optimizer = work.optimizer(model.parameters())
    count = 0
    for batch in batches:
        work.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
    return count


def loader(steps: int = STEPS) -> list[dict[str, torch.Tensor]]:
    return [perceptron().batch() for _ in range(steps)]
