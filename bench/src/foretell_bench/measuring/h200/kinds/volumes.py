"""Networks of volumes, as medical images are segmented."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, network, step


def twice(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Two convolutions with instance norms and leaky units."""
    layers: list[nn.Module] = []
    for a, s in ((inputs, stride), (outputs, 1)):
        layers += [
            nn.Conv3d(a, outputs, 3, s, 1),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        ]
    return nn.Sequential(*layers)


class VolumeUNet(nn.Module):
    """Strided convolutions down, transposed ones up, and an answer at each of several scales."""

    def __init__(self, widths: Sequence[int], channels: int, classes: int, answers: int) -> None:
        super().__init__()
        self.answers = answers
        self.down = nn.ModuleList(
            twice(a, b, 2 if i else 1) for i, (a, b) in enumerate(zip([channels, *widths], widths, strict=False))
        )
        pairs = list(itertools.pairwise(widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairs)
        self.mix = nn.ModuleList(twice(2 * a, a) for a, _ in pairs)
        self.classes = nn.ModuleList(nn.Conv3d(a, classes, 1) for a, _ in pairs)

    def forward(self, x: Tensor) -> list[Tensor]:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
        found = []
        for i, (up, mix, classes) in enumerate(zip(self.up, self.mix, self.classes, strict=True)):
            x = mix(torch.cat([up(x), kept[-2 - i]], 1))
            if i >= len(self.up) - self.answers:
                found.append(classes(x))
        return found[::-1]


def dice(found: Tensor, wanted: Tensor) -> Tensor:
    chances = found.float().softmax(1)
    mask = F.one_hot(wanted, chances.shape[1]).movedim(-1, 1).to(chances.dtype)
    both = (chances * mask).sum((0, 2, 3, 4))
    return 1 - (2 * both / (chances.sum((0, 2, 3, 4)) + mask.sum((0, 2, 3, 4)) + 1e-5)).mean()


def dice_of_scales(model: nn.Module, b: Batch) -> Tensor:
    """Overlap and cross entropy, at every scale with half the weight of the one before."""
    total = torch.zeros((), device=b["y"].device)
    for i, found in enumerate(model(b["x"])):
        wanted = b["y"][:, :: 1 << i, :: 1 << i, :: 1 << i]
        total = total + (dice(found, wanted) + F.cross_entropy(found.float(), wanted)) / (1 << i)
    return total


def scans(batch: int, channels: int, classes: int, *sides: int) -> Batch:
    return {"x": torch.randn(batch, channels, *sides), "y": torch.randint(classes, (batch, *sides))}


@network("volume", (1, 4))
def volume_unet(batch: int = 2, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """Five levels from 32 to 320 channels, patches of 96, three answers."""
    return step("volume_unet", lambda: VolumeUNet((32, 64, 128, 256, 320), 1, 3, 3), lambda: scans(batch, 1, 3, 96, 96, 96),
                dice_of_scales, precision=precision, optimizer=optimizer)  # fmt: skip


@network("volume", (1, 12))
def volume_unet_thin(batch: int = 4, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    """Four levels from 16 channels on four kinds of scan, flat patches."""
    return step("volume_unet_thin", lambda: VolumeUNet((16, 32, 64, 128), 4, 4, 1), lambda: scans(batch, 4, 4, 32, 128, 128),
                dice_of_scales, precision=precision, optimizer=optimizer)  # fmt: skip


class VolumeResidual(nn.Module):
    """Convolutions of five, with what went in added."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        layers = [
            part
            for _ in range(count)
            for part in (nn.Conv3d(width, width, 5, 1, 2), nn.BatchNorm3d(width), nn.PReLU(width))
        ]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


@network("volume", (1, 8))
def volume_residual(batch: int = 2, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """An encoder of residual stages with large kernels, and one class for a whole scan."""

    def model() -> nn.Module:
        layers: list[nn.Module] = [nn.Conv3d(1, 16, 5, 1, 2)]
        for width, count in ((16, 1), (32, 2), (64, 2)):
            layers += [
                VolumeResidual(width, count),
                nn.Conv3d(width, 2 * width, 2, 2),
                nn.BatchNorm3d(2 * width),
                nn.PReLU(),
            ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 2))

    def batches() -> Batch:
        return {"x": torch.randn(batch, 1, 64, 64, 64), "y": torch.randint(2, (batch,))}

    return step("volume_residual", model, batches, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), precision=precision,
                optimizer=optimizer)  # fmt: skip
