"""Operators of the kinds of networks that are predicted worst, many in one step, shapes as such networks have them.

`bundle` is a SOURCE, `foretell_bench.measuring.h200.kinds.operators:bundle`; what is in it follows from its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.convolutional import CONVOLUTION, TRANSPOSED
from foretell.design.generated.draw import Draw
from foretell.design.pool.single import Values, applied
from foretell.precision import PrecisionName
from foretell.workload import Workload
from foretell_bench.generated_operators import Operator, TooLarge, bundle_of, whole
from foretell_bench.measuring.h200.kinds.network import FULL
from foretell_bench.measuring.h200.kinds.network import PRECISIONS as ALL_PRECISIONS

SOURCE: Final = f"{__name__}:bundle"


def bundle(*, of: str = "dilated", count: int = 18, seed: int = 0, precision: PrecisionName = "fp32") -> Workload:
    """Up to `count` operators of a kind, each forward and backward."""
    return bundle_of(KINDS, of, count, seed, precision)


def _convolved(
    draw: Draw, grid: tuple[int, ...], widths: tuple[int, int], batch: int, *, transposed: bool = False, **more: Any
) -> Operator:
    """A convolution of 1 to 3 dimensions; half of those of images are channels-last."""
    dims, (width, out) = len(grid), widths
    settings = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **more, "bias": draw.chance(0.4)}
    made, kernel = (TRANSPOSED if transposed else CONVOLUTION)[dims], settings.pop("kernel")
    if any(n + 2 * settings["padding"] < settings["dilation"] * (kernel - 1) + 1 for n in grid):
        raise TooLarge
    places = batch * math.prod(grid) * settings["stride"] ** (dims if transposed else -dims)
    return Operator(
        applied, {"x": (batch, width, *grid)}, layer=lambda: made(width, out, kernel, **settings),
        channels_last=dims == 2 and draw.chance(0.5),
        work=6.0 * places * width * out / settings["groups"] * kernel**dims,
    )  # fmt: skip


def _widths(draw: Draw, most: int = 1024) -> tuple[int, int]:
    width = draw.width(16, most)
    return width, width if draw.chance(0.5) else draw.width(16, most)


def _dilated(draw: Draw) -> Operator:
    """Context at an eighth or a sixteenth of a picture, pyramids of rates; lines and volumes of rates too."""
    rate, dims = draw.choice((2, 2, 3, 4, 4, 6, 8, 12, 16, 18, 24, 36)), draw.weighted({1: 1, 2: 6, 3: 1})
    side = {1: draw.between(256, 16_384), 2: draw.between(16, 128), 3: draw.between(8, 48)}[dims]
    widths = (draw.width(256, 2048), 256) if dims == 2 and draw.chance(0.2) else _widths(draw, 512)
    return _convolved(draw, (side,) * dims, widths, draw.between(1, 64), kernel=3, padding=rate, dilation=rate)


def _plain(draw: Draw) -> Operator:
    """Three by three with one stride, from wide pictures of few channels to narrow ones of many, as VGG has them."""
    side = draw.between(7, 256)
    most = max(32, min(1024, 16_384 // side))
    return _convolved(draw, (side, side), _widths(draw, most), draw.between(1, 256), kernel=3, padding=1)


def _grouped(draw: Draw) -> Operator:
    """Groups of 1 to 128 channels, side by side."""
    dims, per = (
        draw.weighted({1: 1, 2: 7, 3: 1}),
        draw.choice((1, 2, 4, 8, 8, 16, 16, 24, 32, 40, 48, 56, 64, 112, 128)),
    )
    groups = draw.between(2, max(2, min(256, 2048 // per)))
    side = {1: draw.between(32, 4096), 2: draw.between(7, 112), 3: draw.between(4, 32)}[dims]
    kernel, stride = draw.choice((3, 3, 3, 3, 5, 1)), draw.choice((1, 1, 1, 2))
    return _convolved(draw, (side,) * dims, (groups * per,) * 2, draw.between(1, 256), kernel=kernel, stride=stride,
                      padding=kernel // 2, groups=groups)  # fmt: skip


def _transposed(draw: Draw) -> Operator:
    """Decoders' enlarging convolutions."""
    dims = draw.weighted({1: 1, 2: 6, 3: 2})
    kernel, stride, padding = draw.choice(((2, 2, 0), (4, 2, 1), (3, 2, 1), (4, 1, 0), (5, 2, 2), (6, 2, 2), (3, 1, 1)))
    side = {1: draw.between(16, 4096), 2: draw.between(1, 128), 3: draw.between(2, 48)}[dims]
    grid = (max(side, kernel if stride == 1 else 1),) * dims
    return _convolved(draw, grid, _widths(draw, 512), draw.between(1, 256), transposed=True, kernel=kernel, stride=stride,
                      padding=padding)  # fmt: skip


def _volume(draw: Draw) -> Operator:
    """Patches of medical images."""
    side = draw.between(4, 128)
    grid = (side if draw.chance(0.6) else max(2, side // draw.choice((2, 3, 4))), side, side)
    kernel, stride = draw.choice(((3, 1), (3, 1), (3, 1), (3, 2), (1, 1), (5, 1)))
    return _convolved(draw, grid, _widths(draw, max(24, min(320, 4096 // side))), draw.between(1, 8), kernel=kernel,
                      stride=stride, padding=kernel // 2)  # fmt: skip


def _long_line(draw: Draw) -> Operator:
    """Signals and filters of tens to thousands of taps."""
    kernel, groups = draw.between(15, 2048), 1
    widths = (1, draw.width(8, 128)) if draw.chance(0.3) else _widths(draw, 128)
    if draw.chance(0.35):
        widths = (widths[1],) * 2
        groups = widths[0]
    return _convolved(draw, (draw.between(512, 48_000),), widths, draw.between(1, 64), kernel=kernel, padding=kernel // 2,
                      stride=draw.choice((1, 1, 2, 4)), groups=groups)  # fmt: skip


def _modulated(draw: Draw) -> Operator:
    """A convolution with weights of each sample's own: samples are groups, the weights have a gradient."""
    batch, side, kernel = draw.between(1, 128), draw.between(4, 256), draw.choice((1, 3, 3, 3))
    width, out = _widths(draw, 512)
    up = kernel == 3 and draw.chance(0.3)
    weight = (batch * width, out, kernel, kernel) if up else (batch * out, width, kernel, kernel)

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if up:
            return F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=batch)
        return F.conv2d(x, w, padding=kernel // 2, groups=batch)

    work = 6.0 * batch * side**2 * width * out * kernel**2
    return Operator(call, {"x": (1, batch * width, side, side), "w": weight}, wanted=("x", "w"), work=work)


def _recurrent(draw: Draw) -> Operator:
    """Layers of every size: from a sensor's to a language model's."""
    kind: Any = draw.choice((nn.LSTM, nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
    hidden, batch, length = draw.width(16, 2048), draw.between(1, 512), draw.between(8, 512)
    width = hidden if draw.chance(0.4) else draw.width(4, 1024)
    layers, both, first = draw.choice((1, 1, 2, 2, 3, 3, 4)), draw.chance(0.3), draw.chance(0.7)
    if length * layers * (2 if both else 1) > 800:
        raise TooLarge  # thousands of kernels take the recorder too long
    work = 24.0 * batch * length * hidden * (width + hidden) * layers * (2 if both else 1)
    return Operator(
        lambda layer, x: layer(x)[0], {"x": (batch, length, width) if first else (length, batch, width)}, work=work,
        layer=lambda: kind(width, hidden, layers, batch_first=first, bidirectional=both),
    )  # fmt: skip


def _fourier(draw: Draw) -> Operator:
    """There and back, real and complex, over one to three sides of any length."""
    kind = draw.weighted({"rfft": 3, "convolution": 3, "rfft2": 3, "fft": 2, "fft2": 1, "rfftn": 1})
    if kind in ("rfft2", "fft2"):
        grid: tuple[int, ...] = (draw.between(8, 512),) * 2
    else:
        grid = (draw.between(8, 64),) * 3 if kind == "rfftn" else (draw.between(32, 65_536),)
    shape, sides = (draw.between(1, 128), draw.width(1, 512), *grid), tuple(range(2, 2 + len(grid)))
    complete = math.prod(grid)
    if kind == "convolution":
        length = grid[0]

        def convolved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            product = torch.fft.rfft(x.float(), n=2 * length) * torch.fft.rfft(y.float(), n=2 * length)
            kept: torch.Tensor = torch.fft.irfft(product, n=2 * length)[..., :length]
            return kept

        return Operator(convolved, {"x": shape, "y": shape[1:]}, wanted=("x", "y"), work=complete)
    if kind in ("fft", "fft2"):
        return Operator(
            lambda x: torch.fft.ifftn(torch.fft.fftn(x.float(), dim=sides), dim=sides).real, {"x": shape}, work=complete
        )
    return Operator(
        lambda x: torch.fft.irfftn(torch.fft.rfftn(x.float(), dim=sides), s=grid, dim=sides),
        {"x": shape},
        work=complete,
    )


def _product(draw: Draw) -> Operator:
    """Capsules' votes, relations and other sums over odd sides, by einsum or as batched products."""
    kind = draw.weighted({"votes": 3, "agreement": 2, "poses": 2, "pairs": 2, "bmm": 4, "modes": 1})
    n, a, b = draw.between(1, 512), draw.between(2, 64), draw.between(4, 2048)
    w, i = draw.between(2, 48), draw.between(2, 32)
    forms: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
        "votes": ("abwi,nbi->nabw", (a, b, w, i), (n, b, i)), "agreement": ("nabw,naw->nab", (n, a, b, w), (n, a, w)),
        "poses": ("npiab,ijbc->npijac", (n, b // 4 + 1, i, 4, 4), (i, a, 4, 4)),
        "pairs": ("nfd,ngd->nfgd", (n, a, w), (n, i, w)),
        "modes": ("nixy,ioxy->noxy", (n, a, i, i), (a, w, i, i)),
        "bmm": ("nab,nbc->nac", (draw.between(1, 4096), draw.between(1, 777), w), ()),
    }  # fmt: skip
    text, x, y = forms[kind]
    if kind == "bmm":
        y = (x[0], x[2], draw.between(1, 777))
    sides = dict(zip(text.partition("->")[0].replace(",", ""), (*x, *y), strict=True))
    return Operator(
        lambda x, y: torch.einsum(text, x, y),
        {"x": x, "y": y},
        wanted=("x", "y"),
        work=200.0 * math.prod(sides.values()),
    )


def _scan(draw: Draw) -> Operator:
    """Running sums, products and largest ones along texts and signals, on the last side or before it."""
    rows, length, inner = draw.between(1, 512), draw.between(16, 8192), draw.between(8, 1024)
    shape, dim = ((rows, length, inner), 1) if draw.chance(0.6) else ((rows * inner, length), -1)
    name = draw.weighted({"cumsum": 4, "cumprod": 2, "logcumsumexp": 4, "cummax": 1, "flip": 1})
    if name == "cummax":
        return Operator(lambda x: x.cummax(dim)[0], {"x": shape})
    if name == "cumprod":  # of ones nearly, so that nothing is zero and its gradient takes the usual way
        return Operator(lambda x: (x * 0.001 + 1).cumprod(dim), {"x": shape})
    if name == "flip":
        return Operator(lambda x: x.flip(dim).cumsum(dim).flip(dim), {"x": shape})
    return Operator(lambda x: getattr(x, name)(dim), {"x": shape})


def _bag(draw: Draw) -> Operator:
    """Embeddings and bags of them: small tables and tables of millions, dense and sparse gradients."""
    rows, width, samples = draw.between(16, 2_000_000), draw.width(1, 512), draw.between(16, 65_536)
    used = rows if draw.chance(0.6) else draw.between(2, rows)
    sparse, mode = draw.chance(0.35), draw.choice(("sum", "mean", "sum", "max"))
    kind = draw.weighted({"bag": 4, "starts": 2, "weighted": 1, "embedding": 4})
    per = draw.between(1, 100)
    if rows * width > 2**26 or samples * per > 2**24:
        raise TooLarge
    if kind == "embedding":
        index = whole(used, samples, draw.between(1, 8))
        return Operator(applied, {"y": index}, layer=lambda: nn.Embedding(rows, width, sparse=sparse), wanted=())
    sparse, mode = sparse and mode != "max", "sum" if kind == "weighted" else mode
    inputs: dict[str, Values] = {"y": whole(used, samples, per)}
    if kind == "weighted":
        inputs["w"] = (samples, per)
    if kind == "starts":
        inputs = {"y": whole(used, samples * per), "s": lambda: torch.arange(0, samples * per, per)}

    def call(layer: Any, y: torch.Tensor, *more: torch.Tensor) -> Any:
        return layer(y, per_sample_weights=more[0].to(layer.weight.dtype)) if kind == "weighted" else layer(y, *more)

    return Operator(call, inputs, layer=lambda: nn.EmbeddingBag(rows, width, mode=mode, sparse=sparse), wanted=(),
                    output=(samples, width))  # fmt: skip


def _moved(draw: Draw) -> Operator:
    """Rows gathered and added where indices say."""
    table, width, rows = draw.between(8, 1_000_000), draw.width(1, 512), draw.between(16, 1_000_000)
    index, kind = (
        whole(draw.between(2, table), rows),
        draw.choice(("gather", "scatter_add", "index_add", "index", "take")),
    )
    x, y = (table, width), (rows, width)
    calls: dict[str, Callable[..., Any]] = {
        "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, width)),
        "index": lambda x, i: x[i],
        "take": lambda x, i: x.index_select(0, i),
        "index_add": lambda x, i, y: x.index_add(0, i, y),
        "scatter_add": lambda x, i, y: x.scatter_add(0, i[:, None].expand(-1, width), y),
    }
    adds = kind.endswith("add")
    inputs: dict[str, Values] = {"x": x, "i": index, **({"y": y} if adds else {})}
    return Operator(calls[kind], inputs, wanted=("x", "y") if adds else ("x",))


KINDS: Final[Mapping[str, Callable[[Draw], Operator]]] = {
    "dilated": _dilated, "plain": _plain, "grouped": _grouped, "transposed": _transposed, "volume": _volume,
    "long_line": _long_line, "modulated": _modulated, "recurrent": _recurrent, "fourier": _fourier, "product": _product,
    "scan": _scan, "bag": _bag, "moved": _moved,
}  # fmt: skip
WEIGHTS: Final[Mapping[str, int]] = {  # shares of all bundles
    "dilated": 10, "plain": 10, "grouped": 12, "transposed": 9, "volume": 9, "long_line": 7, "modulated": 8,
    "recurrent": 26, "fourier": 8, "product": 8, "scan": 7, "bag": 8, "moved": 4,
}  # fmt: skip
LATER_WEIGHTS: Final[Mapping[str, int]] = {  # of a second draw, more of what the first left predicted worst
    "dilated": 14, "plain": 10, "grouped": 16, "transposed": 8, "volume": 22, "long_line": 10, "modulated": 14,
    "recurrent": 26, "fourier": 16, "product": 4, "scan": 3, "bag": 2, "moved": 2,
}  # fmt: skip
COUNT: Final[Mapping[str, int]] = {kind: 8 if kind == "recurrent" else 18 for kind in KINDS}
PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    kind: FULL if kind in ("bag", "moved") else ALL_PRECISIONS for kind in KINDS
}
