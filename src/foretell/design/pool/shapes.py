"""Shapes of the pool's operators, drawn as networks use them: none larger than 4 GiB or slower than about 20 ms on an H200.

What is drawn for a seed is the same for ever, since stores know points by their settings: keep the order of draws, and of
what is drawn from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.design.pool import POOL
from foretell.design.pool.operators import elements
from foretell.design.pool.operators.layers import INDEXED, PARAMETERS
from foretell.design.pool.operators.products import convolved
from foretell.measure.record import Point
from foretell.precision import HALVES, Precision, bytes_per_number

Settings = dict[str, Any]
OperatorDraw = tuple[Settings, float, float]  # settings; numbers in tensors, gradients too; floating-point operations

_BYTES: Final = 4 * 2**30  # of tensors
_SECONDS: Final = 0.02
_TINY_SECONDS: Final = 1e-5
_FLOPS: Final = {"fp32": 3e13, "tf32": 1.5e14, "bf16": 3e14, "fp16": 3e14}  # per second, as far as large shapes get
_DEPTHWISE_FLOPS: Final = 4e12
_BANDWIDTH: Final = 2e12  # bytes per second
_OPTIMIZERS: Final = """sgd sgd-foreach sgd-forloop sgd-fused sgd-momentum sgd-momentum-foreach sgd-momentum-forloop
    sgd-momentum-fused adam adam-foreach adam-forloop adam-fused adamw adamw-foreach adamw-forloop adamw-fused adagrad
    adagrad-foreach adagrad-forloop rmsprop rmsprop-foreach rmsprop-forloop adafactor adafactor-foreach adafactor-forloop
""".split()  # written out: a new optimizer must not change what is drawn
_PRECISIONS: Final = {"bf16": 35, "fp32": 25, "tf32": 20, "fp16": 20}


class Draw(random.Random):
    """A source of random numbers that knows which sizes people choose."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def weighted(self, weights: Mapping[str, int]) -> str:
        [choice] = self.choices(list(weights), list(weights.values()))
        return choice

    def precision(self) -> str:
        return self.weighted(_PRECISIONS)

    def log(self, low: float, high: float) -> int:
        """Log-uniform, any whole number."""
        return round(math.exp(self.uniform(math.log(low), math.log(high))))

    def count(self, low: int, high: int) -> int:
        """Log-uniform; mostly a power of two or half as much again, as people choose batches."""
        number = self.log(low, high)
        if self.chance(0.3):
            return number
        power = 1 << (number.bit_length() - 1)
        rounded = power * 3 // 2 if number >= power * 3 // 2 else power
        return min(high, max(low, rounded))

    def width(self, low: int, high: int) -> int:
        """Log-uniform; mostly a multiple of 64, 32 or 8, as widths of layers are; sometimes anything."""
        number = self.log(low, high)
        multiple = self.choices((64, 32, 8, 1), (50, 15, 20, 15))[0]
        while multiple > number:
            multiple //= 2
        return min(high, max(low, round(number / multiple) * multiple))

    def matrix(self) -> tuple[int, int]:
        """Rows and columns of up to 2e8 numbers in all."""
        numbers = math.exp(self.uniform(math.log(256), math.log(2e8)))
        columns = self.width(1, 16384)
        return max(1, round(numbers / columns)), columns


def candidates(seed: int = 0) -> list[Point]:
    """About six thousand points, always the same for a seed, operators mixed."""
    points: dict[str, Point] = {}
    for name, (count, drawn_by) in _DRAWS.items():
        draw = Draw(f"{seed}/{name}")
        wanted, tries = len(points) + count, 0
        while len(points) < wanted and tries < 50 * count:
            tries += 1
            settings, numbers, flops = drawn_by(draw)
            if not _is_wanted(draw, str(settings.get("precision", "fp32")), numbers, flops):
                continue
            texts = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in settings.items()}
            point = Point(source=POOL + name, kind="operators", settings=texts)
            points.setdefault(point.key, point)
    mixed = list(points.values())
    random.Random(seed).shuffle(mixed)
    return mixed


def _is_wanted(draw: Draw, precision: str, numbers: float, flops: float) -> bool:
    """Neither too large nor too slow; and of the tiny ones, which all cost what a launch costs, only some."""
    seconds = seconds_of(precision, numbers, flops)
    if bytes_of(precision, numbers) > _BYTES or seconds > _SECONDS:
        return False
    return seconds > _TINY_SECONDS or draw.chance(0.2)


def bytes_of(precision: str, numbers: float) -> float:
    return numbers * bytes_per_number(Precision.parse(precision).products)


def seconds_of(precision: str, numbers: float, flops: float) -> float:
    """About what a training step of an operator takes: it reads and writes each number a few times."""
    return flops / _FLOPS[Precision.parse(precision).wanted()] + 3 * bytes_of(precision, numbers) / _BANDWIDTH


def drawn(name: str, draw: Draw) -> OperatorDraw:
    """Settings of an operator of the pool, and what they hold and compute."""
    return _DRAWS[name][1](draw)


def _convolution(draw: Draw) -> OperatorDraw:
    dims = draw.choices((2, 1, 3), (84, 8, 8))[0]
    kernel = draw.choices((1, 3, 5, 7, 2, 4, 9, 14, 16), (36, 36, 7, 7, 3, 4, 2, 2, 3))[0]
    stride = 1 if draw.chance(0.72) else 2
    dilation = draw.choice((2, 4, 6, 12)) if kernel == 3 and draw.chance(0.07) else 1
    widest = 512 if dims == 3 else 2048
    channels, filters, groups = draw.width(8, widest), draw.width(8, widest), 1
    first = kernel > 1 and draw.chance(0.08)  # the first of a network
    patches = kernel in (14, 16) or (kernel in (2, 4) and draw.chance(0.5))
    if patches:
        stride = kernel
    kind = draw.random()
    if first or kernel >= 14:
        channels, filters = draw.choice((1, 3, 3, 3, 4)), draw.width(16, 1024)
    elif kind < 0.22 and kernel > 1:
        filters = groups = channels
        if draw.chance(0.05):
            filters *= 2
    elif kind < 0.3:
        groups = draw.choice((2, 4, 8, 16, 32, 64))
        channels, filters = (max(1, side // groups) * groups for side in (channels, filters))
    transposed = groups == 1 and kernel in (2, 3, 4) and draw.chance(0.12)
    sides = {1: (64, 16384), 2: (4, 256), 3: (4, 64)}[dims]
    usual = [s for s in (7, 14, 28, 56, 112, 224) if s >= kernel]
    size = draw.choice(usual) if dims == 2 and draw.chance(0.5) else max(kernel, draw.log(*sides))
    padded = not patches and draw.chance(0.93)
    batch = draw.count(1, 32 if dims == 3 else 512)
    if not padded and dilation * (kernel - 1) + 1 > size:
        dilation = 1
    settings: Settings = {"dims": dims, "batch": batch, "channels": channels, "filters": filters, "size": size}
    settings |= {"kernel": kernel, "stride": stride, "dilation": dilation, "groups": groups, "padded": padded}
    settings |= {"transposed": transposed, "bias": draw.chance(0.3), "channels_last": dims == 2 and draw.chance(0.35)}
    settings |= {"input_gradient": not (first or kernel >= 14), "training": draw.chance(0.92)}
    return convolution_drawn(**settings, precision=draw.precision())


def convolution_drawn(**settings: Any) -> OperatorDraw:
    """What a convolution of these settings holds and computes."""
    batch, channels, filters, groups = (settings[name] for name in ("batch", "channels", "filters", "groups"))
    dims, size, kernel = settings["dims"], settings["size"], settings["kernel"]
    side = convolved(size, kernel, settings["stride"], settings["dilation"], settings["padded"], settings["transposed"])
    wide = {"first": dims - 1, "rest": 1}.get(settings.get("flat", "no"), dims)  # sides along which the kernel is
    out = side**wide * size ** (dims - wide)
    weights = channels * filters // groups * kernel**wide
    numbers = 2 * (batch * (channels * size**dims + filters * out) + weights)
    positions = batch * (size**dims if settings["transposed"] else out)
    # What convolutions lose against plain products: a little, or with narrow groups nearly everything.
    slow = 6.0 if 1 < groups < channels else 1.5
    if groups == channels > 1:
        slow = _FLOPS[settings["precision"]] / _DEPTHWISE_FLOPS
    return settings, numbers, 6 * slow * positions * weights


def _linear(draw: Draw) -> OperatorDraw:
    rows, inputs, outputs = draw.count(4, 131072), draw.width(16, 16384), draw.width(16, 16384)
    if draw.chance(0.08):
        outputs = draw.choice((1, 2, 10, 21, 1000, 21841, 30522, 32000, 50257, 128256))
    if draw.chance(0.3):  # tokens of images or texts
        rows = draw.count(1, 128) * draw.choice((49, 50, 128, 196, 197, 256, 257, 512, 577, 1024))
    settings: Settings = {"rows": rows, "inputs": inputs, "outputs": outputs, "bias": draw.chance(0.65)}
    settings |= {"input_gradient": draw.chance(0.92), "training": draw.chance(0.9), "precision": draw.precision()}
    return settings, 2 * (rows * (inputs + outputs) + inputs * outputs), 6.0 * rows * inputs * outputs


def _matmul(draw: Draw) -> OperatorDraw:
    batch = 1 if draw.chance(0.25) else draw.count(2, 4096)
    m, n, k = (draw.width(1, 8192 if batch == 1 else 2048) for _ in range(3))
    settings: Settings = {"batch": batch, "m": m, "n": n, "k": k, "first_transposed": draw.chance(0.2)}
    settings |= {"second_transposed": draw.chance(0.4), "precision": draw.precision()}
    return settings, 2.0 * batch * (m * k + k * n + m * n), 6.0 * batch * m * n * k


def _grouped_matmul(draw: Draw) -> OperatorDraw:
    groups = draw.choice((2, 4, 8, 8, 16, 32, 60, 64, 64, 128))
    rows = draw.count(max(groups, 64), 65536)
    inputs, outputs = (max(8, draw.width(64, 8192) // 8 * 8) for _ in range(2))
    settings: Settings = {"groups": groups, "rows": rows, "inputs": inputs, "outputs": outputs}
    settings |= {"skewed": draw.chance(0.4), "training": draw.chance(0.85), "precision": "bf16"}
    numbers = 2.0 * (rows * (inputs + outputs) + groups * inputs * outputs)
    return settings, numbers, 6.0 * rows * inputs * outputs


def _attention(draw: Draw) -> OperatorDraw:
    backend = draw.weighted({"auto": 40, "cudnn": 14, "flash": 14, "efficient": 20, "math": 12})
    only_half = backend in ("cudnn", "flash")
    precision = draw.weighted(
        {"bf16": 60, "fp16": 40} if only_half else {"bf16": 45, "fp16": 15, "fp32": 25, "tf32": 15}
    )
    dims = {64: 34, 128: 20, 32: 12, 80: 6, 96: 6, 48: 4, 16: 4, 40: 3, 72: 3, 192: 3, 256: 3, 36: 2}
    head_dim = draw.choices(list(dims), list(dims.values()))[0]
    if head_dim % 8 and backend in ("cudnn", "flash", "efficient"):
        head_dim = 32
    if backend == "cudnn":
        head_dim = min(head_dim, 128)
    heads = draw.choice((1, 2, 3, 4, 6, 8, 12, 12, 16, 16, 20, 32, 32, 40))
    kv_heads = heads
    if backend not in ("efficient", "math") and draw.chance(0.2):
        kv_heads = draw.choice([n for n in (1, 2, 4, 8) if heads % n == 0])
    usual = draw.chance(0.7)
    queries = draw.count(16, 8192) if usual else draw.choice((49, 50, 64, 77, 144, 196, 197, 257, 577, 1500))
    keys = queries if draw.chance(0.85) else draw.count(16, 4096)
    mask = draw.weighted({"none": 75, "bool": 12, "float": 13}) if backend != "flash" else "none"
    causal = mask == "none" and queries == keys and draw.chance(0.4)
    # Batches from one image or text to the many small windows of a windowed transformer.
    batch = draw.count(1, 128 if queries > 64 else 4096)
    settings: Settings = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys}
    settings |= {"head_dim": head_dim, "causal": causal, "mask": mask, "heads_inside": draw.chance(0.8)}
    settings |= {"dropout": 0.1 if draw.chance(0.12) else 0.0, "backend": backend, "training": draw.chance(0.85)}
    scores = batch * heads * queries * keys
    numbers = 4.0 * batch * heads * head_dim * (queries + keys) + batch * queries * keys * (mask != "none")
    if backend == "math" or (backend == "auto" and kv_heads != heads and precision not in HALVES):
        numbers += 5 * scores
    return settings | {"precision": precision}, numbers, (8 if causal else 16) * 1.5 * scores * head_dim


def _recurrent(draw: Draw) -> OperatorDraw:
    cell = draw.weighted({"lstm": 60, "gru": 30, "rnn": 10})
    batch, seq, hidden = draw.count(1, 1024), draw.count(8, 512), draw.width(32, 2048)
    inputs = hidden if draw.chance(0.5) else draw.width(16, 1024)
    layers = draw.choice((1, 1, 1, 2, 2, 3, 4))
    both = draw.chance(0.3)
    settings: Settings = {"cell": cell, "batch": batch, "seq": seq, "inputs": inputs, "hidden": hidden}
    settings |= {"layers": layers, "bidirectional": both}
    settings |= {"batch_first": draw.chance(0.7), "precision": draw.precision()}
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell] * (2 if both else 1)
    weights = gates * hidden * (inputs + hidden + (layers - 1) * hidden * (3 if both else 2))
    numbers = 2 * (batch * seq * (inputs + hidden * (gates + 2) * layers) + weights)
    steps = seq * layers * 3e7 * 2  # each step of the sequence waits for the one before: about 2 µs at 3e13 per second
    return settings, numbers, 6.0 * batch * seq * weights * 2 + steps


def _norm(draw: Draw) -> OperatorDraw:
    kind = draw.weighted({"layer": 30, "rms": 17, "batch": 33, "group": 14, "instance": 6})
    channels = draw.width(8, 8192 if kind in ("layer", "rms") else 2048)
    precision, affine, groups = draw.precision(), draw.chance(0.93), 1
    if kind == "batch" and draw.chance(0.4):
        precision = draw.choice(("amp-bf16", "amp-bf16", "amp-fp16"))
    if kind == "group":
        groups = draw.choice([g for g in (1, 4, 8, 16, 32, 32, 32) if g <= channels])
        channels -= channels % groups
    if kind in ("layer", "rms"):
        size, channels_last = draw.log(1, 4096), False
        positions = size
    else:
        size, channels_last = draw.choice((1, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128)), draw.chance(0.35)
        if kind == "instance":
            size = max(4, size)
        positions = size * size
    batch = draw.count(2, 512)
    settings: Settings = {"kind": kind, "batch": batch, "channels": channels, "size": size, "groups": groups}
    settings |= {"affine": affine, "channels_last": channels_last, "training": draw.chance(0.9), "precision": precision}
    return settings, 4.0 * batch * positions * channels, 0.0


def _elementwise(draw: Draw) -> OperatorDraw:
    rows, columns = draw.matrix()
    ops = dict.fromkeys(elements.UNARY, 2) | dict.fromkeys(elements.BINARY, 4) | dict.fromkeys(elements.MASKED, 3)
    op = draw.weighted(ops | {"add": 12, "mul": 10, "gelu": 5, "silu": 5, "relu": 5, "dropout": 6})
    broadcast = "none" if op in elements.UNARY else draw.weighted({"none": 55, "row": 20, "column": 20, "scalar": 5})
    settings = {"op": op, "rows": rows, "columns": columns, "broadcast": broadcast, "precision": draw.precision()}
    return settings, (4.0 if op in elements.UNARY else 6.0) * rows * columns, 0.0


def _cast(draw: Draw) -> OperatorDraw:
    rows, columns = draw.matrix()
    source, target = draw.choice((("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp16"), ("fp16", "fp32")))
    return {"rows": rows, "columns": columns, "source": source, "target": target}, 4.0 * rows * columns, 0.0


def _copy(draw: Draw) -> OperatorDraw:
    op = draw.weighted(dict.fromkeys(elements.MOVES, 5) | {"permute": 40, "cat": 15, "split": 12})
    batch = draw.count(1, 512)
    rows, columns = draw.width(4, 4096), draw.width(4, 4096)
    parts = draw.choice((2, 3, 3, 4, 6))
    settings: Settings = {"op": op, "batch": batch, "rows": rows, "columns": columns}
    settings |= {"order": draw.choice(elements.ORDERS), "parts": parts, "precision": draw.precision()}
    times = parts if op in ("cat", "stack", "split", "repeat") else 4 if op == "shuffle" else 1
    return settings, 4.0 * times * batch * rows * columns, 0.0


def _reduction(draw: Draw) -> OperatorDraw:
    rows, columns = draw.matrix()
    ways = {"rows": (rows, columns, 1), "columns": (1, rows, columns), "all": (1, rows * columns, 1)}
    ways["middle"] = (max(1, rows // 64), min(rows, 64), columns)
    outer, size, inner = ways[draw.weighted({"rows": 40, "columns": 30, "all": 10, "middle": 20})]
    op = draw.weighted({"sum": 30, "mean": 20, "amax": 10, "var": 10, "norm": 10, "logsumexp": 10, "cumsum": 10})
    settings = {"op": op, "outer": outer, "size": max(2, size), "inner": inner, "precision": draw.precision()}
    return settings, 4.0 * outer * size * inner, 0.0


def _softmax(draw: Draw) -> OperatorDraw:
    columns = draw.log(4, 8192) if draw.chance(0.8) else draw.choice((30522, 32000, 50257, 128256))
    rows = draw.count(1, 262144)
    precision = draw.precision()
    settings: Settings = {"rows": rows, "columns": columns, "logarithm": draw.chance(0.3)}
    settings |= {"in_fp32": precision in HALVES and draw.chance(0.3), "precision": precision}
    return settings, 6.0 * rows * columns, 0.0


def _loss(draw: Draw) -> OperatorDraw:
    op = draw.weighted({"cross_entropy": 50, "smoothed": 15, "mse": 10, "l1": 5, "smooth_l1": 5, "bce": 15})
    classes = draw.choice((2, 10, 1000, 1000, 21841, 30522, 32000, 50257, 128256, 151936, 250002))
    rows, pixels = draw.count(1, 32768), 1
    if draw.chance(0.15):
        classes, rows, pixels = draw.choice((19, 21, 150)), draw.count(1, 32), draw.choice((128, 256, 512)) ** 2
    settings = {"op": op, "rows": rows, "classes": classes, "pixels": pixels, "precision": draw.precision()}
    return settings, 6.0 * rows * classes * pixels, 0.0


def _embedding(draw: Draw) -> OperatorDraw:
    rows, width = draw.log(100, 2_000_000), draw.width(8, 4096)
    picks, bag = draw.count(1, 65536), draw.choice((1, 1, 1, 1, 8, 32))
    settings = {"rows": rows, "width": width, "picks": picks, "bag": bag, "precision": draw.precision()}
    return settings, 2.0 * rows * width + 3.0 * picks * width * bag, 0.0


def _indexing(draw: Draw) -> OperatorDraw:
    rows, width, picks = draw.log(16, 500_000), draw.width(1, 4096), draw.count(1, 200_000)
    op = draw.choice(tuple(INDEXED))
    settings = {"op": op, "rows": rows, "width": width, "picks": picks, "precision": draw.precision()}
    return settings, 6.0 * width * (rows + picks), 0.0


def _sorting(draw: Draw) -> OperatorDraw:
    op = draw.weighted({"sort": 30, "topk": 40, "argsort": 15, "argmax": 15})
    rows, columns = draw.count(1, 65536), draw.log(4, 100_000)
    k = min(columns, draw.choice((1, 2, 4, 8, 50, 1000)))
    settings = {"op": op, "rows": rows, "columns": columns, "k": k, "precision": draw.choice(("fp32", "bf16"))}
    return settings, 20.0 * rows * columns, 0.0


def _pooling(draw: Draw) -> OperatorDraw:
    op = draw.weighted({"max": 45, "avg": 25, "adaptive": 30})
    dims = draw.choices((2, 1, 3), (84, 8, 8))[0]
    size = draw.choice((7, 14, 28, 56, 112)) if dims == 2 else draw.log(*((16, 8192) if dims == 1 else (4, 32)))
    kernel = min(size, draw.choice((1, 1, 1, 7) if op == "adaptive" else (2, 3, 3, 3, 5)))
    batch, channels = draw.count(1, 512), draw.width(8, 2048)
    settings: Settings = {"op": op, "dims": dims, "batch": batch, "channels": channels, "size": size, "kernel": kernel}
    settings |= {"stride": draw.choice((1, 2, 2)), "channels_last": dims == 2 and draw.chance(0.35)}
    return settings | {"precision": draw.precision()}, 6.0 * batch * channels * size**dims, 0.0


def _interpolation(draw: Draw) -> OperatorDraw:
    op = draw.weighted({"nearest": 35, "bilinear": 40, "bicubic": 12, "grid": 13})
    size = draw.log(4, 256)
    target = size * 2 if draw.chance(0.5) else draw.log(8, 512)
    batch, channels = draw.count(1, 128), draw.width(1, 1024)
    settings: Settings = {"op": op, "batch": batch, "channels": channels, "size": size, "target": target}
    settings |= {"channels_last": op != "grid" and draw.chance(0.25), "precision": draw.precision()}
    return settings, 6.0 * batch * channels * (size**2 + target**2), 0.0


def _optimizer(draw: Draw) -> OperatorDraw:
    name = draw.choice(_OPTIMIZERS)
    kind = draw.choice(tuple(PARAMETERS))
    width, layers = draw.width(16, 4096), draw.count(1, 64)
    settings: Settings = {"name": name, "kind": kind, "width": width, "layers": layers}
    settings |= {"clip": draw.chance(0.15), "precision": draw.weighted({"fp32": 65, "bf16": 35})}
    shapes = PARAMETERS[kind](width)
    numbers = 4.0 * layers * sum(map(math.prod, shapes))
    launches = 12 * len(shapes) * layers * 5e-6 if name.endswith("-forloop") else 0.0  # one after another from the host
    return settings, numbers, launches * _FLOPS["fp32"]


_DRAWS: Final[Mapping[str, tuple[int, Callable[[Draw], OperatorDraw]]]] = {
    "convolution": (1500, _convolution), "linear": (600, _linear), "matmul": (350, _matmul),
    "grouped_matmul": (180, _grouped_matmul), "attention": (650, _attention), "recurrent": (180, _recurrent),
    "norm": (450, _norm), "elementwise": (420, _elementwise), "cast": (100, _cast), "copy": (300, _copy),
    "reduction": (200, _reduction), "softmax": (130, _softmax), "loss": (150, _loss), "embedding": (130, _embedding),
    "indexing": (220, _indexing), "sorting": (80, _sorting), "pooling": (180, _pooling),
    "interpolation": (100, _interpolation), "optimizer": (240, _optimizer),
}  # fmt: skip
OPERATORS: Final = tuple(_DRAWS)
