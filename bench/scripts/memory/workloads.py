"""Workloads that no model library names: recurrent, recommendation, diffusion, adapters, custom steps."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

from foretell import Workload
from foretell.sources.named.optimizers import optimizer_named


def _classify(model, b):
    return F.cross_entropy(model(b["x"]), b["y"])


class Recurrent(nn.Module):
    def __init__(self, kind, vocabulary=20000, width=650, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, layers, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def _language(name, model, batch, seq, precision, optimizer, vocabulary=20000, answers=None):
    return Workload(
        name=name, model=model,
        batch=lambda: {
            "x": torch.randint(vocabulary, (batch, seq)), "y": torch.randint(answers or vocabulary, (batch, seq))
        },
        loss=lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


def lstm(batch: int = 64, seq: int = 70, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("lstm", lambda: Recurrent(nn.LSTM), batch, seq, precision, optimizer)


def gru(batch: int = 64, seq: int = 70, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("gru", lambda: Recurrent(nn.GRU), batch, seq, precision, optimizer)


class Tagger(nn.Module):
    def __init__(self, vocabulary=20000, width=300, hidden=256, tags=45):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def tagger(batch: int = 64, seq: int = 70, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("tagger", Tagger, batch, seq, precision, optimizer, answers=45)


def letters(batch: int = 64, seq: int = 128, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    def model():
        return Recurrent(nn.LSTM, vocabulary=128, width=1024, layers=1)

    return _language("letters", model, batch, seq, precision, optimizer, vocabulary=128)


class Translator(nn.Module):
    """An LSTM reads, another writes and looks at what was read."""

    def __init__(self, vocabulary=20000, width=512):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.reads = nn.LSTM(width, width // 2, 2, bidirectional=True, dropout=0.2)
        self.writes = nn.LSTM(width, width, 2, dropout=0.2)
        self.joins = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        tokens = self.embed(x).transpose(0, 1)
        read, _ = self.reads(tokens)
        written, _ = self.writes(tokens)
        weights = torch.bmm(written.transpose(0, 1), read.permute(1, 2, 0)).softmax(-1)
        seen = torch.bmm(weights, read.transpose(0, 1))
        return self.head(self.joins(torch.cat([written.transpose(0, 1), seen], -1)).tanh())


def translator(batch: int = 64, seq: int = 35, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("translator", Translator, batch, seq, precision, optimizer)


class Listener(nn.Module):
    """Convolutions over a spectrogram, recurrent layers over its frames, a letter for each."""

    def __init__(self, bands=80, hidden=512, letters=29):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (11, 11), (2, 2), (5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (11, 11), (2, 1), (5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnn = nn.GRU(32 * bands // 4, hidden, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, letters)

    def forward(self, x):
        heard = self.front(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.rnn(heard)[0])


def listener(batch: int = 16, seq: int = 512, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return Workload(
        name="listener", model=Listener,
        batch=lambda: {"x": torch.randn(batch, 1, 80, seq), "y": torch.randint(29, (batch, (seq + 1) // 2))},
        loss=lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


class Forecaster(nn.Module):
    def __init__(self, series=7, hidden=64):
        super().__init__()
        self.rnn = nn.GRU(series, hidden, 2, batch_first=True)
        self.head = nn.Linear(hidden, series)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def forecaster(batch: int = 256, seq: int = 96, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return Workload(
        name="forecaster", model=Forecaster,
        batch=lambda: {"x": torch.randn(batch, seq, 7), "y": torch.randn(batch, 7)},
        loss=lambda m, b: F.mse_loss(m(b["x"]).float(), b["y"].float()),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


class Encoder(nn.Module):
    def __init__(self, vocabulary=20000, width=512, layers=6):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 2048, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.layers(self.embed(x), mask=mask, is_causal=True))


def transformer_lm(batch: int = 32, seq: int = 256, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("transformer_lm", Encoder, batch, seq, precision, optimizer)


def mlp(batch: int = 1024, precision: str = "fp32", optimizer: str = "adamw") -> Workload:
    widths = [784, 4096, 4096, 4096, 4096, 1000]

    def model():
        layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return Workload(
        name="mlp", model=model, batch=lambda: {"x": torch.randn(batch, 784), "y": torch.randint(1000, (batch,))},
        loss=_classify, optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


class LowRank(nn.Module):
    """A frozen linear layer with a trainable low-rank addition."""

    def __init__(self, frozen, rank=16):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False, dtype=frozen.weight.dtype)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, dtype=frozen.weight.dtype)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def lora_llama(batch: int = 4, seq: int = 1024, precision: str = "bf16") -> Workload:
    def model():
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32,
                             num_key_value_heads=4, vocab_size=32000, use_cache=False)  # fmt: skip
        llama = LlamaForCausalLM(config).requires_grad_(False)
        for layer in llama.model.layers:
            for name in ("q_proj", "v_proj"):
                setattr(layer.self_attn, name, LowRank(getattr(layer.self_attn, name)))
        return llama

    return Workload(
        name="lora_llama", model=model, batch=lambda: {"input_ids": torch.randint(32000, (batch, seq))},
        loss=lambda m, b: m(input_ids=b["input_ids"], labels=b["input_ids"]).loss,
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4), precision=precision,
    )  # fmt: skip


def frozen_backbone(batch: int = 128, precision: str = "amp-bf16") -> Workload:
    def model():
        import timm

        net = timm.create_model("resnet50").requires_grad_(False)
        net.fc.requires_grad_(True)
        return net

    return Workload(
        name="frozen_backbone", model=model,
        batch=lambda: {"x": torch.randn(batch, 3, 224, 224), "y": torch.randint(1000, (batch,))}, loss=_classify,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), precision=precision,
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, into, out, time_width=512):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, into), nn.Conv2d(into, out, 3, padding=1)
        self.time = nn.Linear(time_width, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SelfAttention(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.norm, self.qkv, self.out, self.heads = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
            heads,
        )

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, widths=(128, 256, 512)):
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

    def forward(self, x, t):
        angles = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(64, device=t.device) / 64)
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x, kept = self.first(x), []
        for residual, attention, shrink in self.down:
            x = attention(residual(x, t))
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, t)
        for residual, attention in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = attention(residual(torch.cat([x, kept.pop()], 1), t))
        return self.last(x)


def unet(batch: int = 8, precision: str = "amp-bf16", channels_last: bool = False) -> Workload:
    return Workload(
        name="unet", model=UNet,
        batch=lambda: {"x": torch.randn(batch, 4, 64, 64), "t": torch.rand(batch), "noise": torch.randn(batch, 4, 64, 64)},
        loss=lambda m, b: F.mse_loss(m(b["x"], b["t"]), b["noise"]), optimizer=lambda p: torch.optim.AdamW(p),
        precision=precision, channels_last=channels_last,
    )  # fmt: skip


class MixtureOfExperts(nn.Module):
    """Routes each token to two of eight experts, one expert after another."""

    def __init__(self, width=512, experts=8):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width)) for _ in range(experts)
        )

    def forward(self, x):
        flat = x.flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            out.index_add_(0, token, (expert(flat[token]) * weights[token, slot, None]).to(out.dtype))
        return out.view_as(x)


class SparseLanguageModel(nn.Module):
    def __init__(self, vocabulary=20000, width=512, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(layers))
        self.experts = nn.ModuleList(MixtureOfExperts(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        x = self.embed(x)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + experts(x)
        return self.head(x)


def moe(batch: int = 8, seq: int = 512, precision: str = "bf16", optimizer: str = "adamw") -> Workload:
    return _language("moe", SparseLanguageModel, batch, seq, precision, optimizer)


class Autoencoder(nn.Module):
    def __init__(self):
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

    def forward(self, x):
        return self.decode(self.encode(x))


def autoencoder(batch: int = 64, precision: str = "amp-bf16") -> Workload:
    return Workload(
        name="autoencoder", model=Autoencoder, batch=lambda: {"x": torch.randn(batch, 3, 128, 128)},
        loss=lambda m, b: F.l1_loss(m(b["x"]), b["x"]), optimizer=lambda p: torch.optim.Adam(p), precision=precision,
    )  # fmt: skip


def tcn(batch: int = 64, precision: str = "fp32") -> Workload:
    """Dilated one-dimensional convolutions over a long signal."""

    def model():
        layers = [
            nn.Sequential(nn.Conv1d(64, 64, 3, padding=2**i, dilation=2**i), nn.BatchNorm1d(64), nn.ReLU())
            for i in range(8)
        ]
        return nn.Sequential(nn.Conv1d(2, 64, 1), *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10))

    return Workload(
        name="tcn", model=model, batch=lambda: {"x": torch.randn(batch, 2, 8192), "y": torch.randint(10, (batch,))},
        loss=_classify, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), precision=precision,
    )  # fmt: skip


class Recommender(nn.Module):
    def __init__(self, tables=26, rows=100_000, width=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width))
        self.top = nn.Sequential(nn.Linear(width + (tables + 1) * tables // 2, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        features = torch.stack(
            [x, *(table(column[:, None]) for table, column in zip(self.tables, sparse.unbind(1), strict=True))], 1
        )
        products = features @ features.transpose(1, 2)
        row, column = torch.tril_indices(features.shape[1], features.shape[1], -1, device=x.device)
        return self.top(torch.cat([x, products[:, row, column]], 1)).squeeze(1)


def dlrm(batch: int = 8192, precision: str = "fp32", optimizer: str = "sgd") -> Workload:
    return Workload(
        name="dlrm", model=Recommender,
        batch=lambda: {"dense": torch.randn(batch, 13), "sparse": torch.randint(100_000, (batch, 26)), "y": torch.rand(batch)},
        loss=lambda m, b: F.binary_cross_entropy_with_logits(m(b["dense"], b["sparse"]), b["y"]),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


class Adversaries(nn.Module):
    def __init__(self):
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


def two_optimizers(batch: int = 64) -> Workload:
    """A generator and a critic trained in turn: a step of the user's own."""

    def step(model, optimizer, b):
        fake = model.generator(b["z"])
        critic_loss = F.softplus(model.critic(fake.detach())).mean() + F.softplus(-model.critic(b["x"])).mean()
        critic_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        F.softplus(-model.critic(fake)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(
        name="two_optimizers", model=Adversaries,
        batch=lambda: {"x": torch.randn(batch, 3, 32, 32), "z": torch.randn(batch, 128)},
        loss=lambda m, b: m.critic(b["x"]).mean(), optimizer=lambda p: torch.optim.Adam(p), step=step,
    )  # fmt: skip
