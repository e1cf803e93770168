"""What one step runs: ops in order, the tensors they read and write, the storages those live in.

A graph is kept as interned parts. A `Layout` is a tensor's shape, strides and dtype; a `Signature` is an
operator with the layouts and arguments it is called with, so the repeated layers of a model share their
signatures and are priced once; an `Op` is one call, placed in a phase and a module. Storages carry their
lifetime, as positions in the op order, which is all the memory replay needs.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from foretell.errors import GraphFileError
from foretell.units import MIB, Bytes

FORMAT: Final = "foretell-graph"
VERSION: Final = 1
PHASES: Final = ("forward", "backward", "optimizer")
ROLES: Final = ("parameter", "gradient", "optimizer", "activation", "input", "temporary", "host")
MAX_FILE_BYTES: Final = 512 * MIB

ITEM_BYTES: Final[Mapping[str, int]] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip
_DTYPE_NUMBERS: Final = {name: number for number, name in enumerate(ITEM_BYTES)}
_COUNTED: Final = ("numel", "nbytes", "distinct_bytes", "hashed")


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides (in elements) and dtype of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    # A few layouts are asked for these many thousand times.
    numel: int = field(init=False, compare=False, repr=False)
    nbytes: Bytes = field(init=False, compare=False, repr=False)
    distinct_bytes: Bytes = field(init=False, compare=False, repr=False)  # a broadcast side (stride 0) is stored once
    hashed: int = field(init=False, compare=False, repr=False)  # of numbers alone, so that it travels between processes

    def __hash__(self) -> int:
        return self.hashed

    def __post_init__(self) -> None:
        numel, item = math.prod(self.shape), ITEM_BYTES[self.dtype]
        stored = numel
        if numel and 0 in self.strides:
            stored = math.prod([size for size, stride in zip(self.shape, self.strides, strict=True) if stride])
        hashed = hash((self.shape, self.strides, _DTYPE_NUMBERS[self.dtype]))
        for name, value in zip(_COUNTED, (numel, numel * item, stored * item, hashed), strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Input:
    """Stands in a signature's arguments for the op's i-th input tensor."""

    index: int


Value = None | bool | int | float | str | Input | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator with everything its cost depends on; equal signatures cost the same."""

    target: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    arguments: tuple[tuple[str, Value], ...] = ()
    mutates: tuple[int, ...] = ()  # inputs written in place
    name: str = field(init=False, compare=False, repr=False)  # `aten.convolution` for `aten.convolution.default`
    hashed: int = field(init=False, compare=False, repr=False)  # as a layout's; arguments seldom tell two apart

    def __hash__(self) -> int:
        return self.hashed

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.target.rsplit(".", 1)[0])
        object.__setattr__(self, "hashed", hash((crc32(self.target.encode()), self.inputs, self.outputs, self.mutates)))

    def argument(self, name: str, default: Value = None) -> Value:
        return next((value for key, value in self.arguments if key == name), default)

    def tensor(self, name: str) -> Layout | None:
        """The layout of a tensor argument by its name in the operator's schema, or None where it is not given."""
        value = self.argument(name)
        return self.inputs[value.index] if isinstance(value, Input) else None

    def tensors(self, name: str) -> tuple[Layout, ...]:
        value = self.argument(name)
        items = value if isinstance(value, tuple) else (value,)
        return tuple(self.inputs[item.index] for item in items if isinstance(item, Input))


@dataclass(frozen=True, slots=True)
class Tensor:
    layout: Layout
    storage: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory with one lifetime: allocated by op `born` (-1: before the step), released once op `freed` is done."""

    nbytes: Bytes
    role: str
    born: int
    freed: int  # len(ops) when it outlives the step


@dataclass(frozen=True, slots=True)
class Op:
    signature: Signature
    phase: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    times: int = 1  # runs of this op in a step: repeated micro-steps are recorded once

    @property
    def target(self) -> str:
        return self.signature.target


@dataclass(frozen=True, slots=True)
class Caveat:
    """Something the reader should know about an answer; `share` is the part of the step it touches."""

    code: str
    text: str
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One steady-state step, as it was captured."""

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    storages: tuple[Storage, ...]
    training: bool = True
    precision: str = "fp32"
    grad_accumulation: int = 1
    samples: int | None = None
    tokens: int | None = None
    caveats: tuple[Caveat, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def content_hash(self) -> str:
        digest = hashlib.sha256()
        for name, data in _members(self):
            digest.update(f"{name}:{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The distinct signatures, in order of first use."""
        return tuple(dict.fromkeys(op.signature for op in self.ops))

    def bytes_of(self, role: str) -> Bytes:
        return sum(s.nbytes for s in self.storages if s.role == role)

    def to_bytes(self, *, packed: bool = True) -> bytes:
        """The graph as a file holds it. Where many are kept together, unpacked ones compress better as a whole."""
        method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method, compresslevel=9) as archive:
            for name, data in _members(self):
                archive.writestr(zipfile.ZipInfo(name), data, method)
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph whole or not at all: a reader never sees half a file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.to_bytes()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the graph") -> Graph:
        """Read what `to_bytes` gave; `name` is what messages call it."""
        return cls._read(io.BytesIO(data), name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Graph:
        """Read a graph file, from a stranger too: no code runs, and every index is checked."""
        return cls._read(path, str(path))

    @classmethod
    def _read(cls, file: str | os.PathLike[str] | io.BytesIO, path: str) -> Graph:
        try:
            with zipfile.ZipFile(file) as archive:
                if sum(info.file_size for info in archive.infolist()) > MAX_FILE_BYTES:
                    raise GraphFileError(
                        f"{path} unpacks to more than {MAX_FILE_BYTES // MIB} MiB. It is not a graph we made."
                    )
                parts = {info.filename: archive.read(info) for info in archive.infolist()}
            return _from_members(parts, path)
        except FileNotFoundError:
            raise GraphFileError(
                f"there is no graph file {path}. Capture one with: foretell inspect SOURCE --save {path}"
            ) from None
        except GraphFileError:
            raise
        except Exception as error:  # whatever a stranger's bytes break in zip, JSON or NumPy, the file is to blame
            raise GraphFileError(
                f"{path} is not a whole Foretell graph file ({type(error).__name__}: {error}). "
                "Capture the workload again to replace it."
            ) from error


# The file: a zip of one JSON header and one .npy column per field.

_COLUMNS: Final = ("op_signature", "op_phase", "op_module", "op_times", "op_inputs", "op_input_ends", "op_outputs",
                   "op_output_ends", "tensor_layout", "tensor_storage", "tensor_offset", "storage_nbytes",
                   "storage_role", "storage_born", "storage_freed")  # fmt: skip


class _Interned(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def _members(graph: Graph) -> Iterable[tuple[str, bytes]]:
    layouts, signatures, modules = _Interned(), _Interned(), _Interned()
    ops = graph.ops
    columns: dict[str, list[int]] = {
        "op_signature": [signatures[op.signature] for op in ops],
        "op_phase": [PHASES.index(op.phase) for op in ops],
        "op_module": [modules[op.module] for op in ops],
        "op_times": [op.times for op in ops],
        "op_inputs": [i for op in ops for i in op.inputs],
        "op_input_ends": np.cumsum([len(op.inputs) for op in ops], dtype=np.int64).tolist(),
        "op_outputs": [i for op in ops for i in op.outputs],
        "op_output_ends": np.cumsum([len(op.outputs) for op in ops], dtype=np.int64).tolist(),
        "tensor_layout": [layouts[t.layout] for t in graph.tensors],
        "tensor_storage": [t.storage for t in graph.tensors],
        "tensor_offset": [t.offset for t in graph.tensors],
        "storage_nbytes": [s.nbytes for s in graph.storages],
        "storage_role": [ROLES.index(s.role) for s in graph.storages],
        "storage_born": [s.born for s in graph.storages],
        "storage_freed": [s.freed for s in graph.storages],
    }
    signature_rows = [
        [s.target, [layouts[x] for x in s.inputs], [layouts[x] for x in s.outputs],
         [[name, _encode(value)] for name, value in s.arguments], list(s.mutates)]
        for s in signatures
    ]  # fmt: skip
    header = {
        "format": FORMAT, "version": VERSION, "name": graph.name, "training": graph.training,
        "precision": graph.precision, "grad_accumulation": graph.grad_accumulation,
        "samples": graph.samples, "tokens": graph.tokens,
        "caveats": [[c.code, c.text, c.share] for c in graph.caveats], "provenance": dict(graph.provenance),
        "modules": list(modules), "layouts": [[x.shape, x.strides, x.dtype] for x in layouts],
        "signatures": signature_rows,
    }  # fmt: skip
    yield "header.json", json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    for name in _COLUMNS:
        yield f"{name}.npy", _npy(np.array(columns[name], dtype=np.int64))


def _npy(column: npt.NDArray[np.int64]) -> bytes:
    # Differences compress far better than the rising numbers themselves, and lose nothing.
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.diff(column, prepend=0), allow_pickle=False)
    return buffer.getvalue()


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


def _from_members(parts: Mapping[str, bytes], path: str) -> Graph:
    header = json.loads(parts["header.json"])
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise GraphFileError(
            f"{path} is a zip file, but not a Foretell graph. Capture one with: foretell inspect SOURCE --save FILE"
        )
    if header["version"] > VERSION:
        raise GraphFileError(
            f"{path} has graph format {header['version']}, this Foretell reads up to {VERSION}. Upgrade with: pip install -U foretell"
        )
    columns = {name: _column(parts, name) for name in _COLUMNS}
    layouts = [Layout(_ints(shape), _ints(strides), str(dtype)) for shape, strides, dtype in header["layouts"]]
    if unknown := {x.dtype for x in layouts} - set(ITEM_BYTES):
        raise ValueError(f"unknown dtype {sorted(unknown)}")
    if any(len(x.shape) != len(x.strides) or min(x.shape, default=0) < 0 for x in layouts):
        raise ValueError("a layout's shape and strides disagree")
    pick = _picker
    signatures = [
        Signature(
            str(target), pick(layouts, inputs), pick(layouts, outputs),
            tuple((str(k), _decode(v)) for k, v in arguments), _ints(mutates),
        )
        for target, inputs, outputs, arguments, mutates in header["signatures"]
    ]  # fmt: skip
    storages = tuple(
        Storage(nbytes, ROLES[role], born, freed)
        for nbytes, role, born, freed in zip(
            *(columns[f"storage_{c}"] for c in ("nbytes", "role", "born", "freed")), strict=True
        )
    )
    tensors = tuple(
        Tensor(layouts[layout], storage, offset)
        for layout, storage, offset in zip(
            *(columns[f"tensor_{c}"] for c in ("layout", "storage", "offset")), strict=True
        )
    )
    _check_range("tensor_storage", columns["tensor_storage"], len(storages))
    _check_range("op_inputs", columns["op_inputs"], len(tensors))
    _check_range("op_outputs", columns["op_outputs"], len(tensors))
    inputs = _slices(columns["op_inputs"], columns["op_input_ends"])
    outputs = _slices(columns["op_outputs"], columns["op_output_ends"])
    modules = [str(m) for m in header["modules"]]
    ops = tuple(
        Op(signatures[signature], PHASES[phase], modules[module], ins, outs, times)
        for signature, phase, module, times, ins, outs in zip(
            columns["op_signature"],
            columns["op_phase"],
            columns["op_module"],
            columns["op_times"],
            inputs,
            outputs,
            strict=True,
        )
    )
    return Graph(
        name=str(header["name"]), ops=ops, tensors=tensors, storages=storages, training=bool(header["training"]),
        precision=str(header["precision"]), grad_accumulation=int(header["grad_accumulation"]),
        samples=header["samples"], tokens=header["tokens"],
        caveats=tuple(Caveat(*c) for c in header["caveats"]), provenance=dict(header["provenance"]),
    )  # fmt: skip


def _column(parts: Mapping[str, bytes], name: str) -> list[int]:
    column = np.lib.format.read_array(io.BytesIO(parts[f"{name}.npy"]), allow_pickle=False)
    if column.dtype != np.int64 or column.ndim != 1:
        raise ValueError(f"column {name} is {column.dtype}, not int64")
    values: list[int] = np.cumsum(column).tolist()
    if name not in ("storage_born", "tensor_offset") and min(values, default=0) < 0:
        raise ValueError(f"column {name} holds a negative number")
    return values


def _picker(table: list[Layout], indices: list[int]) -> tuple[Layout, ...]:
    _check_range("signature", indices, len(table))
    return tuple(table[i] for i in indices)


def _slices(flat: list[int], ends: list[int]) -> list[tuple[int, ...]]:
    if ends and ends[-1] != len(flat):
        raise ValueError("op columns are cut short")
    return [tuple(flat[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


def _check_range(name: str, indices: Iterable[int], size: int) -> None:
    if any(not 0 <= i < size for i in indices):
        raise ValueError(f"{name} points outside its table of {size}")


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)
