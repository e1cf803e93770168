"""The graph file: a zip of one JSON header and one .npy column per field, checked as it is read.

Version 2 adds which gradient belongs to which parameter. A graph that does not know is written as version 1.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.errors import GraphFileError
from foretell.graph.types import ITEM_BYTES, PHASES, ROLES, Caveat, Input, Layout, Op, Signature, Storage, Tensor, Value
from foretell.units import MIB

if TYPE_CHECKING:
    from foretell.graph.graph import Graph

FORMAT: Final = "foretell-graph"
VERSION: Final = 2
MAX_FILE_BYTES: Final = 512 * MIB
_COLUMNS: Final = ("op_signature", "op_phase", "op_module", "op_times", "op_inputs", "op_input_ends", "op_outputs",
                   "op_output_ends", "tensor_layout", "tensor_storage", "tensor_offset", "storage_nbytes",
                   "storage_role", "storage_born", "storage_freed")  # fmt: skip
_PAIRS: Final = ("gradient_parameter", "gradient_storage")  # since version 2
_SIGNED: Final = ("storage_born", "tensor_offset")


class _Interned(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def members(graph: Graph) -> Iterator[tuple[str, bytes]]:
    """The files inside the archive, by name."""
    layouts, signatures, modules = _Interned(), _Interned(), _Interned()
    ops = graph.ops
    columns: dict[str, Iterable[int]] = {
        "op_signature": [signatures[op.signature] for op in ops],
        "op_phase": [PHASES.index(op.phase) for op in ops],
        "op_module": [modules[op.module] for op in ops],
        "op_times": [op.times for op in ops],
        "op_inputs": [i for op in ops for i in op.inputs],
        "op_input_ends": np.cumsum([len(op.inputs) for op in ops], dtype=np.int64),
        "op_outputs": [i for op in ops for i in op.outputs],
        "op_output_ends": np.cumsum([len(op.outputs) for op in ops], dtype=np.int64),
        "tensor_layout": [layouts[t.layout] for t in graph.tensors],
        "tensor_storage": [t.storage for t in graph.tensors],
        "tensor_offset": [t.offset for t in graph.tensors],
        "storage_nbytes": [s.nbytes for s in graph.storages],
        "storage_role": [ROLES.index(s.role) for s in graph.storages],
        "storage_born": [s.born for s in graph.storages],
        "storage_freed": [s.freed for s in graph.storages],
    }
    if graph.gradients is not None:
        columns |= dict(zip(_PAIRS, (list(graph.gradients), list(graph.gradients.values())), strict=True))
    signature_rows = [
        [s.target, [layouts[x] for x in s.inputs], [layouts[x] for x in s.outputs],
         [[name, _encode(value)] for name, value in s.arguments], list(s.mutates)]
        for s in signatures
    ]  # fmt: skip
    header = {
        "format": FORMAT, "version": 1 if graph.gradients is None else VERSION, "name": graph.name,
        "training": graph.training, "precision": graph.precision, "grad_accumulation": graph.grad_accumulation,
        "samples": graph.samples, "tokens": graph.tokens,
        "caveats": [[c.code, c.text, c.share] for c in graph.caveats], "provenance": dict(graph.provenance),
        "modules": list(modules), "layouts": [[x.shape, x.strides, x.dtype] for x in layouts],
        "signatures": signature_rows,
    }  # fmt: skip
    yield "header.json", json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    for name, column in columns.items():
        # Differences compress far better than the rising numbers themselves, and lose nothing.
        buffer = io.BytesIO()
        differences = np.diff(np.asarray(column, dtype=np.int64), prepend=0)
        np.lib.format.write_array(buffer, differences, allow_pickle=False)
        yield f"{name}.npy", buffer.getvalue()


def archive(graph: Graph, *, packed: bool) -> bytes:
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=9) as whole:
        for name, data in members(graph):
            whole.writestr(zipfile.ZipInfo(name), data, method)
    return buffer.getvalue()


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(file: str | os.PathLike[str] | io.BytesIO, name: str) -> dict[str, Any]:
    """The fields of the graph that a file holds; whatever is wrong with it is a GraphFileError."""
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(info.file_size for info in archive.infolist()) > MAX_FILE_BYTES:
                raise GraphFileError(
                    f"{name} unpacks to more than {MAX_FILE_BYTES // MIB} MiB. It is not a graph we made."
                )
            parts = {info.filename: archive.read(info) for info in archive.infolist()}
        header = json.loads(parts["header.json"])
        _check_format(header, name)
        return _fields(header, parts)
    except FileNotFoundError:
        raise GraphFileError(
            f"there is no graph file {name}. Capture one with: foretell inspect SOURCE --save {name}"
        ) from None
    except GraphFileError:
        raise
    except Exception as error:  # whatever a stranger's bytes break in zip, JSON or NumPy, the file is to blame
        raise GraphFileError(
            f"{name} is not a whole Foretell graph file ({type(error).__name__}: {error}). "
            "Capture the workload again to replace it."
        ) from error


def _check_format(header: Any, name: str) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise GraphFileError(
            f"{name} is a zip file, but not a Foretell graph. Capture one with: foretell inspect SOURCE --save FILE"
        )
    if header["version"] > VERSION:
        raise GraphFileError(
            f"{name} has graph format {header['version']}, this Foretell reads up to {VERSION}. "
            "Upgrade with: pip install -U foretell"
        )


def _fields(header: dict[str, Any], parts: Mapping[str, bytes]) -> dict[str, Any]:
    has_pairs = header["version"] >= 2
    columns = {name: _column(parts, name) for name in (*_COLUMNS, *(_PAIRS if has_pairs else ()))}
    layouts = [_layout(*row) for row in header["layouts"]]
    signatures = [
        Signature(str(target), tuple(_picked(layouts, inputs)), tuple(_picked(layouts, outputs)),
                  tuple((str(k), _decode(v)) for k, v in arguments), _ints(mutates))
        for target, inputs, outputs, arguments, mutates in header["signatures"]
    ]  # fmt: skip
    tensors, storages = len(columns["tensor_layout"]), len(columns["storage_nbytes"])
    limits = {"tensor_storage": storages, "op_inputs": tensors, "op_outputs": tensors} | dict.fromkeys(_PAIRS, storages)
    for name, limit in limits.items():
        if max(columns.get(name, ()), default=-1) >= limit:
            raise ValueError(f"{name} points outside its table of {limit}")

    def rows(*names: str) -> Iterator[tuple[int, ...]]:
        return zip(*(columns[name] for name in names), strict=True)

    ops = zip(
        rows("op_signature", "op_phase", "op_module", "op_times"),
        _slices(columns["op_inputs"], columns["op_input_ends"]),
        _slices(columns["op_outputs"], columns["op_output_ends"]),
        strict=True,
    )
    modules = [str(m) for m in header["modules"]]
    return {
        "ops": tuple(
            Op(signatures[signature], PHASES[phase], modules[module], inputs, outputs, times)
            for (signature, phase, module, times), inputs, outputs in ops
        ),
        "tensors": tuple(
            Tensor(layouts[layout], storage, offset)
            for layout, storage, offset in rows("tensor_layout", "tensor_storage", "tensor_offset")
        ),
        "storages": tuple(
            Storage(nbytes, ROLES[role], born, freed)
            for nbytes, role, born, freed in rows("storage_nbytes", "storage_role", "storage_born", "storage_freed")
        ),
        "gradients": dict(zip(*(columns[name] for name in _PAIRS), strict=True)) if has_pairs else None,
        "name": str(header["name"]),
        "training": bool(header["training"]),
        "precision": str(header["precision"]),
        "grad_accumulation": int(header["grad_accumulation"]),
        "samples": header["samples"],
        "tokens": header["tokens"],
        "caveats": tuple(Caveat(*c) for c in header["caveats"]),
        "provenance": dict(header["provenance"]),
    }


def _column(parts: Mapping[str, bytes], name: str) -> list[int]:
    column = np.lib.format.read_array(io.BytesIO(parts[f"{name}.npy"]), allow_pickle=False)
    if column.dtype != np.int64 or column.ndim != 1:
        raise ValueError(f"column {name} is {column.dtype}, not int64")
    values: list[int] = np.cumsum(column).tolist()
    if name not in _SIGNED and min(values, default=0) < 0:
        raise ValueError(f"column {name} holds a negative number")
    return values


def _layout(shape: Any, strides: Any, dtype: Any) -> Layout:
    if str(dtype) not in ITEM_BYTES:
        raise ValueError(f"unknown dtype {dtype}")
    layout = Layout(_ints(shape), _ints(strides), str(dtype))
    if len(layout.shape) != len(layout.strides) or min(layout.shape, default=0) < 0:
        raise ValueError("a layout's shape and strides disagree")
    return layout


def _picked(table: Sequence[Layout], indices: Iterable[int]) -> Iterator[Layout]:
    for i in indices:
        if i < 0:
            raise ValueError("a signature points outside the table of layouts")
        yield table[i]


def _slices(flat: list[int], ends: list[int]) -> list[tuple[int, ...]]:
    if ends and ends[-1] != len(flat):
        raise ValueError("op columns are cut short")
    return [tuple(flat[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


def _encode(value: Value) -> Any:
    if isinstance(value, Input):
        return {"input": value.index}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Value:
    if isinstance(value, dict):
        return Input(int(value["input"])) if "input" in value else float(value["float"])
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"an argument of type {type(value).__name__}")


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)
