"""Operators as networks nobody named have them, many in one step: the whole range of their shapes rather than usual ones.

`bundle` is a SOURCE, `foretell_bench.generated_operators:bundle`; what is in it follows from its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.convolutional import (
    AVERAGE_POOL,
    BATCH_NORM,
    CONVOLUTION,
    INSTANCE_NORM,
    MAX_POOL,
    SMOOTH,
    TRANSPOSED,
)
from foretell.design.generated.draw import Draw
from foretell.design.pool.single import Values, applied, workload
from foretell.precision import PrecisionName
from foretell.workload import Workload
from foretell_bench.bundles import check_bundle, together

SOURCE: Final = "foretell_bench.generated_operators:bundle"
_LARGEST: Final = 2**26  # numbers in one tensor
_ALL: Final = 2**29  # in all of a bundle
_WORK: Final = 4e12  # multiplications and additions of one operator


class TooLarge(Exception):
    """A draw whose tensors or work are beyond the limits: another is made."""


def bundle(*, of: str = "convolution", count: int = 24, seed: int = 0, precision: PrecisionName = "bf16") -> Workload:
    """Up to `count` operators of a kind, each forward and, where it has a gradient, backward."""
    return bundle_of(KINDS, of, count, seed, precision)


def bundle_of(
    kinds: Mapping[str, Callable[[Draw], Operator]], of: str, count: int, seed: int, precision: PrecisionName
) -> Workload:
    """The same of any table of kinds."""
    check_bundle(of, count, kinds)
    draw, parts, left = Draw(f"{of}/{seed}", "operators"), [], _ALL
    for _ in range(20 * count):
        try:
            size, part = single(kinds[of](draw), precision)
        except TooLarge:
            continue
        if size <= left:
            left -= size
            parts.append(part)
        if len(parts) == count:
            break
    return together(f"operators of {of}", parts, precision)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: what it calls on which tensors, and whether it has a gradient."""

    call: Callable[..., Any]
    inputs: Mapping[str, Values]
    layer: Callable[[], nn.Module] | None = None
    wanted: Sequence[str] = ("x",)  # inputs that get a gradient
    trains: bool = True
    channels_last: bool = False
    work: float = 0.0
    output: tuple[int, ...] | None = None  # its shape, where it cannot be run without storage


def single(drawn: Operator, precision: PrecisionName) -> tuple[int, Workload]:
    """With gradients of the shapes that a run without storage gives."""
    shapes = [value for value in drawn.inputs.values() if isinstance(value, tuple)]
    limited(drawn.work, *shapes)
    with torch.device("meta"):
        made = {n: torch.empty(v) if isinstance(v, tuple) else v() for n, v in drawn.inputs.items()}
        layer = () if drawn.layer is None else (drawn.layer(),)
        found = drawn.call(*layer, *made.values()).shape if drawn.output is None else drawn.output
    outputs = [tuple(found)]
    limited(drawn.work, *outputs)
    part = workload(
        drawn.call, drawn.inputs, outputs, layer=drawn.layer, wanted=drawn.wanted, training=drawn.trains,
        precision=precision, channels_last=drawn.channels_last,
    )  # fmt: skip
    return 2 * sum(math.prod(shape) for shape in [*(x.shape for x in made.values()), *outputs]), part


def limited(work: float, *shapes: Sequence[int]) -> None:
    if work > _WORK or any(math.prod(shape) > _LARGEST for shape in shapes):
        raise TooLarge


def grid_of(draw: Draw, dims: int) -> tuple[int, ...]:
    if dims == 3:
        side = draw.between(4, 96)
        return draw.between(2, 48), side, side
    side = draw.between(16, 8192) if dims == 1 else draw.between(4, 256)
    return (side,) * dims


def whole(most: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, most, shape)


def _convolution(draw: Draw, dims: Mapping[int, float] | None = None) -> Operator:
    side = draw.weighted(dims or {1: 3, 2: 4, 3: 4})
    kinds = {"plain": 4, "pointwise": 2, "grouped": 4, "depthwise": 3, "dilated": 3, "strided": 2, "transposed": 2}
    kind = draw.weighted({**kinds, "first": 1, "folded": 0.5})
    batch, width = draw.between(1, 1024), draw.width(2, 640)
    out = draw.width(2, 640) if draw.chance(0.5) else width
    kernel = 1 if kind == "pointwise" else draw.choice((2, 3, 3, 3, 4, 5, 5, 7, 9) if side < 3 else (2, 3, 3, 5))
    dilation = draw.choice((2, 3, 4, 8)) if kind == "dilated" else 1
    stride = draw.choice((2, 2, 3, 4)) if kind in ("strided", "transposed", "first") else 1
    groups = 1
    if kind == "first":
        width = draw.choice((1, 2, 3, 3, 4))
    if kind == "depthwise":
        groups, out = width, width * draw.choice((1, 1, 1, 2))
    if kind == "grouped":
        groups = draw.divisor(math.gcd(width, out), 64)
    if kind == "folded":
        groups, width, batch, out = batch, batch * min(width, 64), 1, batch * min(width, 64)
        if draw.chance(0.6):
            groups = width
    grid = grid_of(draw, side)
    if any(n < dilation * (kernel - 1) + 1 for n in grid):
        raise TooLarge
    padding = dilation * (kernel - 1) // 2 if kind != "transposed" else (kernel - 1) // 2
    made: Any = (TRANSPOSED if kind == "transposed" else CONVOLUTION)[side]
    bias, last = draw.chance(0.5), side == 2 and draw.chance(0.25)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    places = batch * math.prod(grid) * (stride**side if kind == "transposed" else 1 / stride**side)
    work = 2.0 * places * width * out / groups * kernel**side
    wanted = () if kind == "first" else ("x",)
    return Operator(
        applied, {"x": (batch, width, *grid)}, layer=lambda: made(width, out, kernel, **options), wanted=wanted,
        channels_last=last, work=work,
    )  # fmt: skip


def _volume(draw: Draw) -> Operator:
    return _convolution(draw, {3: 1})


def _line(draw: Draw) -> Operator:
    return _convolution(draw, {1: 1})


def _scan(draw: Draw) -> Operator:
    """Along the last side, or along another: running sums, orders, largest ones."""
    rows, length = draw.between(1, 300_000), draw.between(2, 100_000)
    last = draw.chance(0.6)
    shape, dim = ((rows, length), -1) if last else ((rows, length, draw.between(2, 256)), 1)
    kind = draw.weighted({"cumsum": 5, "sort": 2, "argsort": 1, "topk": 3, "max": 1, "median": 1, "logcumsumexp": 1,
                          "cumsum of whole numbers": 1, "searchsorted": 1})  # fmt: skip
    if kind == "cumsum of whole numbers":
        return Operator(
            lambda x: x.cumsum(dim), {"x": whole(9, *shape)}, wanted=(), trains=False, work=math.prod(shape)
        )
    if kind == "searchsorted":
        limited(0, (rows, length))

        def edges() -> torch.Tensor:
            return torch.arange(length, dtype=torch.float32).expand(rows, length).contiguous()

        inputs: dict[str, Values] = {"x": edges, "y": (rows, draw.between(1, 512))}
        return Operator(lambda x, y: torch.searchsorted(x, y.to(x.dtype)), inputs, wanted=(), trains=False)
    if kind == "topk":
        k = draw.between(1, min(length, 512))
        return Operator(lambda x: x.topk(k, dim)[0], {"x": shape})
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "cumsum": lambda x: x.cumsum(dim), "logcumsumexp": lambda x: x.logcumsumexp(dim),
        "sort": lambda x: x.sort(dim)[0], "max": lambda x: x.max(dim)[0], "median": lambda x: x.median(dim)[0],
        "argsort": lambda x: x.argsort(dim),
    }  # fmt: skip
    return Operator(calls[kind], {"x": shape}, trains=kind != "argsort", wanted=() if kind == "argsort" else ("x",))


def _lookup(draw: Draw) -> Operator:
    """Rows taken from a table or added to it, by whole numbers that repeat more or less often."""
    table, width, rows = draw.between(4, 4_000_000), draw.width(1, 1024), draw.between(16, 2_000_000)
    used = draw.between(2, table)  # rows that are looked up at all
    index = whole(used, rows)
    limited(0, (table, width), (rows, width))
    kind = draw.weighted({"embedding": 3, "bag": 4, "index_select": 2, "gather": 2, "scatter_add": 2, "index_add": 2,
                          "index": 2, "segments": 2})  # fmt: skip
    if kind == "embedding":
        return Operator(applied, {"y": index}, layer=lambda: nn.Embedding(table, width), wanted=())
    if kind == "bag":
        mode, per = draw.choice(("sum", "mean", "mean", "sum")), draw.between(1, 64)
        bags = whole(used, max(1, rows // per), per)
        return Operator(
            applied,
            {"y": bags},
            layer=lambda: nn.EmbeddingBag(table, width, mode=mode),
            wanted=(),
            trains=draw.chance(0.8),
        )
    x, y = (table, width), (rows, width)
    if kind == "index_select":
        return Operator(lambda x, i: x.index_select(0, i), {"x": x, "i": index})
    if kind == "index":
        return Operator(lambda x, i: x[i], {"x": x, "i": index})
    if kind == "gather":
        return Operator(lambda x, i: x.gather(0, i[:, None].expand(-1, width)), {"x": x, "i": index})
    if kind == "index_add":
        return Operator(lambda x, i, y: x.index_add(0, i, y), {"x": x, "i": index, "y": y}, wanted=("x", "y"))
    call = "sum" if kind == "scatter_add" else draw.choice(("amax", "mean"))
    return Operator(
        lambda x, i, y: x.scatter_reduce(0, i[:, None].expand(-1, width), y, call), {"x": x, "i": index, "y": y},
        wanted=("x", "y"),
    )  # fmt: skip


def _attention(draw: Draw) -> Operator:
    batch, heads, head = (
        draw.between(1, 512),
        draw.choice((1, 2, 3, 4, 6, 8, 12, 16)),
        draw.choice((4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 64, 72, 80, 96, 112, 128, 160, 192, 256)),
    )
    queries = draw.between(4, 4096)
    keys = queries if draw.chance(0.6) else draw.between(4, 4096)
    causal = keys == queries and draw.chance(0.3)
    masked = not causal and draw.chance(0.35)
    shape = {"x": (batch, heads, queries, head), "y": (batch, heads, keys, head), "z": (batch, heads, keys, head)}
    work = 4.0 * batch * heads * queries * keys * head
    limited(work, (batch, heads, queries, keys))
    wanted = ("x", "y", "z")
    if masked:
        shape["mask"] = (1 if draw.chance(0.5) else batch, 1, queries, keys)
        learned = draw.chance(0.3)
        return Operator(
            lambda x, y, z, m: F.scaled_dot_product_attention(x, y, z, m), shape,
            wanted=(*wanted, "mask") if learned else wanted, work=work,
        )  # fmt: skip
    dropped = 0.1 if draw.chance(0.2) else 0.0
    return Operator(
        lambda x, y, z: F.scaled_dot_product_attention(x, y, z, dropout_p=dropped, is_causal=causal), shape,
        wanted=wanted, work=work,
    )  # fmt: skip


def _recurrent(draw: Draw) -> Operator:
    batch, length, width, hidden = draw.between(1, 1024), draw.between(2, 512), draw.width(4, 512), draw.width(4, 768)
    kind: Any = draw.choice((nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
    layers, both = draw.choice((1, 1, 2, 3)), draw.chance(0.35)
    work = 8.0 * batch * length * hidden * (width + hidden) * layers * (2 if both else 1)
    return Operator(
        lambda layer, x: layer(x)[0], {"x": (batch, length, width)}, work=10 * work,
        layer=lambda: kind(width, hidden, layers, batch_first=True, bidirectional=both),
    )  # fmt: skip


def _resize(draw: Draw) -> Operator:
    dims, batch, width = draw.choice((1, 2, 2, 3)), draw.between(1, 512), draw.width(1, 512)
    grid = grid_of(draw, dims)
    kind = draw.weighted({"smooth": 4, "nearest": 2, "max": 2, "average": 2, "adaptive": 2, "sample": 1, "pad": 1,
                          "shuffle": 1, "unfold": 1})  # fmt: skip
    x = {"x": (batch, width, *grid)}
    last = dims == 2 and draw.chance(0.25)
    if kind in ("smooth", "nearest"):
        mode, factor = SMOOTH[dims] if kind == "smooth" else "nearest", draw.choice((0.5, 2.0, 2.0, 3.0, 4.0))
        if min(grid) * factor < 1:
            raise TooLarge
        return Operator(lambda x: F.interpolate(x, scale_factor=factor, mode=mode), x, channels_last=last)
    if kind in ("max", "average"):
        made, kernel = (MAX_POOL if kind == "max" else AVERAGE_POOL)[dims], draw.choice((2, 2, 3, 4))
        if min(grid) < kernel:
            raise TooLarge
        pool = made(kernel, draw.choice((1, 2, kernel)))
        return Operator(lambda x: pool(x), x, channels_last=last)
    if kind == "adaptive":
        size = draw.choice((1, 1, 2, 4, 7))
        call: Any = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[dims]
        return Operator(lambda x: call(x, size), x, channels_last=last)
    side = draw.between(4, 256)
    image = {"x": (batch, width, side, side)}
    if kind == "sample":
        return Operator(
            lambda x, y: F.grid_sample(x, y.to(x.dtype), align_corners=False),
            image | {"y": (batch, side, side, 2)},
            wanted=("x", "y"),
        )
    if kind == "pad":
        return Operator(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), image)
    if kind == "shuffle":
        return Operator(lambda x: F.pixel_shuffle(x, 2), {"x": (batch, 4 * width, side, side)})
    return Operator(lambda x: F.unfold(x, 3, padding=1), image)


def _norm(draw: Draw) -> Operator:
    dims, batch, width = draw.choice((0, 1, 2, 3)), draw.between(1, 2048), draw.width(2, 2048)
    grid = grid_of(draw, dims) if dims else ()
    kind = draw.weighted({"batch": 3, "group": 3, "instance": 2, "layer": 2, "rms": 2})
    if kind in ("layer", "rms") or not dims:
        tokens = {"x": (batch, *((draw.between(2, 4096),) if draw.chance(0.7) else ()), width)}
        made: Any = nn.RMSNorm if kind == "rms" else nn.LayerNorm
        return Operator(applied, tokens, layer=lambda: made(width))
    x, groups = {"x": (batch, width, *grid)}, draw.divisor(width, 64)
    if math.prod(grid) * batch < 2 or math.prod(grid) < 2:
        raise TooLarge
    layers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: BATCH_NORM[dims](width), "instance": lambda: INSTANCE_NORM[dims](width, affine=True),
        "group": lambda: nn.GroupNorm(groups, width),
    }  # fmt: skip
    return Operator(applied, x, layer=layers[kind], channels_last=dims == 2 and draw.chance(0.25))


def _reduction(draw: Draw) -> Operator:
    sides = [draw.between(2, 4096) for _ in range(draw.choice((2, 3, 3, 4)))]
    dim = draw.count(0, len(sides) - 1)
    call = draw.choice(("sum", "mean", "amax", "var", "softmax", "log_softmax", "logsumexp", "norm", "cdist", "glu"))
    if call == "cdist":
        width, batch = draw.between(2, 64), draw.between(1, 64)
        pairs = {"x": (batch, draw.between(4, 4096), width), "y": (batch, draw.between(4, 4096), width)}
        return Operator(lambda x, y: torch.cdist(x.float(), y.float()), pairs, wanted=("x", "y"))
    if call == "glu":
        return Operator(lambda x: F.glu(x, -1), {"x": (*sides[:-1], sides[-1] * 2)})
    return Operator(lambda x: getattr(x, call)(dim=dim), {"x": tuple(sides)})


def _signal(draw: Draw) -> Operator:
    """Frequencies, and the alignment of sequences."""
    batch, length = draw.between(1, 512), draw.between(16, 4096)
    if draw.chance(0.4):
        classes, target, frames = draw.between(8, 256), draw.between(2, 128), draw.between(32, 1024)
        if frames < 2 * target + 1:
            raise TooLarge
        limited(0, (frames, batch, classes))

        def ctc(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            inside, long = (torch.full((batch,), n, device=x.device) for n in (frames, target))
            return F.ctc_loss(x.float().log_softmax(-1), y + 1, inside, long, zero_infinity=True)

        return Operator(ctc, {"x": (frames, batch, classes), "y": whole(classes - 1, batch, target)}, output=())
    if draw.chance(0.5):
        return Operator(lambda x: torch.fft.rfft(x.float()).abs(), {"x": (batch, draw.width(1, 256), length)})
    side = draw.between(8, 256)
    return Operator(
        lambda x: torch.fft.irfft2(torch.fft.rfft2(x.float()), s=(side, side)),
        {"x": (batch, draw.width(1, 256), side, side)},
    )


KINDS: Final[Mapping[str, Callable[[Draw], Operator]]] = {
    "convolution": _convolution,
    "volume": _volume,
    "line": _line,
    "scan": _scan,
    "lookup": _lookup,
    "attention": _attention,
    "recurrent": _recurrent,
    "resize": _resize,
    "norm": _norm,
    "reduction": _reduction,
    "signal": _signal,
}
