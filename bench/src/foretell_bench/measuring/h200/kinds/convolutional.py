"""Dilated, VGG-like and grouped convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, classify, network, step


def images(batch: int, size: int, classes: int, *, masks: int = 0, channels: int = 3) -> Batch:
    """Pictures with a class each, or with a map of classes of `masks` pixels a side."""
    wanted = (batch, masks, masks) if masks else (batch,)
    return {"x": torch.randn(batch, channels, size, size), "y": torch.randint(classes, wanted)}


def unit(inputs: int, outputs: int, size: int = 3, stride: int = 1, rate: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    padding = rate * (size - 1) // 2
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding, rate, groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    """A residual block of three convolutions; the middle one strided, dilated or grouped."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int = 1, rate: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(unit(inputs, inner, 1), unit(inner, inner, 3, stride, rate, groups))
        self.out = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.out(self.body(x)) + self.short(x))


def dilated_backbone(width: int = 64, blocks: Sequence[int] = (2, 3, 4, 2)) -> nn.Sequential:
    """A residual network whose last two stages keep an eighth of the picture's side, and look further apart instead."""
    layers: list[nn.Module] = [unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(blocks):
        inner, rate = width << stage, (1, 1, 2, 4)[stage]
        for i in range(count):
            layers.append(Bottleneck(inputs, inner, 4 * inner, 2 if stage == 1 and i == 0 else 1, rate))
            inputs = 4 * inner
    return nn.Sequential(*layers)


class Segmenter(nn.Module):
    """A head on a backbone, its classes enlarged to the picture."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.head(self.backbone(x)), size=x.shape[-2:], mode="bilinear", align_corners=False)


class Pyramid(nn.Module):
    """The same features seen at several rates and as a whole, side by side."""

    def __init__(self, inputs: int, width: int, classes: int, rates: Sequence[int]) -> None:
        super().__init__()
        self.near = unit(inputs, width, 1)
        self.far = nn.ModuleList(unit(inputs, width, 3, rate=rate) for rate in rates)
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inputs, width, 1), nn.ReLU())
        self.project = nn.Sequential(unit((2 + len(rates)) * width, width, 1), nn.Dropout(0.5))
        self.classes = nn.Sequential(unit(width, width), nn.Conv2d(width, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        whole = F.interpolate(self.whole(x), size=x.shape[-2:], mode="nearest")
        out: Tensor = self.classes(self.project(torch.cat([self.near(x), *(f(x) for f in self.far), whole], 1)))
        return out


@network("dilated", (2, 24))
def dilated_fcn(
    batch: int = 8, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    """A fully convolutional head on a dilated residual network, pictures of 384 pixels."""

    def model() -> nn.Module:
        return Segmenter(dilated_backbone(), nn.Sequential(unit(2048, 512), nn.Dropout(0.1), nn.Conv2d(512, 21, 1)))

    return step("dilated_fcn", model, lambda: images(batch, 384, 21, masks=384), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("dilated", (2, 24))
def atrous_pyramid(
    batch: int = 8, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    """A pyramid of rates on a narrower dilated network."""

    def model() -> nn.Module:
        return Segmenter(dilated_backbone(48, (3, 4, 6, 3)), Pyramid(1536, 256, 19, (6, 12, 18)))

    return step("atrous_pyramid", model, lambda: images(batch, 320, 19, masks=320), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("dilated", (2, 48))
def context_rates(
    batch: int = 16, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adam"
) -> Workload:
    """Plain convolutions whose rates double, at a quarter of the picture's side, as they gather context."""

    def model() -> nn.Module:
        rates = (1, 1, 2, 4, 8, 16, 1)
        layers = [layer for rate in rates for layer in (nn.Conv2d(96, 96, 3, padding=rate, dilation=rate), nn.ReLU())]
        stem = nn.Sequential(unit(3, 48, 3, 2), unit(48, 96, 3, 2))
        return Segmenter(stem, nn.Sequential(*layers, nn.Conv2d(96, 12, 1)))

    return step("context_rates", model, lambda: images(batch, 256, 12, masks=256), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


def vgg_layers(plan: Sequence[int], *, norms: bool, inputs: int = 3) -> list[nn.Module]:
    """Convolutions of so many filters; 0 halves the picture."""
    layers: list[nn.Module] = []
    for width in plan:
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [
            nn.Conv2d(inputs, width, 3, padding=1),
            *([nn.BatchNorm2d(width)] if norms else []),
            nn.ReLU(inplace=True),
        ]
        inputs = width
    return layers


@network("vgg", (4, 96))
def vgg_plain(
    batch: int = 32, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    """Thirteen layers with three wide ones behind, as VGG has them."""

    def model() -> nn.Module:
        plan = (64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
        wide = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
                nn.Dropout(), nn.Linear(4096, 1000)]  # fmt: skip
        return nn.Sequential(*vgg_layers(plan, norms=False), *wide)

    return step("vgg_plain", model, lambda: images(batch, 224, 1000), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("vgg", (32, 1024))
def vgg_cifar(
    batch: int = 128, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    """With batch norms, for pictures of 32 pixels."""

    def model() -> nn.Module:
        plan = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
        return nn.Sequential(*vgg_layers(plan, norms=True), nn.Flatten(), nn.Linear(512, 100))

    return step("vgg_cifar", model, lambda: images(batch, 32, 100), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class StyleDistance(nn.Module):
    """Correlations of features of several depths, as losses of style compare them."""

    def __init__(self) -> None:
        super().__init__()
        plans = ((64, 64), (0, 128, 128), (0, 256, 256, 256))
        before = (3, 64, 128)
        self.parts = nn.ModuleList(
            nn.Sequential(*vgg_layers(plan, norms=False, inputs=n)) for plan, n in zip(plans, before, strict=True)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for part in self.parts:
            x = part(x)
            flat = x.flatten(2)
            found.append(flat @ flat.transpose(1, 2) / flat.shape[-1])
        return found


@network("vgg", (2, 32))
def vgg_style(
    batch: int = 8, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adam"
) -> Workload:
    """Two pictures' styles compared."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        return torch.stack([F.mse_loss(one, two) for one, two in zip(m(b["x"]), m(b["z"]), strict=True)]).sum()

    def batches() -> Batch:
        return {name: torch.randn(batch, 3, 256, 256) for name in ("x", "z")}

    return step("vgg_style", StyleDistance, batches, loss,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class Squeeze(nn.Module):
    """Channels weighed by what the whole picture has of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(8, width // 4)
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.ReLU(),
                                   nn.Conv2d(inner, width, 1), nn.Sigmoid())  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        weighed: Tensor = x * self.weigh(x)
        return weighed


def grouped_stages(widths: Sequence[int], blocks: Sequence[int], group: int, *, squeeze: bool = False) -> nn.Sequential:
    """Stages of bottlenecks whose groups have `group` channels each."""
    layers: list[nn.Module] = [unit(3, 32, 3, 2)]
    inputs = 32
    for width, count in zip(widths, blocks, strict=True):
        for i in range(count):
            layers.append(Bottleneck(inputs, width, width, 2 if i == 0 else 1, groups=max(1, width // group)))
            layers += [Squeeze(width)] if squeeze else []
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


@network("grouped", (4, 128))
def grouped_wide(
    batch: int = 64, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    """Groups of 24 channels in four stages."""
    return step("grouped_wide", lambda: grouped_stages((48, 120, 336, 888), (2, 4, 6, 2), 24),
                lambda: images(batch, 224, 1000), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("grouped", (4, 128))
def grouped_squeezed(
    batch: int = 64, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adamw"
) -> Workload:
    """Narrow groups, with channels weighed after every block."""
    return step("grouped_squeezed", lambda: grouped_stages((64, 128, 320, 768), (1, 3, 5, 2), 16, squeeze=True),
                lambda: images(batch, 192, 1000), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


@network("grouped", (4, 96))
def grouped_cardinal(
    batch: int = 48, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "sgd-momentum"
) -> Workload:
    """Thirty-two paths in every bottleneck."""

    def model() -> nn.Module:
        layers: list[nn.Module] = [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, count in enumerate((2, 3, 4, 2)):
            for i in range(count):
                layers.append(Bottleneck(inputs, 128 << stage, 256 << stage, 2 if stage and not i else 1, groups=32))
                inputs = 256 << stage
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))

    return step("grouped_cardinal", model, lambda: images(batch, 224, 1000), classify,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip
