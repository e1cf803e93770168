"""Decoders of variational autoencoders, and generators whose convolutions a style modulates."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, network, step


class VariationalAutoencoder(nn.Module):
    """Strided convolutions down to some numbers, transposed ones up again."""

    def __init__(self, width: int, latent: int, levels: int, size: int, channels: int = 3) -> None:
        super().__init__()
        widths = [min(width << i, 512) for i in range(levels)]
        self.side, wide = size >> levels, widths[-1]
        pairs = list(zip([channels, *widths], widths, strict=False))
        self.encoder = nn.Sequential(*(
            part for a, b in pairs for part in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU())
        ))  # fmt: skip
        self.both, self.start = nn.Linear(wide * self.side**2, 2 * latent), nn.Linear(latent, wide * self.side**2)
        layers: list[nn.Module] = []
        for a, b in reversed(pairs[1:]):
            layers += [nn.ConvTranspose2d(b, a, 3, 2, 1, output_padding=1), nn.BatchNorm2d(a), nn.LeakyReLU()]
        self.decoder = nn.Sequential(*layers, nn.ConvTranspose2d(widths[0], channels, 4, 2, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.both(self.encoder(x).flatten(1)).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        x = self.start(z).unflatten(1, (-1, self.side, self.side))
        return self.decoder(x), mean, spread


def evidence(model: nn.Module, b: Batch) -> Tensor:
    found, mean, spread = (part.float() for part in model(b["x"]))
    loss: Tensor = (
        F.mse_loss(found, b["x"].float()) - 0.0005 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
    )
    return loss


@network("decoder", (8, 512))
def vae_faces(
    batch: int = 64, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adam"
) -> Workload:
    """Five levels from 32 to 512 channels on faces of 64 pixels."""
    return step("vae_faces", lambda: VariationalAutoencoder(32, 128, 5, 64), lambda: {"x": torch.randn(batch, 3, 64, 64)},
                evidence, precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("decoder", (4, 128))
def vae_large(
    batch: int = 32, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adamw"
) -> Workload:
    """Four levels from 64 channels on pictures of 128 pixels."""
    return step("vae_large", lambda: VariationalAutoencoder(64, 256, 4, 128),
                lambda: {"x": torch.randn(batch, 3, 128, 128)}, evidence, precision=precision,
                channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("decoder", (8, 512))
def noise_to_pictures(
    batch: int = 128, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adam"
) -> Workload:
    """A generator of transposed convolutions judged by a critic of strided ones."""

    def model() -> nn.Module:
        up: list[nn.Module] = [nn.ConvTranspose2d(100, 512, 4, bias=False)]
        for a, b in ((512, 256), (256, 128), (128, 64)):
            up += [nn.BatchNorm2d(a), nn.ReLU(), nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False)]
        up += [nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()]
        down: list[nn.Module] = []
        for a, b in ((3, 64), (64, 128), (128, 256), (256, 512)):
            down += [nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)]
        return nn.Sequential(*up, *down, nn.Conv2d(512, 1, 4))

    return step("noise_to_pictures", model, lambda: {"x": torch.randn(batch, 100, 1, 1)},
                lambda m, b: F.softplus(-m(b["x"])).mean(), precision=precision, channels_last=channels_last,
                optimizer=optimizer)  # fmt: skip


class ModulatedConvolution(nn.Module):
    """Weights scaled by each sample's style and brought back to length one; samples become groups."""

    def __init__(self, inputs: int, outputs: int, style: int, *, up: bool = False, size: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, outputs, inputs, size, size))
        self.style, self.up, self.size = nn.Linear(style, inputs), up, size

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        batch, inputs, height, width = x.shape
        weight = self.weight * (self.style(style) + 1).view(batch, 1, inputs, 1, 1)
        weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        x = x.reshape(1, batch * inputs, height, width)
        if self.up:
            weight = weight.transpose(1, 2).reshape(batch * inputs, -1, self.size, self.size)
            x = F.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1, groups=batch)
        else:
            x = F.conv2d(x, weight.flatten(0, 1), padding=self.size // 2, groups=batch)
        return x.view(batch, -1, *x.shape[2:])


class StyleGenerator(nn.Module):
    """A learnt start, two modulated convolutions a level, pictures of all levels added up."""

    def __init__(self, style: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.mapping = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(style, style), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        pairs = list(zip((widths[0], *widths), widths, strict=False))[1:]
        self.first = nn.ModuleList(ModulatedConvolution(a, b, style, up=True) for a, b in pairs)
        self.second = nn.ModuleList(ModulatedConvolution(b, b, style) for _, b in pairs)
        self.colours = nn.ModuleList(nn.Conv2d(b, 3, 1) for _, b in pairs)
        self.noise = nn.Parameter(torch.zeros(len(pairs)))

    def forward(self, z: Tensor) -> Tensor:
        style, picture = self.mapping(z), None
        x = self.start.expand(len(z), -1, -1, -1)
        for level, (first, second, colour) in enumerate(zip(self.first, self.second, self.colours, strict=True)):
            x = F.leaky_relu(first(x, style), 0.2)
            x = F.leaky_relu(second(x, style) + self.noise[level] * torch.randn_like(x[:, :1]), 0.2)
            added = colour(x)
            picture = added if picture is None else F.interpolate(picture, scale_factor=2.0, mode="bilinear") + added
        made: Tensor | None = picture
        assert made is not None
        return made


@network("modulated", (1, 48))
def style_generator(batch: int = 16, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Six levels to 256 pixels, 256 to 32 channels."""
    return step("style_generator", lambda: StyleGenerator(512, (256, 256, 256, 256, 128, 64, 32)),
                lambda: {"x": torch.randn(batch, 512)}, lambda m, b: F.softplus(-m(b["x"])).mean(),
                precision=precision, optimizer=optimizer)  # fmt: skip


@network("modulated", (2, 128))
def style_generator_small(batch: int = 32, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Four levels to 64 pixels, 128 channels and fewer."""
    return step("style_generator_small", lambda: StyleGenerator(128, (128, 128, 128, 64, 32)),
                lambda: {"x": torch.randn(batch, 128)}, lambda m, b: F.softplus(-m(b["x"])).mean(),
                precision=precision, optimizer=optimizer)  # fmt: skip


class ChosenKernels(nn.Module):
    """Each sample's kernel is a mixture of four, as dynamic convolutions have them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.kernels, self.stride = nn.Parameter(torch.randn(4, outputs, inputs, 3, 3) * 0.02), stride
        self.choose = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.choose(x.mean((2, 3))).softmax(-1)
        kernels = torch.einsum("nk,koihw->noihw", shares, self.kernels.to(shares.dtype)).flatten(0, 1)
        out = F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernels.to(x.dtype), None, self.stride, 1, groups=len(x))
        return F.relu(out.view(len(x), -1, *out.shape[2:]))


@network("modulated", (4, 256))
def chosen_kernels(batch: int = 64, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """Eight layers on pictures of 64 pixels."""

    def model() -> nn.Module:
        widths = (32, 32, 64, 64, 128, 128, 256)
        layers = [ChosenKernels(a, b, 1 + (a != b)) for a, b in itertools.pairwise(widths)]
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, 1, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)
        )

    def batches() -> Batch:
        return {"x": torch.randn(batch, 3, 64, 64), "y": torch.randint(100, (batch,))}

    return step("chosen_kernels", model, batches, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), precision=precision,
                optimizer=optimizer)  # fmt: skip
