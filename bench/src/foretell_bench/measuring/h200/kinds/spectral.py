"""Capsules, Fourier layers and convolutions as long as their signal."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.convolutional import images
from foretell_bench.measuring.h200.kinds.network import FULL, Batch, classify, label_places, network, reconstruct, step
from foretell_bench.measuring.h200.kinds.recurrent import LanguageModel, texts


def squash(x: Tensor) -> Tensor:
    """Vectors of a length below one."""
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-7).sqrt()


class Capsules(nn.Module):
    """Votes of all capsules for all capsules above, and rounds of agreement."""

    def __init__(self, below: int, width: int, above: int, wide: int, rounds: int) -> None:
        super().__init__()
        self.votes, self.rounds = nn.Parameter(torch.randn(above, below, wide, width) * 0.01), rounds

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("abwi,nbi->nabw", self.votes, x)
        logits = torch.zeros_like(votes[..., 0])
        found = x
        for turn in range(self.rounds):
            shares = logits.softmax(1)
            found = squash(torch.einsum("nab,nabw->naw", shares, votes))
            if turn < self.rounds - 1:
                logits = logits + torch.einsum("nabw,naw->nab", votes, found)
        return found


class CapsuleNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 256, 9), nn.Conv2d(256, 256, 9, 2)
        self.capsules = Capsules(1152, 8, 10, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(F.relu(self.first(x)))
        x = x.unflatten(1, (32, 8)).permute(0, 1, 3, 4, 2).flatten(1, 3)
        out: Tensor = self.capsules(squash(x)).norm(dim=-1)
        return out


@network("capsule", (16, 512))
def capsule_digits(batch: int = 128, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """1,152 capsules that vote for ten classes of digits, with a margin."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        lengths, wanted = m(b["x"]), F.one_hot(b["y"], 10)
        return (wanted * F.relu(0.9 - lengths) ** 2 + 0.5 * (1 - wanted) * F.relu(lengths - 0.1) ** 2).sum(1).mean()

    return step("capsule_digits", CapsuleNetwork, lambda: images(batch, 28, 10, channels=1), loss,
                precision=precision, optimizer=optimizer)  # fmt: skip


class PoseLayer(nn.Module):
    """Four by four poses of every place, each multiplied by a matrix of its pair of types."""

    def __init__(self, types: int, outputs: int) -> None:
        super().__init__()
        self.turn, self.weigh = nn.Parameter(torch.randn(types, outputs, 4, 4)), nn.Linear(types, outputs)

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("npiab,ijbc->npijac", x, self.turn)
        shares = self.weigh(x.flatten(-2).norm(dim=-1)).softmax(-1)
        out = torch.einsum("npijac,npj->npjac", votes, shares)
        return F.layer_norm(out, out.shape[-2:])


class PoseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 64, 5, 2, 2), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1))
        self.layers = nn.Sequential(PoseLayer(8, 16), PoseLayer(16, 16), PoseLayer(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        poses = self.stem(x).unflatten(1, (8, 4, 4)).flatten(4).permute(0, 4, 1, 2, 3)
        out: Tensor = self.layers(poses).mean(1).flatten(-2).norm(dim=-1)
        return out


@network("capsule", (8, 256))
def capsule_poses(batch: int = 32, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Three layers of poses over a quarter of 32 pixels."""
    return step("capsule_poses", PoseNetwork, lambda: images(batch, 32, 5, channels=2), classify,
                precision=precision, optimizer=optimizer)  # fmt: skip


class FourierLayer(nn.Module):
    """The lowest frequencies of an image, mixed by a matrix for each of them, beside a pointwise path."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes, self.near = modes, nn.Conv2d(width, width, 1)
        self.mix = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width**2)

    def forward(self, x: Tensor) -> Tensor:
        seen, m = torch.fft.rfft2(x.float()), self.modes
        low, high = (torch.view_as_complex(part.float().contiguous()) for part in self.mix)
        out = torch.zeros_like(seen)
        out[:, :, :m, :m] = torch.einsum("nixy,ioxy->noxy", seen[:, :, :m, :m], low)
        out[:, :, -m:, :m] = torch.einsum("nixy,ioxy->noxy", seen[:, :, -m:, :m], high)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]).to(x.dtype) + self.near(x))


@network("fourier", (2, 64), precisions=(*FULL, "amp-bf16"))
def fourier_operator(batch: int = 16, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Four layers of twelve modes on flows of 64 by 64."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 32, 1), *(FourierLayer(32, 12) for _ in range(4)), nn.Conv2d(32, 1, 1))

    def batches() -> Batch:
        return {"x": torch.randn(batch, 3, 64, 64), "y": torch.randn(batch, 1, 64, 64)}

    return step("fourier_operator", model, batches, reconstruct, precision=precision, optimizer=optimizer)


class LongConvolution(nn.Module):
    """A filter as long as the text, multiplied in frequencies, between two gates."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.places = nn.Parameter(torch.randn(length, 32))
        self.filter = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, width))
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        value, before, after = self.into(x).transpose(1, 2).chunk(3, 1)
        value, length = value * before, x.shape[1]
        taps = self.filter(self.places).transpose(0, 1).float()
        product = torch.fft.rfft(value.float(), n=2 * length) * torch.fft.rfft(taps, n=2 * length)
        found = torch.fft.irfft(product, n=2 * length)[..., :length].to(x.dtype) + value * self.bias[:, None]
        return x + self.out((found * after).transpose(1, 2))  # type: ignore[no-any-return]


@network("fourier", (1, 32))
def long_filters(batch: int = 8, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    """Six layers over 2,048 words."""

    def model() -> nn.Module:
        return LanguageModel(nn.Sequential(*(LongConvolution(256, 2048) for _ in range(6))), 8000, 256, 256)

    return step("long_filters", model, lambda: texts(batch, 2048, 8000), label_places, precision=precision,
                optimizer=optimizer)  # fmt: skip


@network("fourier", (2, 96))
def long_kernels(batch: int = 16, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """One-dimensional convolutions of 251 to 31 taps on a second of sound."""

    def model() -> nn.Module:
        sizes = ((1, 80, 251), (80, 64, 101), (64, 64, 31))
        layers: list[nn.Module] = []
        for inputs, outputs, size in sizes:
            layers += [nn.Conv1d(inputs, outputs, size), nn.BatchNorm1d(outputs), nn.LeakyReLU(0.2), nn.MaxPool1d(3)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 460))

    def batches() -> Batch:
        return {"x": torch.randn(batch, 1, 16_000), "y": torch.randint(460, (batch,))}

    return step("long_kernels", model, batches, classify, precision=precision, optimizer=optimizer)
