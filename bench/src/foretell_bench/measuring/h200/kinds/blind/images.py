"""Blind: dilated, VGG-like and grouped networks, and generators, of other designs."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, network, step


def pictures(batch: int, size: int, classes: int, *, masked: bool = False) -> Batch:
    wanted = (batch, size, size) if masked else (batch,)
    return {"x": torch.randn(batch, 3, size, size), "y": torch.randint(classes, wanted)}


class HybridRates(nn.Module):
    """A residual pair whose two convolutions look differently far."""

    def __init__(self, inputs: int, width: int, near: int, far: int, stride: int = 1) -> None:
        super().__init__()
        self.near = nn.Conv2d(inputs, width, 3, stride, near, near, bias=False)
        self.far = nn.Conv2d(width, width, 3, 1, far, far, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs), nn.BatchNorm2d(width)])
        self.short = nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](x))
        return self.short(y) + self.far(F.relu(self.norms[1](self.near(y))))  # type: ignore[no-any-return]


class RoadNetwork(nn.Module):
    """Pre-activated residual pairs with growing rates, upsampled by pixel shuffling, focal loss outside."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 40, 5, 2, 2), HybridRates(40, 80, 1, 1, 2), HybridRates(80, 160, 1, 2, 2), HybridRates(160, 160, 2, 3),
            HybridRates(160, 200, 3, 5), HybridRates(200, 200, 5, 7), nn.BatchNorm2d(200), nn.ReLU(), nn.Conv2d(200, 8 * 64, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.body(x), 8)


@network("dilated", (2, 24))
def road_masks(
    batch: int = 6, precision: PrecisionName = "fp32", channels_last: bool = True, optimizer: str = "adam"
) -> Workload:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        each = F.cross_entropy(m(b["x"]).float(), b["y"], reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()

    return step("road_masks", RoadNetwork, lambda: pictures(batch, 448, 8, masked=True), loss, precision=precision,
                channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class Crowds(nn.Module):
    """VGG's first ten layers, then six of rate two: how many people stand where."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in (64, 64, -1, 128, 128, -1, 256, 256, 256, -1, 512, 512, 512):
            if width < 0:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(True)]
            inputs = width
        for width in (512, 512, 512, 256, 128, 64):
            layers += [nn.Conv2d(inputs, width, 3, padding=2, dilation=2), nn.ReLU(True)]
            inputs = width
        self.body = nn.Sequential(*layers, nn.Conv2d(inputs, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


@network("dilated", (1, 16))
def crowd_density(
    batch: int = 4, precision: PrecisionName = "fp32", channels_last: bool = True, optimizer: str = "sgd-momentum"
) -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(batch, 3, 384, 512), "y": torch.rand(batch, 1, 48, 64)}

    return step("crowd_density", Crowds, batches, lambda m, b: F.mse_loss(m(b["x"]), b["y"], reduction="sum"),
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("vgg", (4, 128))
def slim_deep_plain(
    batch: int = 32, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adamw"
) -> Workload:
    """Sixteen layers of half the width on 192 pixels, norms, one narrow layer behind."""

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        inputs = 3
        for width, count in ((32, 2), (64, 2), (128, 4), (256, 4), (320, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU()]
                inputs = width
            layers.append(nn.AvgPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(320 * 36, 512), nn.ReLU(), nn.Linear(512, 120))

    return step("slim_deep_plain", model, lambda: pictures(batch, 192, 120),
                lambda m, b: F.cross_entropy(m(b["x"]), b["y"], label_smoothing=0.1), precision=precision,
                channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class SketchToPicture(nn.Module):
    """Plain convolutions, and distances of their features at two depths."""

    def __init__(self) -> None:
        super().__init__()

        def part(*widths: int) -> nn.Sequential:
            pairs = itertools.pairwise(widths)
            return nn.Sequential(*(f for a, b in pairs for f in (nn.Conv2d(a, b, 3, 1, 1), nn.LeakyReLU(0.2, True))))

        self.draw = nn.Sequential(part(3, 32, 64, 64, 32), nn.Conv2d(32, 3, 3, 1, 1))
        self.shallow, self.deep = part(3, 64, 64), part(64, 128, 128, 128)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shallow = self.shallow(self.draw(x))
        return shallow, self.deep(F.max_pool2d(shallow, 2))


@network("vgg", (1, 24))
def perceptual(
    batch: int = 4, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adam"
) -> Workload:
    def loss(m: nn.Module, b: Batch) -> Tensor:
        found = m(b["x"])
        off: Tensor = F.l1_loss(found[0].float(), torch.zeros_like(found[0].float()))
        loss: Tensor = off + found[1].float().square().mean()
        return loss

    return step("perceptual", SketchToPicture, lambda: {"x": torch.randn(batch, 3, 176, 176)}, loss,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class Paths(nn.Module):
    """Grouped convolutions without bottleneck, channels shuffled between them."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.one = nn.Conv2d(width, width, 3, 1, 1, groups=groups, bias=False)
        self.two = nn.Conv2d(width, width, 3, 1, 1, groups=groups, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(groups, width), nn.GroupNorm(groups, width)])

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.norms[0](self.one(x)))
        y = y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        return x + self.norms[1](self.two(y))  # type: ignore[no-any-return]


@network("grouped", (8, 256))
def shuffled_groups(
    batch: int = 64, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adamw"
) -> Workload:
    def model() -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
        for width, groups, count in ((96, 4, 2), (192, 8, 3), (384, 12, 2)):
            layers += [Paths(width, groups) for _ in range(count)]
            layers += [nn.Conv2d(width, min(384, 2 * width), 2, 2)]
        return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(384, 200))

    return step("shuffled_groups", model, lambda: pictures(batch, 160, 200),
                lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), precision=precision, channels_last=channels_last,
                optimizer=optimizer)  # fmt: skip


class GroupedBlock(nn.Module):
    """A bottleneck with groups of eight channels and a stride in the middle."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=width // 8, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


@network("grouped", (8, 256))
def narrow_groups(
    batch: int = 96, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    def model() -> nn.Module:
        widths = ((32, 24, 2), (24, 56, 2), (56, 152, 2), (152, 152, 1), (152, 152, 1), (152, 368, 2), (368, 368, 1))
        blocks = [GroupedBlock(*plan) for plan in widths]
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(368, 1000)
        )

    return step("narrow_groups", model, lambda: pictures(batch, 224, 1000),
                lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), precision=precision, channels_last=channels_last,
                optimizer=optimizer)  # fmt: skip
