"""Workspace of convolutions: what cuDNN's chosen algorithm needs beside inputs and outputs.

cuDNN picks an algorithm by rules of its own; given the algorithm, its workspace follows from the shapes. So the choice
is learned, as small forests over H200 sweeps (`convolution.json`, made by `foretell bench memory fit-convolution`),
and the bytes are formulas, derived here from the same sweeps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from foretell.graph import Layout, Signature
from foretell.hardware import Device
from foretell.precision import HALF_DTYPES
from foretell.units import Bytes

_MIN_FFT: Final = 16
_MAX_FFT: Final = 256  # of a padded image's longer side, as cuDNN's documentation has it
_TILE: Final = 32
_MOST_OF: Final = 0.6  # a device's memory
_BY_FFT: Final = ("fft", "tiled fft", "transposed fft", "transposed tiled fft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A convolution as cuDNN sees it; a transposed one is the input gradient of another."""

    precision: str  # half, tf32, fp32
    channels_last: bool
    batch: int
    channels: int
    filters: int
    groups: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int
    padding: int
    dilation: int

    @property
    def item(self) -> Bytes:
        return 2 if self.precision == "half" else 4

    @property
    def x(self) -> Bytes:
        return self.item * self.batch * self.channels * math.prod(self.input)

    @property
    def y(self) -> Bytes:
        return self.item * self.batch * self.filters * math.prod(self.output)

    @property
    def w(self) -> Bytes:
        return self.item * self.filters * (self.channels // self.groups) * math.prod(self.kernel)

    @property
    def planes(self) -> tuple[int, int, int]:
        """How many images x, filters w and y are made of."""
        return self.batch * self.channels, self.filters * self.channels // self.groups, self.batch * self.filters


# Algorithms. Each formula gives the workspace for an op: forward, input (its gradient) or weight (its gradient).

Algorithm = Callable[[Problem, str], float]


def _transposed(p: Problem, op: str) -> float:
    """Tensor cores read NHWC: x, w and y are copied there, with channels padded to what a 16 B load holds."""
    if p.groups > 1:
        return p.x + p.w + p.y
    wide = 16 // p.item
    c, k = (-(-n // wide) * wide / n for n in (p.channels, p.filters))
    return p.x * c + p.w * c * k + p.y * k


def _padded_input(p: Problem, op: str) -> float:
    """Already NHWC, with too few channels for a 16 B load: x and w are padded."""
    wide = 16 // p.item
    c = -(-p.channels // wide) * wide / p.channels
    return p.x * c + p.w * c


def _group_sides(p: Problem) -> tuple[float, float]:
    c, k = p.channels // p.groups, p.filters // p.groups
    wide = max(32, 1 << (max(c, k) - 1).bit_length())
    return p.x * wide / c, p.y * wide / k


def _widened_groups(p: Problem, op: str) -> float:
    """Groups are widened to one power of two, to run as dense tiles."""
    return sum(_group_sides(p))


def _fft(p: Problem, op: str) -> float:
    """Whole images in the frequency domain, before and after a transposition; one operand stays beside them flipped."""
    size = max(_MIN_FFT, 1 << (_reach(p) - 1).bit_length())
    x, w, y = p.planes
    plane = 8 * size * (size // 2 + 1)
    if op == "weight":
        return 2 * plane * max(x + y, w) + p.y
    return 2 * plane * (max(x + w, y) if op == "forward" else max(y + w, x)) + p.w


def _tiled_fft(p: Problem, op: str) -> float:
    """Tiles of 32 × 32 in the frequency domain, two at a time where an image has more than one."""
    x, w, y = p.planes
    reach = max(p.output if op == "forward" else p.input) + max(p.kernel) - 1
    return 8 * _TILE * (_TILE // 2 + 1) * (w + (x + y) * (1 if reach <= _TILE else 2))


def _winograd(p: Problem, op: str) -> float:
    """All tiles of x, w and y transformed: F(4×4, 3×3), or F(9×9, 5×5) for larger kernels."""
    step = 4 if max(p.kernel) <= 3 else 9
    side = step + max(p.kernel) - 1
    images = p.input if op == "input" else p.output
    tiles = p.batch * math.prod(-(-n // step) for n in images)
    return 4 * side * side * (tiles * (p.channels + p.filters) + p.planes[1])


def _after(algorithm: Algorithm) -> Algorithm:
    """fp32 algorithms read NCHW: from channels-last, x, w and y are copied there first."""
    return lambda p, op: p.x + p.w + p.y + algorithm(p, op)


ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    "none": lambda p, op: 0.0,
    "transposed": _transposed,
    "x and y": lambda p, op: p.x + p.y,
    "x": lambda p, op: p.x,
    "y": lambda p, op: p.y,
    "padded input": _padded_input,
    "half of all": lambda p, op: (p.x + p.w + p.y) / 2,
    "quarter of all": lambda p, op: (p.x + p.w + p.y) / 4,
    "widened groups": _widened_groups,
    "widened x": lambda p, op: _group_sides(p)[0],
    "widened y": lambda p, op: _group_sides(p)[1],
    "fft": _fft,
    "tiled fft": _tiled_fft,
    "winograd": _winograd,
    "transposed fft": _after(_fft),
    "transposed tiled fft": _after(_tiled_fft),
    "transposed winograd": _after(_winograd),
}


def may_run(name: str, p: Problem) -> bool:
    """Whether cuDNN has the algorithm for it at all, by its documentation."""
    if "fft" not in name and "winograd" not in name:
        return True
    if p.precision != "fp32" or p.stride > 1 or p.dilation > 1 or max(p.kernel) == 1:
        return False
    if "winograd" in name:
        return len(p.input) == 2 and max(p.kernel) in (3, 5)
    return len(p.input) <= 2 and ("tiled" in name or _reach(p) <= _MAX_FFT)


def _reach(p: Problem) -> int:
    return max(n + 2 * p.padding for n in p.input)


def features(p: Problem) -> dict[str, float]:
    """What the choice of an algorithm can depend on; the fitted trees number them in this order."""
    c, k = p.channels // p.groups, p.filters // p.groups
    area, outs = math.prod(p.input), math.prod(p.output)
    positions, depth = p.batch * outs, c * math.prod(p.kernel)
    return {
        "channels_last": p.channels_last, "batch": p.batch, "channels": p.channels, "filters": p.filters, "groups": p.groups,
        "group_channels": c, "group_filters": k, "kernel": max(p.kernel), "stride": p.stride, "dilation": p.dilation,
        "padding": p.padding, "input": max(p.input), "output": max(p.output), "rank": len(p.input), "positions": positions,
        "depth": depth, "x_bytes": p.x, "y_bytes": p.y, "w_bytes": p.w, "x_over_y": p.x / max(p.y, 1),
        "w_over_x": p.w / max(p.x, 1), "channel_remainder": p.channels % 8, "filter_remainder": p.filters % 8,
        "position_remainder": area % 8, "flops": positions * depth * p.filters, "reach": _reach(p),
    }  # fmt: skip


def algorithm_bytes(p: Problem, op: str, device: Device) -> Bytes:
    """Workspace of one of a convolution's three ops: forward, input, weight."""
    if 0 in (p.batch, p.channels, p.filters, *p.input, *p.output):
        return 0
    name, extra = chosen(p, op)
    nbytes = round(ALGORITHMS[name](p, op)) + extra
    if name in _BY_FFT and nbytes > _MOST_OF * device.memory_bytes:  # no room for it: the next best is tried
        return round(ALGORITHMS["tiled fft"](p, op))
    return nbytes


@lru_cache(maxsize=1 << 14)  # time and memory ask for the same ones
def chosen(p: Problem, op: str) -> tuple[str, Bytes]:
    """The algorithm that most trees say, and what it takes beyond its formula."""
    row = tuple(features(p).values())
    votes: dict[str, list[Bytes]] = {}
    for tree in _trees()[f"{op} {p.precision}"]:
        node = 0
        while (feature := tree["feature"][node]) >= 0:
            node = tree["left" if row[feature] <= tree["threshold"][node] else "right"][node]
        votes.setdefault(tree["algorithms"][tree["algorithm"][node]], []).append(int(tree["extra"][node]))
    allowed = {name: extras for name, extras in votes.items() if may_run(name, p)} or {"none": [0]}
    name = max(allowed, key=lambda n: len(allowed[n]))
    return name, sorted(allowed[name])[len(allowed[name]) // 2]


@cache
def _trees() -> Mapping[str, Any]:
    trees: Mapping[str, Any] = json.loads(files("foretell.cost").joinpath("convolution.json").read_text())
    return trees


# Signatures.


def forward_workspace(s: Signature, device: Device, *, tf32: bool) -> Bytes:
    """Of `aten.convolution`, and of the forms that inference keeps whole (`aten.conv2d`, say)."""
    x, w, y = s.inputs[0], s.inputs[1], s.outputs[0]
    if not y.numel or not x.numel:
        return 0
    p = problem(s, x, w, y, tf32=tf32)
    return algorithm_bytes(p, "input" if s.argument("transposed") else "forward", device) + copied_to(
        p.channels_last, x, w
    )


def backward_workspace(s: Signature, device: Device, *, tf32: bool) -> Bytes:
    """The input's gradient is made before the weight's: what one gave back, the other may use."""
    g, x, w = s.inputs[:3]
    if not g.numel or not x.numel:
        return 0
    p = problem(s, x, w, g, tf32=tf32)
    mask = s.argument("output_mask")
    for_input, for_weight = (bool(m) for m in mask[:2]) if isinstance(mask, tuple) else (True, True)
    needs = [0]
    if for_input:
        made_later = w.nbytes if for_weight else 0
        needs.append(algorithm_bytes(p, "forward" if s.argument("transposed") else "input", device) - made_later)
    if for_weight:
        needs.append(algorithm_bytes(p, "weight", device))
    return max(needs) + copied_to(p.channels_last, g, x, w)


def problem(s: Signature, x: Layout, w: Layout, y: Layout, *, tf32: bool) -> Problem:
    if s.argument("transposed"):
        x, y = y, x
    precision = "half" if x.dtype in HALF_DTYPES else "tf32" if tf32 and x.dtype == "float32" else "fp32"
    return Problem(
        precision=precision, channels_last=is_channels_last(s.inputs[0]) or is_channels_last(w),
        batch=x.shape[0] if len(x.shape) == len(w.shape) else 1, channels=x.shape[1 - len(w.shape)], filters=y.shape[1 - len(w.shape)],
        groups=_number(s, "groups", 1), input=x.shape[2 - len(w.shape):], output=y.shape[2 - len(w.shape):], kernel=w.shape[2:],
        stride=_number(s, "stride", 1), padding=_number(s, "padding", 0), dilation=_number(s, "dilation", 1),
    )  # fmt: skip


def _number(s: Signature, name: str, default: int) -> int:
    value = s.argument(name, default)
    if isinstance(value, tuple):
        return max((int(v) for v in value if isinstance(v, int)), default=default)
    return value if isinstance(value, int) else default


def is_channels_last(layout: Layout) -> bool:
    """Whether a library would take it so; its images need not lie side by side."""
    return layout.is_channels_last and math.prod(layout.shape[2:]) > 1


def copied_to(channels_last: bool, *layouts: Layout) -> Bytes:
    """Tensors in another layout than the one chosen are copied to it."""
    return sum(x.nbytes for x in layouts if not _lies(x, channels_last))


def _lies(x: Layout, channels_last: bool) -> bool:
    if not channels_last:
        return x.is_contiguous
    order = [0, *range(2, len(x.shape)), 1]
    return Layout(tuple(x.shape[a] for a in order), tuple(x.strides[a] for a in order), x.dtype).is_contiguous
