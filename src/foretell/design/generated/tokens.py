"""Sequences of tokens: attention in many forms, gated and routed layers, language, pairs and masked parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.draw import Draw, Network, Residual, mlp

_TOKENS = (2**9, 2**15)  # of a batch


def norm(draw: Draw, width: int) -> nn.Module:
    kind = draw.weighted({"layer": 4, "rms": 3, "scale": 1})
    kinds: dict[str, Any] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "scale": ScaleNorm}
    made: nn.Module = kinds[kind](width)
    return made


class ScaleNorm(nn.Module):
    """Written by hand, as people do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).to(x.dtype) * self.gain


class Attention(nn.Module):
    """Any size of heads, fewer keys than queries, masks, rotations, and a second sequence to look at."""

    def __init__(self, draw: Draw, width: int, length: int, cross: bool) -> None:
        super().__init__()
        size = draw.choice([d for d in (4, 8, 16, 24, 32, 40, 64, 80, 96, 128, 192, 256) if d <= max(width, 4)])
        self.heads = max(1, width // size)
        self.kept = draw.divisor(self.heads) if draw.chance(0.3) else self.heads
        self.size, self.cross = size, cross
        self.masking = draw.weighted({"none": 3, "causal": 4, "bool": 2, "float": 2, "window": 1})
        self.by_hand = draw.chance(0.2)
        self.rotary = draw.chance(0.3)
        self.q = nn.Linear(width, self.heads * size, bias=draw.chance(0.5))
        self.kv = nn.Linear(width, 2 * self.kept * size, bias=draw.chance(0.5))
        self.out = nn.Linear(self.heads * size, width)
        if self.masking == "float":
            self.bias = nn.Parameter(torch.zeros(self.heads, length, length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _batch, length, _ = x.shape
        seen = x.roll(1, 1)[:, : max(1, length // 2)] if self.cross else x
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = self.kv(seen).unflatten(-1, (2 * self.kept, self.size)).transpose(1, 2).chunk(2, 1)
        if self.rotary and not self.cross:
            q, k = rotated(q), rotated(k)
        if self.kept != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kept, 1) for t in (k, v))
        mask = self._mask(length, seen.shape[1], x)
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) * self.size**-0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, -1e4) if mask.dtype == torch.bool else scores + mask
            mixed = scores.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.masking == "causal" and not self.cross)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _mask(self, length: int, seen: int, x: torch.Tensor) -> torch.Tensor | None:
        if self.masking == "float":
            return self.bias[:, :length, :seen].to(x.dtype)
        rows, columns = (torch.arange(n, device=x.device) for n in (length, seen))
        if self.masking == "window":
            return (rows[:, None] - columns).abs() < 64
        if self.masking == "bool" or (self.masking == "causal" and self.by_hand):
            return rows[:, None] >= columns
        return None


def rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * (
        10000.0 ** -(torch.arange(half, device=x.device) / half)
    )
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


class LinearAttention(nn.Module):
    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.heads = draw.divisor(width, 16)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(x).chunk(3, -1))
        q, k = q.softmax(-1), k.softmax(1)
        mixed = torch.einsum("blhd,bmhd,bmhe->blhe", q, k, v)
        out: torch.Tensor = self.out(mixed.flatten(2))
        return out


class Gated(nn.Module):
    def __init__(self, draw: Draw, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.gate = draw.activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.up(x).chunk(2, -1)
        out: torch.Tensor = self.down(self.gate(a) * b)
        return out


class Routed(nn.Module):
    """A few experts; every token takes the best two, by a gather of their outputs."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.router(x).softmax(-1).topk(2, -1)
        every = torch.einsum("bld,edf->blef", x, self.weight.to(x.dtype))
        taken = every.gather(2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        out: torch.Tensor = (taken * scores[..., None]).sum(2).to(x.dtype)
        return out


class Fourier(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.fft.fft2(x.float(), dim=(-2, -1)).real.to(x.dtype)
        return out


class Mixed(nn.Module):
    """A convolution over the places."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        kernel = draw.choice((3, 4, 7, 31))
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel - 1, groups=width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return out


class SelfAttention(nn.Module):
    """torch's own module."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(
            width, draw.divisor(width, 16), batch_first=True, dropout=draw.choice((0.0, 0.1))
        )
        self.weights = draw.chance(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x, x, x, need_weights=self.weights)[0]
        return out


def layer(draw: Draw, width: int, length: int) -> nn.Module:
    kind = draw.weighted(
        {
            "attention": 6,
            "cross": 1,
            "module": 2,
            "encoder": 2,
            "linear": 1,
            "gated": 4,
            "plain": 4,
            "routed": 1,
            "fourier": 1,
            "mixed": 1,
        }
    )
    hidden = draw.width(width, 4 * width)
    if kind == "encoder":
        heads = draw.divisor(width, 16)
        return nn.TransformerEncoderLayer(
            width,
            heads,
            hidden,
            dropout=draw.choice((0.0, 0.1)),
            batch_first=True,
            norm_first=draw.chance(0.5),
            activation=draw.choice(("relu", "gelu")),
        )
    inner: nn.Module
    if kind in ("attention", "cross"):
        inner = Attention(draw, width, length, kind == "cross")
    elif kind == "module":
        inner = SelfAttention(draw, width)
    elif kind == "linear":
        inner = LinearAttention(draw, width)
    elif kind == "gated":
        inner = Gated(draw, width, hidden)
    elif kind == "routed" and width <= 512:
        inner = Routed(width, draw.count(2, 8))
    elif kind == "fourier":
        inner = Fourier()
    elif kind == "mixed":
        inner = Mixed(draw, width)
    else:
        inner = mlp(draw, (width, hidden, width), dropout=draw.choice((0.0, 0.1)))
    return Residual(nn.Sequential(norm(draw, width), inner), in_place=False)


class Tokens(nn.Module):
    def __init__(self, draw: Draw, vocabulary: int, width: int, length: int, outputs: int, task: str) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.layers = nn.Sequential(*[layer(draw, width, length) for _ in range(draw.count(2, 8))])
        self.norm, self.head, self.task = norm(draw, width), nn.Linear(width, outputs, bias=False), task
        if task == "language" and draw.chance(0.4):
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x) + self.places[: x.shape[1]]
        if self.task == "masked":
            tokens = self._some(tokens)
        features = self.norm(self.layers(tokens))
        if self.task in ("classify", "pairs"):
            features = features.mean(1)
        out: torch.Tensor = self.head(features)
        return out

    def _some(self, tokens: torch.Tensor) -> torch.Tensor:
        """A quarter of the places, drawn anew for every sample, as masked autoencoders do."""
        kept = torch.rand(tokens.shape[:2], device=tokens.device).argsort(1)[:, : max(1, tokens.shape[1] // 4)]
        return tokens.gather(1, kept[..., None].expand(-1, -1, tokens.shape[2]))


def network(draw: Draw) -> Network:
    width, length = draw.width(64, 2048, 4), draw.between(16, 2048)
    if draw.chance(0.6):
        length = max(16, length // 16 * 16)
    vocabulary = draw.width(500, 100_000)
    task = draw.weighted({"language": 5, "classify": 3, "pairs": 2, "masked": 2})
    outputs = vocabulary if task == "language" else draw.width(16, 1024)
    batch = max(1, min(1024, draw.between(*_TOKENS) // length))
    if task == "pairs":
        batch = max(batch, 8)

    def texts(n: int) -> dict[str, Any]:
        x = torch.randint(vocabulary, (n, length))
        y = torch.randint(vocabulary, (n, length)) if task == "language" else torch.randint(outputs, (n,))
        return {"x": x, "y": y}

    def loss(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        out: torch.Tensor = model(b["x"])
        if task == "language":
            return F.cross_entropy(out.flatten(0, 1), b["y"].flatten(), label_smoothing=0.0)
        if task == "masked":
            return out.float().pow(2).mean()
        if task == "classify":
            return F.cross_entropy(out, b["y"])
        one, other = F.normalize(out, dim=-1).chunk(2) if len(out) % 2 == 0 else (F.normalize(out, dim=-1),) * 2
        alike = one @ other.T / 0.07
        return F.cross_entropy(alike, torch.arange(len(one), device=out.device))

    return Network(
        model=lambda: Tokens(draw.again("model"), vocabulary, width, length, outputs, task),
        batch_size=batch,
        batch=texts,
        loss=loss,
    )
