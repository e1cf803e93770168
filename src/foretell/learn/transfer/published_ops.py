"""Public measurements of single operators on many devices → tables to learn from, one for each device.

`neusight_ops` are fp32 operators under torch 2.1, timed one after another from Python: what takes little longer than
issuing it says how fast the host was, and is left out. `gemm` are bf16 products, `v100_tensor_parallel_ops` fp16 ones of
GPT. Rows are thinned, as many short as long ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import carried
from foretell.graph import Input, Layout, Signature, Value
from foretell.hardware import Device, recognise
from foretell.hardware import device as known_device
from foretell.learn.dataset import OpTable
from foretell.store.importers import read_public
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FILES: Final = ("neusight_ops", "gemm", "v100_tensor_parallel_ops")
_ISSUED: Final = 2.0  # times the shortest call of an operator on a device: below, the host is what was timed
_SMALLEST_PRODUCT: Final = 16  # rows; thinner ones are decoding, not training
# Rows kept of each operator and device; small operators have little to say for themselves.
_KEPT: Final[Mapping[str, int]] = {"bmm": 700, "linear": 700, "conv": 700, "softmax": 250, "ln": 250, "mm": 1000}
_KEPT_OF_OTHERS: Final = 60
_V100: Final = "v100-32g-sxm"  # the nodes of the source have eight, joined by NVLink


@dataclass(frozen=True, slots=True)
class PublicOp:
    """One operator call and what it took."""

    device: Device
    signature: Signature
    seconds: Seconds


def public_ops(
    folder: Path, own: Device, operators: OperatorModels, progress: Callable[[str], None] = lambda text: None
) -> dict[str, OpTable]:
    """Other device → its ops, from every file of `FILES` in a folder, described as carried there from our own."""
    by_device: dict[str, list[PublicOp]] = defaultdict(list)
    for name in FILES:
        path = next((p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.is_file()), None)
        if path is not None:
            progress(f"reading {path.name}")
            for call in _READERS[name](read_public(path).table):
                if call.device.name != own.name:
                    by_device[call.device.name].append(call)
    progress("describing public operators")
    return {name: _table(those, own, operators) for name, those in sorted(by_device.items())}


def _table(calls: Sequence[PublicOp], own: Device, operators: OperatorModels) -> OpTable:
    size = len(calls)
    signatures = [c.signature for c in calls]
    return OpTable(
        names=[s.name for s in signatures],
        descriptions=carried(signatures, own, operators, calls[0].device, tf32=False),
        seconds=np.array([c.seconds for c in calls]), count=np.ones(size, np.int64), step=np.full(size, -1),
        share=np.zeros(size),
    )  # fmt: skip


def _thinned(table: Any, rows: Ints, seconds: Floats, kind: str) -> list[dict[str, Any]]:
    """As many short as long ones."""
    ordered = rows[np.argsort(seconds[rows], kind="stable")]
    kept = min(_KEPT.get(kind, _KEPT_OF_OTHERS), len(ordered))
    places = np.linspace(0, max(len(ordered) - 1, 0), kept).round().astype(int)
    found: list[dict[str, Any]] = table.take(ordered[places]).to_pylist()
    return found


def _text(table: Any, name: str) -> npt.NDArray[np.str_]:
    return np.asarray(table[name].to_numpy(), dtype=np.str_)


# NeuSight's operators.


def _neusight(table: Any) -> Iterator[PublicOp]:
    names, ops, seconds = _text(table, "device"), _text(table, "op"), table["seconds"].to_numpy()
    devices = {str(name): recognise(str(name)) for name in np.unique(names)}
    for op, build in _SIGNATURES.items():
        mine = ops == op
        shortest: dict[str, float] = {}
        for name, device in devices.items():
            if device is not None and (here := mine & (names == name)).any():
                # Of some cards only large calls were timed: what the host needs is seen on others of their kind.
                least = float(np.quantile(seconds[here], 0.01))
                shortest[device.architecture] = min(least, shortest.get(device.architecture, least))
        for name, device in devices.items():
            if device is not None and device.architecture in shortest:
                rows = np.flatnonzero(mine & (names == name) & (seconds > _ISSUED * shortest[device.architecture]))
                for row in _thinned(table, rows, seconds, op):
                    yield PublicOp(device, build(row), row["seconds"])


Row = Mapping[str, int]


def _rows(shape: Sequence[int], dtype: str = "float32") -> Layout:
    """A row-major tensor."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return Layout(tuple(shape), tuple(strides), dtype)


def _arguments(**values: Value) -> tuple[tuple[str, Value], ...]:
    return tuple(values.items())


def _pointwise(target: str, inputs: int = 1, **more: Value) -> Callable[[Row], Signature]:
    def build(row: Row) -> Signature:
        x = _rows((row["b"], row["h"]))
        return Signature(target, (x,) * inputs, (x,), _arguments(self=Input(0), **more))

    return build


def _softmax(row: Row) -> Signature:
    x = _rows((row["b"], row["h"]))
    return Signature("aten._softmax.default", (x,), (x,), _arguments(self=Input(0), dim=-1, half_to_float=False))


def _layer_norm(row: Row) -> Signature:
    x, weight, sums = _rows((row["b"], row["h"])), _rows((row["h"],)), _rows((row["b"], 1))
    arguments = _arguments(input=Input(0), normalized_shape=(row["h"],), weight=Input(1), bias=Input(2), eps=1e-5)
    return Signature("aten.native_layer_norm.default", (x, weight, weight), (x, sums, sums), arguments)


def _batched(row: Row) -> Signature:
    b, m, n, k = (row[name] for name in "bmnk")
    arguments = _arguments(self=Input(0), mat2=Input(1))
    return Signature("aten.bmm.default", (_rows((b, m, k)), _rows((b, k, n))), (_rows((b, m, n)),), arguments)


def _linear(row: Row) -> Signature:
    m, n, k = row["b"] * row["m"], row["n"], row["k"]
    weight = Layout((k, n), (1, k), "float32")
    arguments = _arguments(self=Input(0), mat1=Input(1), mat2=Input(2))
    return Signature("aten.addmm.default", (_rows((n,)), _rows((m, k)), weight), (_rows((m, n)),), arguments)


def _convolution(row: Row) -> Signature:
    batch, into, onto, kernel = row["b"], row["input_channels"], row["output_channels"], row["kernel_size"]
    size, stride, padding = row["input_size"], row["stride"], row["padding"]
    out = (size + 2 * padding - kernel) // stride + 1
    arguments = _arguments(
        input=Input(0), weight=Input(1), bias=Input(2), stride=(stride, stride), padding=(padding, padding),
        dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1,
    )  # fmt: skip
    inputs = (_rows((batch, into, size, size)), _rows((onto, into, kernel, kernel)), _rows((onto,)))
    return Signature("aten.convolution.default", inputs, (_rows((batch, onto, out, out)),), arguments)


# An operator's name with u takes a number where the other takes a second tensor.
_SIGNATURES: Final[Mapping[str, Callable[[Row], Signature]]] = {
    "add": _pointwise("aten.add.Tensor", 2, other=Input(1)), "addu": _pointwise("aten.add.Tensor", other=1.0),
    "mul": _pointwise("aten.mul.Tensor", 2, other=Input(1)), "mulu": _pointwise("aten.mul.Tensor", other=1.0),
    "div": _pointwise("aten.div.Tensor", 2, other=Input(1)), "divu": _pointwise("aten.div.Tensor", other=1.0),
    "pow": _pointwise("aten.pow.Tensor_Tensor", 2, exponent=Input(1)),
    "powu": _pointwise("aten.pow.Tensor_Scalar", exponent=2.0), "relu": _pointwise("aten.relu.default"),
    "gelu": _pointwise("aten.gelu.default"), "tanh": _pointwise("aten.tanh.default"), "softmax": _softmax,
    "ln": _layer_norm, "bmm": _batched, "linear": _linear, "conv": _convolution,
}  # fmt: skip


# Products.


def product(m: int, n: int, k: int, dtype: str) -> Signature:
    """As `linear` calls it: the second factor is a transposed weight."""
    inputs = (_rows((m, k), dtype), Layout((k, n), (1, k), dtype))
    return Signature("aten.mm.default", inputs, (_rows((m, n), dtype),), _arguments(self=Input(0), mat2=Input(1)))


def _gemm(table: Any) -> Iterator[PublicOp]:
    names, seconds = _text(table, "device"), table["seconds"].to_numpy()
    wide = (_text(table, "dtype") == "bfloat16") & (table["m"].to_numpy() >= _SMALLEST_PRODUCT)
    for name in np.unique(names):
        device = recognise(str(name))
        rows = np.flatnonzero(wide & (names == name))
        if device is not None:
            for row in _thinned(table, rows, seconds, "mm"):
                yield PublicOp(device, product(row["m"], row["n"], row["k"], row["dtype"]), row["seconds"])


# Operator → its weight's width and depth, in widths of the network.
_OF_GPT: Final = {
    "enc-attention-qkv": (3, 1), "enc-attention-dense": (1, 1), "enc-MLP-GEMM-1": (4, 1), "enc-MLP-GEMM-2": (1, 4),
}  # fmt: skip


def _v100(table: Any) -> Iterator[PublicOp]:
    """GPT's four products, unsplit: the width follows from the weights, the tokens from what the first norm reads."""
    groups: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for r in table.to_pylist():
        if r["family"] == "gpt" and r["tp"] == 1 and r["algorithm"] == 0:
            groups[r["size"], r["micro_batch"]][r["op"]] = r
    for ops in groups.values():
        width = round(math.sqrt(ops["enc-attention-dense"]["weight_bytes"] / 2))
        tokens = round(ops["enc-1st-layernorm"]["input_bytes"] / (2 * width))
        for name, (n, k) in _OF_GPT.items():
            signature = product(tokens, n * width, k * width, "float16")
            yield PublicOp(known_device(_V100), signature, ops[name]["forward_seconds"])


_READERS: Final[Mapping[str, Callable[[Any], Iterator[PublicOp]]]] = {
    "neusight_ops": _neusight,
    "gemm": _gemm,
    "v100_tensor_parallel_ops": _v100,
}
