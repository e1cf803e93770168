"""Recurrent networks of every size, and recurrences written in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, classify, label_places, network, reconstruct, step


def texts(batch: int, length: int, vocabulary: int, answers: int = 0) -> Batch:
    """Words, and a class for each of them."""
    x, y = torch.randint(vocabulary, (batch, length)), torch.randint(answers or vocabulary, (batch, length))
    return {"x": x, "y": y}


class LanguageModel(nn.Module):
    """What comes next, by some recurrent layers over embedded words."""

    def __init__(self, layers: nn.Module, vocabulary: int, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.layers, self.answer = layers, nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layers(self.drop(self.embed(x)))
        out: Tensor = self.answer(self.drop(found[0] if isinstance(found, tuple) else found))
        return out


@network("recurrent", (4, 256))
def word_lstm(batch: int = 32, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """Two layers of 650 with dropout, ten thousand words, 35 at a time."""

    def model() -> nn.Module:
        return LanguageModel(nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True), 10_000, 650, 650, 0.5)

    return step("word_lstm", model, lambda: texts(batch, 35, 10_000), label_places, precision=precision,
                optimizer=optimizer)  # fmt: skip


class SentenceClassifier(nn.Module):
    """Both directions over a text, and the largest of every number."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.layers = nn.GRU(width, hidden, layers, batch_first=True, bidirectional=True)
        self.classes = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layers(self.embed(x))
        out: Tensor = self.classes(states.amax(1))
        return out


@network("recurrent", (8, 512))
def gru_sentences(batch: int = 64, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Two bidirectional layers of 192 over 200 words."""

    def batches() -> Batch:
        return {"x": torch.randint(30_000, (batch, 200)), "y": torch.randint(5, (batch,))}

    return step("gru_sentences", lambda: SentenceClassifier(30_000, 128, 192, 2, 5), batches, classify,
                precision=precision, optimizer=optimizer)  # fmt: skip


class SensorModel(nn.Module):
    """The last state of a small recurrent network says what follows."""

    def __init__(self, layers: nn.Module, hidden: int, features: int) -> None:
        super().__init__()
        self.layers, self.answer = layers, nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, features))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layers(x)
        out: Tensor = self.answer(states[:, -1])
        return out


@network("recurrent", (16, 4096))
def lstm_sensors(batch: int = 256, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """A layer of 64 over 120 readings of eleven sensors."""

    def batches() -> Batch:
        return {"x": torch.randn(batch, 120, 11), "y": torch.randn(batch, 11)}

    return step("lstm_sensors", lambda: SensorModel(nn.LSTM(11, 64, batch_first=True), 64, 11), batches, reconstruct,
                precision=precision, optimizer=optimizer)  # fmt: skip


class Captions(nn.Module):
    """A cell that looks at places of a picture before each word."""

    def __init__(self, vocabulary: int, hidden: int, features: int) -> None:
        super().__init__()
        self.embed, self.start = nn.Embedding(vocabulary, hidden), nn.Linear(features, hidden)
        self.cell = nn.LSTMCell(hidden + features, hidden)
        self.look, self.words = nn.Linear(hidden, features), nn.Linear(hidden, vocabulary)

    def forward(self, places: Tensor, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.start(places.mean(1)))
        state = (hidden, torch.zeros_like(hidden))
        found = []
        for word in self.embed(x).unbind(1):
            weights = torch.softmax((places @ self.look(state[0]).unsqueeze(-1)).squeeze(-1), -1)
            seen = (weights.unsqueeze(-1) * places).sum(1)
            state = self.cell(torch.cat([word, seen], -1), state)
            found.append(self.words(state[0]))
        return torch.stack(found, 1)


@network("recurrent", (8, 256))
def lstm_captions(batch: int = 64, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Twenty words about 49 places of a picture, a cell of 512 at a time."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        return F.cross_entropy(m(b["places"], b["x"]).flatten(0, 1), b["y"].flatten())

    def batches() -> Batch:
        return {"places": torch.randn(batch, 49, 512), **texts(batch, 20, 8000)}

    return step("lstm_captions", lambda: Captions(8000, 512, 512), batches, loss, precision=precision,
                optimizer=optimizer, forward=lambda m, b: m(b["places"], b["x"]))  # fmt: skip


@network("letters", (8, 256))
def letters_three(batch: int = 64, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Three layers of 512 over 100 characters."""

    def model() -> nn.Module:
        return LanguageModel(nn.LSTM(128, 512, 3, dropout=0.2, batch_first=True), 96, 128, 512)

    return step("letters_three", model, lambda: texts(batch, 100, 96), label_places, precision=precision,
                optimizer=optimizer)  # fmt: skip


class OneHot(nn.Module):
    """Characters as they are, without an embedding."""

    def __init__(self, count: int, layers: nn.Module, hidden: int) -> None:
        super().__init__()
        self.count, self.layers, self.answer = count, layers, nn.Linear(hidden, count)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layers(F.one_hot(x, self.count).to(self.answer.weight.dtype))
        out: Tensor = self.answer(states)
        return out


@network("letters", (8, 256))
def letters_gru(batch: int = 50, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Three layers of GRU, 256 wide, over 200 characters given one-hot."""
    return step("letters_gru", lambda: OneHot(80, nn.GRU(80, 256, 3, batch_first=True), 256),
                lambda: texts(batch, 200, 80), label_places, precision=precision, optimizer=optimizer)  # fmt: skip


def scan_in_logs(coefficients: Tensor, values: Tensor) -> Tensor:
    """h = a h + b at every place, from logarithms of a and b, by running sums."""
    sums = coefficients.cumsum(1)
    return torch.exp(sums + torch.logcumsumexp(values - sums, 1))


class MinimalGRU(nn.Module):
    """A gate and a candidate that know nothing of the state before, so that all places are found at once."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.both, self.out = nn.RMSNorm(width), nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, candidate = self.both(self.norm(x)).float().chunk(2, -1)
        positive = torch.where(candidate >= 0, (F.relu(candidate) + 0.5).log(), -F.softplus(-candidate))
        states = scan_in_logs(-F.softplus(gate), -F.softplus(-gate) + positive)
        return x + self.out(states.to(x.dtype))  # type: ignore[no-any-return]


@network("recurrence", (2, 64))
def minimal_gru(batch: int = 16, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    """Six layers over 512 characters."""

    def model() -> nn.Module:
        return LanguageModel(nn.Sequential(*(MinimalGRU(256, 384) for _ in range(6))), 256, 256, 256)

    return step("minimal_gru", model, lambda: texts(batch, 512, 256), label_places, precision=precision,
                optimizer=optimizer)  # fmt: skip


class SelectiveScan(nn.Module):
    """A state of some numbers for each channel that is stepped along the sequence, as selective models have it."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.width, self.state = width, state
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.near = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.pick, self.step = nn.Linear(2 * width, 2 * state + 16), nn.Linear(16, 2 * width)
        self.decay = nn.Parameter(torch.randn(2 * width, state))

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.into(x).chunk(2, -1)
        inner = F.silu(self.near(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        first, second, rate = self.pick(inner).split([self.state, self.state, 16], -1)
        rate = F.softplus(self.step(rate))
        kept = torch.exp(rate.unsqueeze(-1) * -torch.exp(self.decay))
        added = (rate * inner).unsqueeze(-1) * first.unsqueeze(2)
        state = torch.zeros_like(added[:, 0])
        found = []
        for t in range(x.shape[1]):
            state = kept[:, t] * state + added[:, t]
            found.append((state @ second[:, t].unsqueeze(-1)).squeeze(-1))
        return x + self.out(torch.stack(found, 1) * F.silu(gate))  # type: ignore[no-any-return]


@network("recurrence", (2, 64))
def selective_scan(batch: int = 8, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    """Two layers over 48 words, with a loop in Python."""

    def model() -> nn.Module:
        return LanguageModel(nn.Sequential(*(SelectiveScan(256, 16) for _ in range(2))), 4000, 256, 256)

    return step("selective_scan", model, lambda: texts(batch, 48, 4000), label_places, precision=precision,
                optimizer=optimizer)  # fmt: skip


class DiagonalRecurrence(nn.Module):
    """Decays of each channel, doubled in reach pass by pass: log(length) passes over everything."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates, self.out, self.norm = nn.Linear(width, 2 * width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        decay, value = self.gates(self.norm(x)).chunk(2, -1)
        decay = torch.sigmoid(decay)
        value = value * (1 - decay)
        for level in range(math.ceil(math.log2(x.shape[1]))):
            reach = 1 << level
            earlier = F.pad(value, (0, 0, reach, 0))[:, : x.shape[1]]
            value = value + decay * earlier
            decay = decay * F.pad(decay, (0, 0, reach, 0), value=1.0)[:, : x.shape[1]]
        return x + self.out(F.gelu(value))  # type: ignore[no-any-return]


@network("recurrence", (2, 64))
def diagonal_recurrence(batch: int = 16, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    """Four layers over 1,024 places of a signal, its class at each place."""

    def model() -> nn.Module:
        return LanguageModel(nn.Sequential(*(DiagonalRecurrence(192) for _ in range(4))), 512, 192, 192)

    return step("diagonal_recurrence", model, lambda: texts(batch, 1024, 512), label_places, precision=precision,
                optimizer=optimizer)  # fmt: skip
