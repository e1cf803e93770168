"""Jobs that public measurements name and no source builds, written as their papers and repositories describe them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.workload import Workload


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def cifar_resnet18(batch: int = 128) -> Workload:
    """ResNet-18 as is customary for CIFAR-10: its stem does not shrink the 32 × 32 images."""

    def model() -> nn.Module:
        from torchvision.models import resnet18

        made: Any = resnet18(num_classes=10)
        made.conv1, made.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
        return made  # type: ignore[no-any-return]

    return Workload(
        name="cifar-resnet18",
        model=model,
        batch=lambda: {"x": torch.randn(batch, 3, 32, 32), "y": torch.randint(10, (batch,))},
        loss=lambda m, b: F.cross_entropy(m(b["x"]), b["y"]),
        optimizer=_sgd,
    )


class NeuralCollaborativeFiltering(nn.Module):
    """NeuMF: products of factors beside an MLP (He et al., WWW 2017)."""

    def __init__(self, users: int, items: int, factors: int = 32, layers: int = 3) -> None:
        super().__init__()
        wide = factors * 2 ** (layers - 1)
        self.users, self.items = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.wide_users, self.wide_items = nn.Embedding(users, wide), nn.Embedding(items, wide)
        widths = [2 * wide // 2**i for i in range(layers + 1)]
        self.mlp = nn.Sequential(*(m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())))
        self.score = nn.Linear(2 * factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.users(user) * self.items(item)
        deep = self.mlp(torch.cat([self.wide_users(user), self.wide_items(item)], -1))
        return self.score(torch.cat([product, deep], -1)).squeeze(-1)  # type: ignore[no-any-return]


def ncf(batch: int = 256) -> Workload:
    """Neural collaborative filtering of MovieLens-1M."""
    users, items = 6040, 3706
    return Workload(
        name="ncf",
        model=lambda: NeuralCollaborativeFiltering(users, items),
        batch=lambda: {
            "user": torch.randint(users, (batch,)), "item": torch.randint(items, (batch,)), "y": torch.rand(batch)
        },
        loss=lambda m, b: F.binary_cross_entropy_with_logits(m(b["user"], b["item"]), b["y"]),
        optimizer=lambda p: torch.optim.Adam(p),
        samples=batch,
    )  # fmt: skip


class DeepSpeech2(nn.Module):
    """Two convolutions over a spectrogram, five bidirectional GRU layers with batch norms between, letters."""

    def __init__(self, bins: int = 161, hidden: int = 800, layers: int = 5, letters: int = 29) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        wide = 32 * -(-bins // 4)
        self.recurrent = nn.ModuleList(
            nn.GRU(wide if i == 0 else hidden, hidden, bidirectional=True) for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.letters = nn.Linear(hidden, letters, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x)
        x = x.flatten(1, 2).permute(2, 0, 1).contiguous()  # time, batch, features
        for layer, norm in zip(self.recurrent, self.norms, strict=True):
            both, _ = layer(x)
            x = both.view(*both.shape[:2], 2, -1).sum(2)
            x = norm(x.flatten(0, 1)).view_as(x)
        return self.letters(x).log_softmax(-1)  # type: ignore[no-any-return]


def deepspeech2(batch: int = 20, frames: int = 300, length: int = 40) -> Workload:
    """Deep Speech 2 on utterances of three seconds."""
    return Workload(
        name="deepspeech2",
        model=DeepSpeech2,
        batch=lambda: {"x": torch.randn(batch, 1, 161, frames), "y": torch.randint(1, 29, (batch, length))},
        loss=lambda m, b: (m(b["x"]) * F.one_hot(b["y"], 29).float().mean(1)).mean(),  # the CTC loss is a sliver
        optimizer=_sgd,
        samples=batch,
    )


def _unit(channels: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.LeakyReLU(0.1))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_unit(channels, channels // 2, 1), _unit(channels // 2, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def _neck(channels: int, out: int) -> nn.Sequential:
    sides = [(channels, out, 1), (out, 2 * out, 3), (2 * out, out, 1), (out, 2 * out, 3), (2 * out, out, 1)]
    return nn.Sequential(*(_unit(*side) for side in sides))


class YoloV3(nn.Module):
    """Darknet-53 and three heads on a pyramid (Redmon and Farhadi, 2018)."""

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        self.stem = _unit(3, 32, 3)
        self.stages = nn.ModuleList()
        channels = 32
        for blocks in (1, 2, 8, 8, 4):
            down = [_unit(channels, 2 * channels, 3, 2), *(_Residual(2 * channels) for _ in range(blocks))]
            self.stages.append(nn.Sequential(*down))
            channels *= 2
        self.necks = nn.ModuleList([_neck(1024, 512), _neck(768, 256), _neck(384, 128)])
        self.ups = nn.ModuleList([_unit(512, 256, 1), _unit(256, 128, 1)])
        outputs = 3 * (classes + 5)
        self.heads = nn.ModuleList(
            nn.Sequential(_unit(w, 2 * w, 3), nn.Conv2d(2 * w, outputs, 1)) for w in (512, 256, 128)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        x, kept = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        found = []
        for i, skip in enumerate((None, kept[3], kept[2])):
            if skip is not None:
                x = torch.cat([F.interpolate(self.ups[i - 1](x), scale_factor=2.0), skip], 1)
            x = self.necks[i](x)
            found.append(self.heads[i](x))
        return found


def yolov3(batch: int = 8, image_size: int = 416) -> Workload:
    """YOLOv3 on Pascal VOC; the loss is a stand-in of the same size."""

    def targets() -> dict[str, Tensor]:
        sides = [image_size // cell for cell in (32, 16, 8)]
        return {f"y{i}": torch.rand(batch, 75, side, side) for i, side in enumerate(sides)}

    return Workload(
        name="yolov3",
        model=YoloV3,
        batch=lambda: {"x": torch.randn(batch, 3, image_size, image_size), **targets()},
        loss=lambda m, b: sum(F.mse_loss(out.sigmoid(), b[f"y{i}"]) for i, out in enumerate(m(b["x"]))),
        optimizer=_sgd,
    )
