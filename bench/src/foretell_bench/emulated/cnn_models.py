"""Convolutional networks of twenty named families, small enough for a core: pictures of 32 × 32 pixels, 100 classes.

    foretell inspect foretell_bench.emulated.cnn_models:network --set name=resnet-20 --set batch=8

Most are torchvision's own code with fewer layers or channels; the others are those published for CIFAR.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

import foretell
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell_bench.emulated.models import CLASSES, classifying

make_torchvision_importable()
from torchvision import models  # noqa: E402 (not importable before)
from torchvision.models import densenet, regnet, resnet, vgg  # noqa: E402

PIXELS: Final = 32


class Around(nn.Module):
    """A block, and a way around it that fits its output."""

    def __init__(self, block: nn.Module, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.block = block
        self.way = nn.Identity() if (before, stride) == (after, 1) else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.block(x) + self.way(x))


def conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after)]


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


def cifar_resnet(depth: int, wide: int = 1) -> nn.Module:
    """He's for CIFAR, three stages of 16, 32 and 64 channels; wider ones are Zagoruyko's."""
    layers: list[nn.Module] = [*conv(3, 16), nn.ReLU()]
    before = 16
    for stage in range(3):
        for number in range((depth - 2) // 6):
            after, stride = 16 * wide * 2**stage, 2 if stage and not number else 1
            block = nn.Sequential(*conv(before, after, 3, stride), nn.ReLU(), *conv(after, after))
            layers.append(Around(block, before, after, stride))
            before = after
    return nn.Sequential(*layers, *head(before))


def imagenet_resnet(block: Any, layers: list[int], **options: Any) -> nn.Module:
    made: nn.Module = resnet.ResNet(block, layers, num_classes=CLASSES, **options)
    return made


def thin_vgg(shape: str, part: int, *, norm: bool = True) -> nn.Module:
    layers = [c if isinstance(c, str) else c // part for c in vgg.cfgs[shape]]
    return nn.Sequential(vgg.make_layers(layers, batch_norm=norm), *head(512 // part))


def dense(growth: int, layers: tuple[int, ...], first: int) -> nn.Module:
    made: nn.Module = densenet.DenseNet(growth, layers, first, num_classes=CLASSES)
    return made


def designed(depth: int, w_0: int, w_a: float, w_m: float, group: int, *, squeezed: bool) -> nn.Module:
    """RegNets X and Y, by the numbers of their paper."""
    ratio = 0.25 if squeezed else None
    params = regnet.BlockParams.from_init_params(depth, w_0, w_a, w_m, group, se_ratio=ratio)
    made: nn.Module = regnet.RegNet(params, num_classes=CLASSES)
    return made


def lenet(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 3 * width, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(75 * width, 20 * width), nn.ReLU(), nn.Linear(20 * width, 14 * width), nn.ReLU(),
        nn.Linear(14 * width, CLASSES),
    )  # fmt: skip


def alexnet(width: int) -> nn.Module:
    """Krizhevsky's layers with kernels for small pictures."""
    sides = [(3, width, 2), (width, 3 * width, 1), (3 * width, 6 * width, 1), (6 * width, 4 * width, 1)]
    layers: list[nn.Module] = []
    for number, (before, after, stride) in enumerate(sides):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number in (0, 1, 3) else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.0), nn.Linear(16 * width, 16 * width), nn.ReLU(),
                         nn.Linear(16 * width, CLASSES))  # fmt: skip


def in_network(width: int) -> nn.Module:
    """Network in network: each convolution is followed by two of one pixel."""
    layers: list[nn.Module] = []
    for before, after, kernel in ((3, width, 5), (width, width, 5), (width, width, 3)):
        layers += [nn.Conv2d(before, after, kernel, 1, kernel // 2), nn.ReLU(), nn.Conv2d(after, after, 1), nn.ReLU(),
                   nn.Conv2d(after, after, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]  # fmt: skip
    return nn.Sequential(*layers, *head(width))


def all_convolutional(width: int) -> nn.Module:
    shape = ((3, 1, 1), (1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 1))
    layers: list[nn.Module] = []
    for before, after, stride in shape:
        there = 3 if before == 3 else before * width
        layers += [nn.Conv2d(there, after * width, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(2 * width, 2 * width, 1), nn.ReLU(), *head(2 * width))


def named(make: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return partial(make, num_classes=CLASSES, **options)


_BASIC, _NECK = resnet.BasicBlock, resnet.Bottleneck
# name → how to build it, and its usual batch on a worker
NETWORKS: Final[dict[str, tuple[Callable[[], nn.Module], int]]] = {
    "resnet-8": (partial(cifar_resnet, 8), 8),
    "resnet-14": (partial(cifar_resnet, 14), 4),
    "resnet-20": (partial(cifar_resnet, 20), 2),
    "resnet-32": (partial(cifar_resnet, 32), 2),
    "wide-resnet-10-2": (partial(cifar_resnet, 10, 2), 4),
    "wide-resnet-16-2": (partial(cifar_resnet, 16, 2), 2),
    "resnet-10-imagenet": (partial(imagenet_resnet, _BASIC, [1, 1, 1, 1]), 4),
    "resnet-26-thin": (partial(imagenet_resnet, _NECK, [2, 2, 2, 2], width_per_group=16), 4),
    "resnet-38-thin": (partial(imagenet_resnet, _NECK, [3, 3, 3, 3], width_per_group=8), 4),
    "resnext-14-8x4": (partial(imagenet_resnet, _NECK, [1, 1, 1, 1], groups=8, width_per_group=4), 4),
    "resnext-26-4x8": (partial(imagenet_resnet, _NECK, [2, 2, 2, 2], groups=4, width_per_group=8), 4),
    "vgg-11-thin": (partial(thin_vgg, "A", 8), 16),
    "vgg-13-thin": (partial(thin_vgg, "B", 8), 8),
    "vgg-16-thin": (partial(thin_vgg, "D", 4), 4),
    "vgg-16-plain": (partial(thin_vgg, "D", 8, norm=False), 8),
    "vgg-19-thin": (partial(thin_vgg, "E", 4), 4),
    "densenet-22": (partial(dense, 12, (4, 4, 4), 24), 8),
    "densenet-40": (partial(dense, 12, (6, 6, 6), 24), 8),
    "densenet-46-8": (partial(dense, 8, (4, 6, 8, 4), 16), 8),
    "densenet-58-16": (partial(dense, 16, (4, 8, 12, 4), 32), 8),
    "mobilenet-v2-0.35": (named(models.mobilenet_v2, width_mult=0.35), 8),
    "mobilenet-v2-0.5": (named(models.mobilenet_v2, width_mult=0.5), 8),
    "mobilenet-v2-1.0": (named(models.mobilenet_v2), 4),
    "mobilenet-v3-small-0.5": (named(models.mobilenet_v3_small, width_mult=0.5), 16),
    "mobilenet-v3-small": (named(models.mobilenet_v3_small), 8),
    "mobilenet-v3-large-0.5": (named(models.mobilenet_v3_large, width_mult=0.5), 8),
    "shufflenet-v2-0.5": (named(models.shufflenet_v2_x0_5), 16),
    "shufflenet-v2-1.0": (named(models.shufflenet_v2_x1_0), 8),
    "shufflenet-v2-1.5": (named(models.shufflenet_v2_x1_5), 8),
    "squeezenet-1.0": (named(models.squeezenet1_0), 8),
    "squeezenet-1.1": (named(models.squeezenet1_1), 16),
    "mnasnet-0.35": (named(models.MNASNet, alpha=0.35), 8),
    "mnasnet-0.5": (named(models.MNASNet, alpha=0.5), 8),
    "mnasnet-1.0": (named(models.MNASNet, alpha=1.0), 4),
    "googlenet": (named(models.GoogLeNet, aux_logits=False, init_weights=False), 2),
    "efficientnet-b0": (named(models.efficientnet_b0), 4),
    "regnet-x-200": (partial(designed, 13, 24, 36.44, 2.49, 8, squeezed=False), 8),
    "regnet-y-200": (partial(designed, 13, 24, 36.44, 2.49, 8, squeezed=True), 8),
    "regnet-x-80": (partial(designed, 10, 16, 20.0, 2.2, 8, squeezed=False), 16),
    "lenet-5": (partial(lenet, 6), 64),
    "lenet-5-wide": (partial(lenet, 16), 32),
    "alexnet-thin": (partial(alexnet, 32), 16),
    "alexnet-small": (partial(alexnet, 16), 32),
    "network-in-network": (partial(in_network, 48), 4),
    "all-convolutional": (partial(all_convolutional, 32), 4),
}


def network(name: str = "resnet-20", batch: int = 8) -> foretell.Workload:
    make, _ = NETWORKS[name]

    def data() -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, 3, PIXELS, PIXELS), "y": torch.randint(CLASSES, (batch,))}

    return classifying(name, make, data, batch)
