"""Recurrent networks: torch's layers, cells in a loop, and scans without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.draw import Draw, Network


class Cells(nn.Module):
    """A cell stepped by hand."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.long = draw.chance(0.5)
        self.cell: Any = nn.LSTMCell(width, width) if self.long else nn.GRUCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        out = []
        for place in range(x.shape[1]):
            state = self.cell(x[:, place], state)
            out.append(state[0] if self.long else state)
        return torch.stack(out, 1)


class Scan(nn.Module):
    """A gated running mean: no loop, but a cumulative sum."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.in_logs = draw.chance(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.gate(x).float()
        value: torch.Tensor = self.value(x).float()
        if self.in_logs:
            log_weight = torch.logcumsumexp(F.logsigmoid(gate), 1)
            return ((F.softplus(value).log() + F.logsigmoid(gate)).logcumsumexp(1) - log_weight).exp().to(x.dtype)
        weight = gate.sigmoid()
        return ((weight * value).cumsum(1) / weight.cumsum(1)).to(x.dtype)


class Layered(nn.Module):
    def __init__(self, draw: Draw, width: int, kind: str) -> None:
        super().__init__()
        both = draw.chance(0.4)
        hidden = width if not both else max(4, width // 2)
        layers = draw.count(1, 3)
        made: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
        self.inner = made(
            width,
            hidden,
            layers,
            batch_first=True,
            bidirectional=both,
            dropout=0.1 if layers > 1 and draw.chance(0.5) else 0.0,
        )
        self.out = nn.Linear(hidden * (2 if both else 1), width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.inner(x)[0])
        return out


class Recurrent(nn.Module):
    def __init__(self, draw: Draw, vocabulary: int, width: int, outputs: int, short: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        kinds = {"lstm": 4, "gru": 3, "rnn": 1, "scan": 2, "cells": 2 if short else 0}
        self.layers = nn.ModuleList()
        for _ in range(draw.count(1, 3)):
            kind = draw.weighted(kinds)
            made = (
                Cells(draw, width)
                if kind == "cells"
                else Scan(draw, width)
                if kind == "scan"
                else Layered(draw, width, kind)
            )
            self.layers += [made, nn.LayerNorm(width)]
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        out: torch.Tensor = self.head(h)
        return out


def network(draw: Draw) -> Network:
    short = draw.chance(0.4)
    length = draw.between(6, 32) if short else draw.between(16, 400)
    width, vocabulary = draw.width(32, 1024), draw.width(100, 30000)
    outputs = vocabulary if draw.chance(0.5) else draw.width(2, 100)
    batch = max(1, min(1024, draw.between(2**10, 2**16) // length))

    def loss(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        return F.cross_entropy(model(b["x"]).flatten(0, 1), b["y"].flatten())

    return Network(
        model=lambda: Recurrent(draw.again("model"), vocabulary, width, outputs, short),
        batch_size=batch,
        batch=lambda n: {"x": torch.randint(vocabulary, (n, length)), "y": torch.randint(outputs, (n, length))},
        loss=loss,
    )
