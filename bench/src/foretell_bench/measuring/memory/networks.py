"""Networks that no model library names: recurrent, recommendation, diffusion, adapters, mixtures of experts."""

# mypy: disable-error-code="no-any-return"
# Calling a Module gives Any in torch.

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    def __init__(
        self, kind: type[nn.LSTM | nn.GRU], vocabulary: int = 20000, width: int = 650, layers: int = 2
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, layers, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0])


class Tagger(nn.Module):
    def __init__(self, vocabulary: int = 20000, width: int = 300, hidden: int = 256, tags: int = 45) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0])


class Translator(nn.Module):
    """An LSTM reads, another writes and looks at what was read."""

    def __init__(self, vocabulary: int = 20000, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.reads = nn.LSTM(width, width // 2, 2, bidirectional=True, dropout=0.2)
        self.writes = nn.LSTM(width, width, 2, dropout=0.2)
        self.joins = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).transpose(0, 1)
        read, _ = self.reads(tokens)
        written, _ = self.writes(tokens)
        weights = torch.bmm(written.transpose(0, 1), read.permute(1, 2, 0)).softmax(-1)
        seen = torch.bmm(weights, read.transpose(0, 1))
        return self.head(self.joins(torch.cat([written.transpose(0, 1), seen], -1)).tanh())


class Listener(nn.Module):
    """Convolutions over a spectrogram, recurrent layers over its frames, a letter for each."""

    def __init__(self, bands: int = 80, hidden: int = 512, letters: int = 29) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (11, 11), (2, 2), (5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (11, 11), (2, 1), (5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnn = nn.GRU(32 * bands // 4, hidden, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, letters)

    def forward(self, x: Tensor) -> Tensor:
        heard = self.front(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.rnn(heard)[0])


class Forecaster(nn.Module):
    def __init__(self, series: int = 7, hidden: int = 64) -> None:
        super().__init__()
        self.rnn = nn.GRU(series, hidden, 2, batch_first=True)
        self.head = nn.Linear(hidden, series)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self, vocabulary: int = 20000, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 2048, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.layers(self.embed(x), mask=mask, is_causal=True))


class LowRank(nn.Module):
    """A frozen linear layer with a trainable low-rank addition."""

    def __init__(self, frozen: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False, dtype=frozen.weight.dtype)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, dtype=frozen.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Residual(nn.Module):
    def __init__(self, into: int, out: int, time_width: int = 512) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, into), nn.Conv2d(into, out, 3, padding=1)
        self.time = nn.Linear(time_width, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.norm, self.qkv, self.out, self.heads = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
            heads,
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (128, 256, 512)) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.down, self.up, previous = nn.ModuleList(), nn.ModuleList(), widths[0]
        for width in widths:
            self.down.append(
                nn.ModuleList(
                    [Residual(previous, width), SelfAttention(width), nn.Conv2d(width, width, 3, stride=2, padding=1)]
                )
            )
            previous = width
        self.middle = Residual(previous, previous)
        for width in reversed(widths):
            self.up.append(nn.ModuleList([Residual(previous + width, width), SelfAttention(width)]))
            previous = width
        self.last = nn.Conv2d(previous, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(64, device=t.device) / 64)
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x, kept = self.first(x), []
        for level in self.down:
            residual, attention, shrink = level.children()
            x = attention(residual(x, t))
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, t)
        for level in self.up:
            residual, attention = level.children()
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = attention(residual(torch.cat([x, kept.pop()], 1), t))
        return self.last(x)


class MixtureOfExperts(nn.Module):
    """Routes each token to two of eight experts, one expert after another."""

    def __init__(self, width: int = 512, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            out.index_add_(0, token, (expert(flat[token]) * weights[token, slot, None]).to(out.dtype))
        return out.view_as(x)


class SparseLanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 20000, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(layers))
        self.experts = nn.ModuleList(MixtureOfExperts(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + experts(x)
        return self.head(x)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            *(
                part
                for a, b in ((3, 64), (64, 128), (128, 256))
                for part in (nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            )
        )
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(256, 128, 4, 2, 1),
            nn.InstanceNorm2d(128),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class Recommender(nn.Module):
    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width))
        self.top = nn.Sequential(nn.Linear(width + (tables + 1) * tables // 2, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack(
            [x, *(table(column[:, None]) for table, column in zip(self.tables, sparse.unbind(1), strict=True))], 1
        )
        products = features @ features.transpose(1, 2)
        row, column = torch.tril_indices(features.shape[1], features.shape[1], -1, device=x.device)
        return self.top(torch.cat([x, products[:, row, column]], 1)).squeeze(1)


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(128, 256 * 64),
            nn.Unflatten(1, (256, 8, 8)),
            nn.ConvTranspose2d(256, 128, 4, 2, 1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(128 * 64, 1),
        )
