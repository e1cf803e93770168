"""Blind: recurrent layers, characters and recurrences of other designs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, network, step


class Phonemes(nn.Module):
    """Both directions, the sides added, layer norms between; frames of speech."""

    def __init__(self, features: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        sizes = [features] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(nn.LSTM(n, hidden, bidirectional=True) for n in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in sizes)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            ahead, back = layer(x)[0].chunk(2, -1)
            x = norm(ahead + back)
        out: Tensor = self.classes(x)
        return out


@network("recurrent", (4, 256))
def phonemes(batch: int = 24, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(300, batch, 40), "y": torch.randint(61, (300, batch))}

    return step("phonemes", lambda: Phonemes(40, 320, 4, 61), batches,
                lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()), precision=precision,
                optimizer=optimizer)  # fmt: skip


class Demand(nn.Module):
    """A GRU reads the past, another says the days to come one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.shops = nn.Embedding(500, 12)
        self.past, self.coming, self.sold = (
            nn.GRU(16, 96, 2, batch_first=True, dropout=0.1),
            nn.GRUCell(13, 96),
            nn.Linear(96, 1),
        )

    def forward(self, x: Tensor, shop: Tensor) -> Tensor:
        who = self.shops(shop)
        _, state = self.past(torch.cat([x, who.unsqueeze(1).expand(-1, x.shape[1], -1)], -1))
        hidden, last, found = state[-1], x[:, -1, :1], []
        for _ in range(14):
            hidden = self.coming(torch.cat([last, who], 1), hidden)
            last = self.sold(hidden)
            found.append(last)
        return torch.cat(found, 1)


@network("recurrent", (32, 4096))
def demand(batch: int = 512, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(batch, 84, 4), "shop": torch.randint(500, (batch,)), "y": torch.rand(batch, 14)}

    return step("demand", Demand, batches, lambda m, b: F.l1_loss(m(b["x"], b["shop"]).float(), b["y"].float()),
                precision=precision, optimizer=optimizer, forward=lambda m, b: m(b["x"], b["shop"]))  # fmt: skip


class Pair(nn.Module):
    """Two texts by one LSTM; whether they mean the same, by distance of their last states."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(40_000, 300), nn.LSTM(300, 1024, batch_first=True)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        (one, _), (two, _) = (self.read(self.words(text))[1] for text in (x, z))
        return torch.exp(-(one[-1] - two[-1]).abs().mean(1))


@network("recurrent", (4, 512))
def same_meaning(batch: int = 64, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {name: torch.randint(40_000, (batch, 48)) for name in ("x", "z")} | {"y": torch.rand(batch)}

    return step("same_meaning", Pair, batches, lambda m, b: F.mse_loss(m(b["x"], b["z"]).float(), b["y"].float()),
                precision=precision, optimizer=optimizer, forward=lambda m, b: m(b["x"], b["z"]))  # fmt: skip


class Letters(nn.Module):
    """Sequence first, embedding tied to the answer when it fits."""

    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], letters: int, hidden: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, hidden)
        self.layers = kind(hidden, hidden, layers, dropout=dropout)
        self.answer = nn.Linear(hidden, letters)
        self.answer.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.answer(self.layers(self.embed(x.T))[0])
        return out


@network("letters", (4, 256))
def letters_wide(batch: int = 32, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Three layers of 896 over 150 characters, tied."""

    def batches() -> Batch:
        return {"x": torch.randint(65, (batch, 150)), "y": torch.randint(65, (150, batch))}

    return step("letters_wide", lambda: Letters(nn.LSTM, 65, 896, 3, 0.5), batches,
                lambda m, b: F.nll_loss(m(b["x"]).log_softmax(-1).flatten(0, 1), b["y"].flatten()),
                precision=precision, optimizer=optimizer)  # fmt: skip


@network("letters", (16, 1024))
def names_small(batch: int = 128, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """Three layers of 100 over names of 16 characters."""

    def batches() -> Batch:
        return {"x": torch.randint(28, (batch, 16)), "y": torch.randint(28, (16, batch))}

    return step("names_small", lambda: Letters(nn.LSTM, 28, 100, 3, 0.0), batches,
                lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()), precision=precision,
                optimizer=optimizer)  # fmt: skip


class ExpandedGate(nn.Module):
    """Two thirds of a width keep running means, found by running sums and products of decays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * 3 // 2
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        decay, value, gate = self.into(self.norm(x)).chunk(3, -1)
        kept = (0.9 + 0.1 * torch.sigmoid(decay.float())).cumprod(1).clamp_min(1e-6)
        state = kept * (value.float() / kept).cumsum(1)
        return x + self.out(state.to(x.dtype) * F.silu(gate))  # type: ignore[no-any-return]


class Notes(nn.Module):
    def __init__(self, layer: type[nn.Module], width: int, count: int, notes: int) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(notes, width), nn.Sequential(*(layer(width) for _ in range(count)))
        self.answer = nn.Linear(width, notes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.answer(self.layers(self.embed(x)))
        return out


def _of_notes(model: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(model(b["x"]).movedim(-1, 1).float(), b["y"])


@network("recurrence", (2, 96))
def running_means(batch: int = 24, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randint(128, (batch, 384)), "y": torch.randint(128, (batch, 384))}

    return step("running_means", lambda: Notes(ExpandedGate, 320, 4, 128), batches, _of_notes, precision=precision,
                optimizer=optimizer)  # fmt: skip


class FastWeights(nn.Module):
    """A matrix of state per head, written by an outer product and read by a query at every place."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.randn(heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(2, (self.heads, -1)) for part in self.into(x).chunk(3, -1))
        decay, found = torch.sigmoid(self.decay), []
        state = key.new_zeros(len(x), self.heads, key.shape[-1], key.shape[-1])
        for place in range(x.shape[1]):
            state = state * decay + key[:, place].unsqueeze(-1) * value[:, place].unsqueeze(-2)
            found.append(torch.einsum("nhk,nhkv->nhv", query[:, place], state.to(query.dtype)).flatten(1))
        return x + self.out(torch.stack(found, 1))  # type: ignore[no-any-return]


@network("recurrence", (2, 96))
def fast_weights(batch: int = 16, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randint(64, (batch, 40)), "y": torch.randint(64, (batch, 40))}

    return step("fast_weights", lambda: Notes(FastWeights, 192, 2, 64), batches, _of_notes, precision=precision,
                optimizer=optimizer)  # fmt: skip
