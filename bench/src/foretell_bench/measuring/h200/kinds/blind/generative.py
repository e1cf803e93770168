"""Blind: decoders, modulated generators, capsules and Fourier layers of other designs."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import FULL, Batch, network, step


class DigitAutoencoder(nn.Module):
    """Numbers to digits of 28 pixels by kernels of 3, 4 and 4; the answer is a chance per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mean, self.spread, self.start = nn.Linear(3136, 20), nn.Linear(3136, 20), nn.Linear(20, 3136)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(64, 64, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.down(x)
        mean, spread = self.mean(seen), self.spread(seen)
        z = torch.addcmul(mean, torch.exp(spread / 2), torch.randn_like(mean))
        return self.up(F.relu(self.start(z)).view(-1, 64, 7, 7)), mean, spread


@network("decoder", (16, 2048))
def digit_decoder(batch: int = 128, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        found, mean, spread = (part.float() for part in m(b["x"]))
        apart = -0.5 * torch.sum(1 + spread - mean**2 - spread.exp())
        return F.binary_cross_entropy_with_logits(found, b["x"].float(), reduction="sum") + apart

    return step("digit_decoder", DigitAutoencoder, lambda: {"x": torch.rand(batch, 1, 28, 28)}, loss,
                precision=precision, optimizer=optimizer)  # fmt: skip


@network("decoder", (4, 256))
def resized_decoder(
    batch: int = 32, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adamw"
) -> Workload:
    """Codes of 16 by 16 decoded by residual-free levels; two of them transposed with kernels of six."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(8, 384, 3, 1, 1), nn.GroupNorm(32, 384), nn.SiLU(),
            nn.ConvTranspose2d(384, 192, 6, 2, 2), nn.GroupNorm(32, 192), nn.SiLU(), nn.Conv2d(192, 192, 3, 1, 1), nn.SiLU(),
            nn.ConvTranspose2d(192, 96, 6, 2, 2), nn.GroupNorm(32, 96), nn.SiLU(), nn.Conv2d(96, 96, 3, 1, 1), nn.SiLU(),
            nn.ConvTranspose2d(96, 48, 2, 2), nn.SiLU(), nn.Conv2d(48, 3, 3, 1, 1),
        )  # fmt: skip

    def batches() -> Batch:
        return {"x": torch.randn(batch, 8, 16, 16), "y": torch.randn(batch, 3, 128, 128)}

    return step("resized_decoder", model, batches, lambda m, b: F.l1_loss(m(b["x"]).float(), b["y"].float()),
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class StyledLayer(nn.Module):
    """Weights of each sample from one einsum, demodulated, after the picture was enlarged by interpolation."""

    def __init__(self, inputs: int, outputs: int, codes: int, *, enlarge: bool) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs, 3, 3) * 0.05)
        self.scale, self.enlarge, self.bias = nn.Linear(codes, inputs), enlarge, nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        kernels = torch.einsum("oikl,ni->noikl", self.kernel, self.scale(code).to(self.kernel.dtype))
        kernels = kernels / torch.linalg.vector_norm(kernels, dim=(2, 3, 4), keepdim=True).add(1e-6)
        if self.enlarge:
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        n, _, h, w = x.shape
        out = F.conv2d(x.reshape(1, -1, h, w), kernels.flatten(0, 1).to(x.dtype), padding=1, groups=n).view(n, -1, h, w)
        return F.leaky_relu(out + self.bias[:, None, None], 0.1)


class Faces(nn.Module):
    def __init__(self, codes: int, start: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.codes = nn.Sequential(nn.Linear(codes, codes), nn.GELU(), nn.Linear(codes, codes))
        self.start, self.side = nn.Linear(codes, widths[0] * start * start), start
        self.layers = nn.ModuleList(
            StyledLayer(a, b, codes, enlarge=i % 2 == 0) for i, (a, b) in enumerate(itertools.pairwise(widths))
        )
        self.colour = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        code = self.codes(z)
        x = self.start(code).view(len(z), -1, self.side, self.side)
        for layer in self.layers:
            x = layer(x, code)
        out: Tensor = self.colour(x)
        return out


@network("modulated", (1, 64))
def styled_faces(batch: int = 8, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    return step("styled_faces", lambda: Faces(256, 8, (192, 192, 160, 160, 96, 96, 48, 48)),
                lambda: {"x": torch.randn(batch, 256)}, lambda m, b: F.relu(1 - m(b["x"])).mean(), precision=precision,
                optimizer=optimizer)  # fmt: skip


@network("modulated", (2, 192))
def styled_icons(batch: int = 48, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    return step("styled_icons", lambda: Faces(96, 6, (80, 80, 64, 40)), lambda: {"x": torch.randn(batch, 96)},
                lambda m, b: m(b["x"]).float().square().mean(), precision=precision, optimizer=optimizer)  # fmt: skip


class Votes(nn.Module):
    """Capsules that agree, their votes as batched products, without gradients in all rounds but the last."""

    def __init__(self, below: int, width: int, above: int, wide: int) -> None:
        super().__init__()
        self.weight, self.above = nn.Parameter(torch.randn(below, width, above * wide) * 0.02), above

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.bmm(x.transpose(0, 1), self.weight).unflatten(2, (self.above, -1))  # below, batch, above, wide
        shares = torch.full_like(votes[..., :1], 1 / self.above)
        for _ in range(2):
            found = F.normalize((shares * votes.detach()).sum(0, keepdim=True), dim=-1)
            shares = (found * votes.detach()).sum(-1, keepdim=True).softmax(2)
        return F.normalize((shares * votes).sum(0), dim=-1)


class CapsuleSigns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 96, 7, 2), nn.ReLU(), nn.Conv2d(96, 160, 5, 2), nn.ReLU(), nn.Conv2d(160, 96, 3)
        )
        self.middle, self.top = Votes(8 * 49, 12, 24, 16), Votes(24, 16, 43, 16)
        self.length = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        poses = self.stem(x).unflatten(1, (8, 12)).permute(0, 1, 3, 4, 2).flatten(1, 3)
        return self.length(self.top(self.middle(F.normalize(poses, dim=-1)))).squeeze(-1)  # type: ignore[no-any-return]


@network("capsule", (8, 512))
def capsule_signs(batch: int = 64, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(batch, 3, 48, 48), "y": torch.randint(43, (batch,))}

    return step("capsule_signs", CapsuleSigns, batches, lambda m, b: F.multi_margin_loss(m(b["x"]).float(), b["y"]),
                precision=precision, optimizer=optimizer)  # fmt: skip


class Bilinear(nn.Module):
    """Every pair of parts meets in a product of three tensors, as relation networks write it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, rank), nn.Linear(width, rank)
        self.core = nn.Parameter(torch.randn(rank, rank, width) * 0.01)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        return x + torch.einsum("nir,njs,rsw->niw", left, right.softmax(-1), self.core.to(left.dtype)) / x.shape[1]


@network("capsule", (4, 256))
def bilinear_parts(batch: int = 32, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 96), Bilinear(96, 24), Bilinear(96, 24), Bilinear(96, 16), nn.Linear(96, 1))

    def batches() -> Batch:
        return {"x": torch.randn(batch, 72, 20), "y": torch.randn(batch, 72, 1)}

    return step("bilinear_parts", model, batches, lambda m, b: F.huber_loss(m(b["x"]).float(), b["y"].float()),
                precision=precision, optimizer=optimizer)  # fmt: skip


class FrequencyGates(nn.Module):
    """A learnt complex number for every frequency of a picture and every channel, then an MLP."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.gates = nn.Parameter(torch.randn(side, side // 2 + 1, width, 2) * 0.02)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.fft.rfft2(self.norms[0](x).float(), dim=(1, 2), norm="ortho") * torch.view_as_complex(
            self.gates.float()
        )
        x = x + torch.fft.irfft2(seen, s=x.shape[1:3], dim=(1, 2), norm="ortho").to(x.dtype)
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


class Frequencies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.classes = nn.Conv2d(3, 160, 12, 12), nn.Linear(160, 100)
        self.layers = nn.Sequential(*(FrequencyGates(160, 16) for _ in range(5)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classes(self.layers(self.patches(x).permute(0, 2, 3, 1)).mean((1, 2)))
        return out


@network("fourier", (8, 512), precisions=(*FULL, "amp-bf16"))
def frequency_gates(batch: int = 96, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(batch, 3, 192, 192), "y": torch.randint(100, (batch,))}

    return step("frequency_gates", Frequencies, batches, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]),
                precision=precision, optimizer=optimizer)  # fmt: skip


class Echo(nn.Module):
    """A reverberation: every channel convolved with a tail as long as half a second, then plain convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.tails = nn.Parameter(torch.randn(24, 6000) * 0.01)
        self.spread, self.join = nn.Conv1d(1, 24, 65, padding=32), nn.Conv1d(24, 1, 129, padding=64)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.spread(x))
        n = x.shape[-1] + self.tails.shape[-1]
        wet = torch.fft.ifft(torch.fft.fft(x.float(), n=n) * torch.fft.fft(self.tails.float(), n=n)).real
        out: Tensor = self.join(wet[..., : x.shape[-1]].to(x.dtype) + x)
        return out


@network("fourier", (1, 64), precisions=(*FULL, "amp-bf16"))
def echo_of_rooms(batch: int = 12, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(batch, 1, 12_000), "y": torch.randn(batch, 1, 12_000)}

    return step("echo_of_rooms", Echo, batches, lambda m, b: F.l1_loss(m(b["x"]).float(), b["y"].float()),
                precision=precision, optimizer=optimizer)  # fmt: skip
