"""Public measurements of single operators → tables to learn from, one for each device.

`neusight_ops` are fp32 operators under torch 2.1, timed one after another from Python: each takes what issuing it takes
beside its kernel (16.9 µs and bytes ÷ 831 GB/s are additions on a V100, to 0.2 %). That is taken off, and calls with little
else are left out; convolutions are too, since some 0.3 ms of what was timed is the choice of an
algorithm. `gemm` are bf16 products, `v100_tensor_parallel_ops` fp16 ones of GPT, timed from Python too: six that differ
fourfold in arithmetic all take 71 to 74 µs. Rows are thinned, as many short as long ones.
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

from foretell.cost.features import describe
from foretell.graph import Input, Layout, Signature, Value
from foretell.hardware import Device, recognise
from foretell.hardware import device as known_device
from foretell.learn.dataset import OpTable
from foretell.store.importers import public_file, read_public
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Progress = Callable[[str], None]
Call = tuple[Device, Signature, Seconds]
_ISSUED: Final = 2.0  # times the shortest call of an operator on a device: below, the host is what was timed
_AROUND_KERNEL: Final = 0.6  # of the shortest call: what each takes beside its kernel
_SMALLEST_PRODUCT: Final = 16  # rows; thinner ones are decoding, not training
_OWN_PRODUCTS: Final = 12_000  # of our own device: more teach nothing new
# Rows kept of each operator and device; small operators have little to say for themselves.
_KEPT: Final[Mapping[str, int]] = {"bmm": 700, "linear": 700, "softmax": 250, "ln": 250, "mm": 1000}
_KEPT_OF_OTHERS: Final = 60
_V100: Final = "v100-32g-sxm"  # the nodes of the source have eight, joined by NVLink


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicOps:
    """Ops that others measured on one device."""

    device: Device
    signatures: Sequence[Signature]
    seconds: Floats


def public_ops(folder: Path, own: Device, progress: Progress = lambda text: None) -> dict[str, PublicOps]:
    """Device other than our own → its ops, from every file of `FILES` in a folder."""
    by_device: dict[str, list[Call]] = defaultdict(list)
    for name, calls_of in FILES.items():
        if (path := public_file(folder, name)) is not None:
            progress(f"reading {path.name}")
            for call in calls_of(read_public(path).table):
                if call[0].name != own.name:
                    by_device[call[0].name].append(call)
    return {
        name: PublicOps(
            device=calls[0][0],
            signatures=[signature for _, signature, _ in calls],
            seconds=np.array([seconds for _, _, seconds in calls]),
        )
        for name, calls in sorted(by_device.items())
    }


def own_products(file: Path, own: Device, progress: Progress = lambda text: None) -> dict[str, OpTable]:
    """Products of this very device in a public file, by who measured them."""
    progress(f"reading {file}")
    table = read_public(file).table
    rows = [row for name, rows in _training_products(table) if _is(own, name) for row in rows.tolist()]
    if not rows:
        return {}
    thinned = table.take(sorted(rows)[:: max(1, len(rows) // _OWN_PRODUCTS)]).to_pylist()
    signatures = [product(r["m"], r["n"], r["k"], r["dtype"]) for r in thinned]
    descriptions = [describe(s, own, tf32=False) for s in signatures]
    return {
        str(thinned[0]["source"]): OpTable.alone(signatures, descriptions, np.array([r["seconds"] for r in thinned]))
    }


def _is(own: Device, name: str) -> bool:
    found = recognise(name)
    return found is not None and found.name == own.name


def _text(table: Any, name: str) -> npt.NDArray[np.str_]:
    return np.asarray(table[name].to_numpy(), dtype=np.str_)


def _thinned(table: Any, rows: Ints, kind: str) -> list[dict[str, Any]]:
    """As many short as long ones."""
    ordered = rows[np.argsort(table["seconds"].to_numpy()[rows], kind="stable")]
    kept = min(_KEPT.get(kind, _KEPT_OF_OTHERS), len(ordered))
    places = np.linspace(0, max(len(ordered) - 1, 0), kept).round().astype(int)
    found: list[dict[str, Any]] = table.take(ordered[places]).to_pylist()
    return found


# Operators of NeuSight.


def _neusight(table: Any) -> Iterator[Call]:
    names, ops, seconds = _text(table, "device"), _text(table, "op"), table["seconds"].to_numpy()
    devices = {str(name): found for name in np.unique(names) if (found := recognise(str(name))) is not None}
    for op, signature_of in _SIGNATURES.items():
        rows_of = {name: rows for name in devices if len(rows := np.flatnonzero((ops == op) & (names == name)))}
        # Of some cards only large calls were timed: what the host needs is seen on others of their kind.
        shortest: dict[str, float] = {}
        for name, rows in rows_of.items():
            kind, least = devices[name].architecture, float(np.quantile(seconds[rows], 0.01))
            shortest[kind] = min(least, shortest.get(kind, least))
        for name, rows in rows_of.items():
            least = shortest[devices[name].architecture]
            for row in _thinned(table, rows[seconds[rows] > _ISSUED * least], op):
                yield devices[name], signature_of(row), row["seconds"] - _AROUND_KERNEL * least


Row = Mapping[str, int]


def _rows(shape: Sequence[int], dtype: str = "float32") -> Layout:
    return Layout.contiguous(shape, dtype)


def _call(target: str, inputs: Sequence[Layout], outputs: Sequence[Layout], names: str, **more: Value) -> Signature:
    """Its inputs by name, in order, and what else it is given."""
    arguments = {name: Input(i) for i, name in enumerate(names.split())} | more
    return Signature(f"aten.{target}", tuple(inputs), tuple(outputs), tuple(arguments.items()))


def _pointwise(target: str, inputs: str = "self", **more: Value) -> Callable[[Row], Signature]:
    def build(row: Row) -> Signature:
        x = _rows((row["b"], row["h"]))
        return _call(target, (x,) * len(inputs.split()), (x,), inputs, **more)

    return build


def _layer_norm(row: Row) -> Signature:
    x, weight, sums = _rows((row["b"], row["h"])), _rows((row["h"],)), _rows((row["b"], 1))
    more: dict[str, Value] = {"normalized_shape": (row["h"],), "eps": 1e-5}
    return _call("native_layer_norm.default", (x, weight, weight), (x, sums, sums), "input weight bias", **more)


def _batched(row: Row) -> Signature:
    b, m, n, k = (row[name] for name in "bmnk")
    return _call("bmm.default", (_rows((b, m, k)), _rows((b, k, n))), (_rows((b, m, n)),), "self mat2")


def _linear(row: Row) -> Signature:
    m, n, k = row["b"] * row["m"], row["n"], row["k"]
    inputs = (_rows((n,)), _rows((m, k)), Layout((k, n), (1, k), "float32"))
    return _call("addmm.default", inputs, (_rows((m, n)),), "self mat1 mat2")


# An operator's name with u takes a number where the other takes a second tensor.
_SIGNATURES: Final[Mapping[str, Callable[[Row], Signature]]] = {
    "add": _pointwise("add.Tensor", "self other"), "addu": _pointwise("add.Tensor", other=1.0),
    "mul": _pointwise("mul.Tensor", "self other"), "mulu": _pointwise("mul.Tensor", other=1.0),
    "div": _pointwise("div.Tensor", "self other"), "divu": _pointwise("div.Tensor", other=1.0),
    "pow": _pointwise("pow.Tensor_Tensor", "self exponent"), "powu": _pointwise("pow.Tensor_Scalar", exponent=2.0),
    "relu": _pointwise("relu.default"), "gelu": _pointwise("gelu.default"), "tanh": _pointwise("tanh.default"),
    "softmax": _pointwise("_softmax.default", dim=-1, half_to_float=False),
    "ln": _layer_norm, "bmm": _batched, "linear": _linear,
}  # fmt: skip


# Products.


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> Signature:
    """As `linear` calls it: the second factor is a transposed weight."""
    inputs = (_rows((m, k), dtype), Layout((k, n), (1, k), dtype))
    return _call("mm.default", inputs, (_rows((m, n), dtype),), "self mat2")


def _training_products(table: Any) -> Iterator[tuple[str, Ints]]:
    """Device as the file names it → rows of its products as training has them."""
    names = _text(table, "device")
    wide = (_text(table, "dtype") == "bfloat16") & (table["m"].to_numpy() >= _SMALLEST_PRODUCT)
    for name in np.unique(names):
        yield str(name), np.flatnonzero(wide & (names == name))


def _gemm(table: Any) -> Iterator[Call]:
    for name, rows in _training_products(table):
        if (device := recognise(name)) is not None:
            for row in _thinned(table, rows, "mm"):
                yield device, product(row["m"], row["n"], row["k"], row["dtype"]), row["seconds"]


# Operator → its weight's width and depth, in widths of the network. The product for queries, keys and values is none of them:
# it was timed with the copy that parts them.
_OF_GPT: Final = {"enc-attention-dense": (1, 1), "enc-MLP-GEMM-1": (4, 1), "enc-MLP-GEMM-2": (1, 4)}


def _v100(table: Any) -> Iterator[Call]:
    """GPT's products, unsplit: the width follows from the weights, the tokens from what the first norm reads."""
    groups: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for r in table.to_pylist():
        if r["family"] == "gpt" and r["tp"] == 1 and r["algorithm"] == 0:
            groups[r["size"], r["micro_batch"]][r["op"]] = r
    least = min((ops[name]["forward_seconds"] for ops in groups.values() for name in _OF_GPT), default=0.0)
    for ops in groups.values():
        width = round(math.sqrt(ops["enc-attention-dense"]["weight_bytes"] / 2))
        tokens = round(ops["enc-1st-layernorm"]["input_bytes"] / (2 * width))
        for name, (n, k) in _OF_GPT.items():
            if (seconds := ops[name]["forward_seconds"]) > _ISSUED * least:
                signature = product(tokens, n * width, k * width, "float16")
                yield known_device(_V100), signature, seconds - _AROUND_KERNEL * least


FILES: Final[Mapping[str, Callable[[Any], Iterator[Call]]]] = {
    "neusight_ops": _neusight,
    "gemm": _gemm,
    "v100_tensor_parallel_ops": _v100,
}
