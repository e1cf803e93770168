"""Blocks over a grid of one, two or three dimensions: what images, signals and volumes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.draw import Apply, Draw, Residual

CONVOLUTION: Final[dict[int, Any]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: Final[dict[int, Any]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORM: Final[dict[int, Any]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORM: Final[dict[int, Any]] = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
MAX_POOL: Final[dict[int, Any]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOL: Final[dict[int, Any]] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
SMOOTH: Final = {1: "linear", 2: "bilinear", 3: "trilinear"}


def norm(draw: Draw, dims: int, width: int) -> nn.Module:
    kind = draw.weighted({"batch": 5, "group": 3, "instance": 2, "none": 1})
    if kind == "batch":
        return BATCH_NORM[dims](width)  # type: ignore[no-any-return]
    if kind == "group":
        return nn.GroupNorm(draw.divisor(width, 32), width)
    return INSTANCE_NORM[dims](width, affine=draw.chance(0.5)) if kind == "instance" else nn.Identity()


def convolution(draw: Draw, dims: int, width: int, out: int | None = None) -> nn.Module:
    """Plain, pointwise, grouped, depthwise or dilated; the grid keeps its size."""
    kind = draw.weighted({"plain": 4, "pointwise": 2, "grouped": 2, "depthwise": 2, "dilated": 2})
    kernel = 1 if kind == "pointwise" else draw.choice((3, 3, 5, 7) if dims < 3 else (3, 3, 5))
    dilation = draw.choice((2, 3, 4)) if kind == "dilated" else 1
    out = width if kind == "depthwise" or out is None else out
    groups = width if kind == "depthwise" else draw.divisor(min(width, out), 32) if kind == "grouped" else 1
    if width % groups or out % groups:
        groups = 1
    mode = "reflect" if dims < 3 and draw.chance(0.05) else "zeros"
    made: nn.Module = CONVOLUTION[dims](
        width,
        out,
        kernel,
        padding=dilation * (kernel // 2),
        dilation=dilation,
        groups=groups,
        bias=draw.chance(0.4),
        padding_mode=mode,
    )
    return made


class SqueezeExcite(nn.Module):
    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        hidden = max(4, width // draw.choice((4, 8, 16)))
        self.down, self.up = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.up(F.relu(self.down(x.flatten(2).mean(2)))).sigmoid()
        return x * gate.reshape(*gate.shape, *[1] * (x.dim() - 2))


class DynamicConvolution(nn.Module):
    """Kernels made for every sample: the batch is folded into groups."""

    def __init__(self, draw: Draw, dims: int, width: int) -> None:
        super().__init__()
        self.dims, self.kernel, self.depthwise = dims, 3, draw.chance(0.7) or width > 48
        self.weights = nn.Linear(width, width * (1 if self.depthwise else width) * self.kernel**dims)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width = x.shape[:2]
        weight = self.weights(x.flatten(2).mean(2)).reshape(
            batch * width, 1 if self.depthwise else width, *[self.kernel] * self.dims
        )
        groups = batch * (width if self.depthwise else 1)
        call: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[self.dims]
        out: torch.Tensor = call(x.reshape(1, batch * width, *x.shape[2:]), weight, padding=1, groups=groups)
        return out.reshape(x.shape)


class GridAttention(nn.Module):
    """Attention among the places of a grid, or of its coarse form."""

    def __init__(self, draw: Draw, width: int, coarser: int) -> None:
        super().__init__()
        self.coarser, self.heads = coarser, draw.divisor(width, 16)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = x.shape[2:]
        pooled = x
        if self.coarser > 1:
            pool: Any = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[x.dim() - 2]
            pooled = pool(x, self.coarser)
        batch, width = pooled.shape[:2]
        q, k, v = (
            part.reshape(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(pooled.flatten(2).transpose(1, 2)).chunk(3, -1)
        )
        mixed: torch.Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        mixed = mixed.transpose(1, 2).reshape(pooled.shape)
        if self.coarser > 1:
            mixed = F.interpolate(mixed, size=grid, mode="nearest")
        return x + mixed


class Spectral(nn.Module):
    """A product in the domain of frequencies."""

    def __init__(self, draw: Draw, dims: int, width: int, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = tuple(range(-dims, 0))
        self.gain = nn.Parameter(torch.randn(width, *grid[:-1], grid[-1] // 2 + 1, 2) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = torch.fft.rfftn(x.float(), dim=self.dims, norm="ortho")
        mixed: torch.Tensor = torch.fft.irfftn(
            frequencies * torch.view_as_complex(self.gain.float()), s=x.shape[2:], dim=self.dims, norm="ortho"
        )
        return x + mixed.to(x.dtype)


def block(draw: Draw, dims: int, width: int, grid: tuple[int, ...]) -> nn.Module:
    """What keeps the shape of its input."""
    kind = draw.weighted(
        {
            "plain": 6,
            "bottleneck": 3,
            "separable": 3,
            "gated": 2,
            "dynamic": 1,
            "attention": 2,
            "spectral": 1,
        }
    )
    places = 1
    for size in grid:
        places *= size
    if kind == "attention":
        coarser = 1
        while places // coarser**dims > 4096:
            coarser *= 2
        if min(grid) >= coarser:
            return GridAttention(draw, width, coarser)
    if kind == "spectral" and width * places <= 2**22:
        return Spectral(draw, dims, width, grid)
    if kind == "dynamic" and width <= 256:
        return DynamicConvolution(draw, dims, width)
    wide = draw.width(max(8, width // 4), 3 * width) if kind == "bottleneck" else width
    act: Callable[[], nn.Module] = draw.activation
    if kind == "bottleneck":
        inner = [
            CONVOLUTION[dims](width, wide, 1, bias=False),
            norm(draw, dims, wide),
            act(),
            convolution(draw, dims, wide, wide),
            norm(draw, dims, wide),
            act(),
            CONVOLUTION[dims](wide, width, 1),
        ]
    elif kind == "separable":
        kernel = draw.choice((3, 5, 7) if dims < 3 else (3, 5))
        inner = [
            CONVOLUTION[dims](width, width, kernel, padding=kernel // 2, groups=width),
            norm(draw, dims, width),
            CONVOLUTION[dims](width, 2 * width, 1),
            act(),
            CONVOLUTION[dims](2 * width, width, 1),
        ]
    elif kind == "gated":
        inner = [
            convolution(draw, dims, width, 2 * width),
            Apply(lambda x: F.glu(x, 1) if x.shape[1] == 2 * width else x),
        ]
    else:
        inner = [norm(draw, dims, width), act(), convolution(draw, dims, width)]
    if draw.chance(0.2):
        inner.append(SqueezeExcite(draw, width))
    made = nn.Sequential(*inner)
    return Residual(made, in_place=draw.chance(0.3)) if draw.chance(0.7) else made


def coarser(draw: Draw, dims: int, width: int, out: int) -> nn.Module:
    """Half the size."""
    kind = draw.weighted({"strided": 4, "max": 2, "average": 1})
    if kind == "strided":
        kernel = draw.choice((2, 3, 4))
        return CONVOLUTION[dims](width, out, kernel, stride=2, padding=(kernel - 1) // 2)  # type: ignore[no-any-return]
    pool = (MAX_POOL if kind == "max" else AVERAGE_POOL)[dims](2)
    return nn.Sequential(pool, CONVOLUTION[dims](width, out, 1))


def finer(draw: Draw, dims: int, width: int, out: int) -> nn.Module:
    """Twice the size."""
    kind = draw.weighted({"transposed": 4, "smooth": 2, "nearest": 2, "shuffle": 1})
    if kind == "transposed":
        kernel = draw.choice((2, 4))
        return TRANSPOSED[dims](width, out, kernel, stride=2, padding=(kernel - 2) // 2)  # type: ignore[no-any-return]
    if kind == "shuffle" and dims == 2:
        return nn.Sequential(nn.Conv2d(width, 4 * out, 3, padding=1), nn.PixelShuffle(2))
    mode = SMOOTH[dims] if kind == "smooth" else "nearest"
    return nn.Sequential(nn.Upsample(scale_factor=2, mode=mode), CONVOLUTION[dims](width, out, 3, padding=1))


def tower(draw: Draw, dims: int, width: int, grid: tuple[int, ...], *, mirrored: bool) -> tuple[nn.Module, int]:
    """Stages of blocks, each coarser and wider than the one before; mirrored ones go back up. With its last width."""
    stages = draw.count(1, 4)
    layers: list[nn.Module] = []
    widths = [width]
    for _ in range(stages):
        layers += [block(draw, dims, widths[-1], grid) for _ in range(draw.count(1, 3))]
        if min(grid) >= 8 and all(size % 2 == 0 for size in grid):
            widths.append(draw.width(widths[-1], 2 * widths[-1] + 8, 2))
            layers.append(coarser(draw, dims, widths[-2], widths[-1]))
            grid = tuple(size // 2 for size in grid)
    if mirrored:
        for out in widths[-2::-1]:
            layers.append(finer(draw, dims, widths[-1], out))
            grid = tuple(2 * size for size in grid)
            widths.append(out)
            layers.append(block(draw, dims, out, grid))
    return nn.Sequential(*layers), widths[-1]
