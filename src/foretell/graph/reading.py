"""Reads a graph file that anybody may have written: what comes out is a graph that everything else can trust.

Sizes are checked before anything is unpacked, counts before objects are made. Then every index is inside its table, every
tensor inside its storage, every storage alive when an op uses it, and every op called as its operator can be.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from foretell.errors import GraphFileError
from foretell.graph.facts import StepFacts
from foretell.graph.file import FORMAT, HEADER, PAIRS, VERSION
from foretell.graph.signatures import check_signature
from foretell.graph.types import (
    ITEM_BYTES,
    PHASES,
    ROLES,
    Caveat,
    Input,
    Layout,
    Op,
    Signature,
    Storage,
    Tensor,
    Value,
)  # fmt: skip
from foretell.limits import check_limit, limit, parse_json, read_bytes
from foretell.precision import PRECISIONS, Precision

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Columns = Mapping[str, Ints]
_OPS: Final = ("op_signature", "op_phase", "op_module", "op_times", "op_input_ends", "op_output_ends")
_TENSORS: Final = ("tensor_layout", "tensor_storage", "tensor_offset")
_STORAGES: Final = ("storage_nbytes", "storage_role", "storage_born", "storage_freed")
_COLUMNS: Final = (*_OPS, "op_inputs", "op_outputs", *_TENSORS, *_STORAGES)
_MEMBERS: Final = frozenset((HEADER, *(f"{name}.npy" for name in (*_COLUMNS, *PAIRS))))
_MAX_MEMBERS: Final = 32
_MAX_SIDES: Final = 64  # as torch has
_MAX_NESTED: Final = 6  # lists in an argument
_LARGEST: Final = 2**50  # any size, in elements or bytes: products of a few stay far from what a float can be
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NPY: Final = re.compile(
    rb"\x93NUMPY\x01\x00(..){'descr': '<i8', 'fortran_order': False, 'shape': \((\d{1,9}),\), } *\n", re.DOTALL
)
_END: Final = struct.Struct("<4s4xHHII2x")  # of a zip file: signature, entries here, entries in all, directory's bytes


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of the graph in a file; whatever is wrong with it is a GraphFileError."""
    try:
        return read(read_bytes(path, "bytes of a graph file"), str(path))
    except FileNotFoundError:
        raise GraphFileError(
            f"there is no graph file {path}. Capture one with: foretell inspect SOURCE --save {path}"
        ) from None
    except (OSError, ValueError) as error:
        raise _broken(str(path), error) from None


def read(data: bytes, name: str) -> dict[str, Any]:
    try:
        parts = _unpack(data)
        header = parse_json(parts[HEADER])
        _check_format(header, name)
        pairs = PAIRS if header["version"] in (2, 3) or f"{PAIRS[0]}.npy" in parts else ()
        return _fields(header, {n: _column(parts, n) for n in (*_COLUMNS, *pairs)})
    except GraphFileError:
        raise
    except Exception as error:  # whatever a stranger's bytes break in zip, JSON or NumPy, the file is to blame
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> GraphFileError:
    what = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
    return GraphFileError(
        f"{name} is not a whole Foretell graph file ({what[:400]}). Capture the workload again to replace it."
    )


def _check_format(header: Any, name: str) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise GraphFileError(
            f"{name} is a zip file, but not a Foretell graph. Capture one with: foretell inspect SOURCE --save FILE"
        )
    version = _whole(header["version"], "version", 1, _LARGEST)
    if version > VERSION:
        raise GraphFileError(
            f"{name} has graph format {version}, this Foretell reads up to {VERSION}. "
            "Upgrade with: pip install -U foretell"
        )


def _unpack(data: bytes) -> dict[str, bytes]:
    """The archive's members. It ends in its own directory's size, which is looked at before the directory is."""
    check_limit("bytes of a graph file", len(data))
    if len(data) < _END.size:
        raise ValueError("it is cut short")
    mark, here, entries, directory = _END.unpack(data[-_END.size :])[:4]
    if mark != b"PK\5\6" or here != entries or data[-42:-38] == b"PK\6\7":
        raise ValueError("it is no zip file, or cut short")
    if entries > _MAX_MEMBERS or directory > 2**16:
        raise ValueError(f"{entries} files inside, not at most {_MAX_MEMBERS}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        check_limit("bytes of a graph file, unpacked", sum(max(info.file_size, 0) for info in members))
        return {info.filename: _member(archive, info) for info in members if info.filename in _MEMBERS}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.compress_type not in _METHODS:
        raise ValueError(f"{info.filename} is packed by method {info.compress_type}")
    with archive.open(info) as file:  # to what the directory says, lest a member unpacks to more
        data = file.read(info.file_size)
    if len(data) != info.file_size:
        raise ValueError(f"{info.filename} is cut short")
    return data


def _column(parts: Mapping[str, bytes], name: str) -> Ints:
    """The running sum of a .npy file, whose head must be as we write it."""
    data = parts[f"{name}.npy"]
    head = _NPY.match(data)
    if (
        head is None
        or head.end() != 10 + int.from_bytes(head[1], "little")
        or len(data) - head.end() != 8 * int(head[2])
    ):
        raise ValueError(f"column {name} is no list of int64 with all its bytes")
    return np.frombuffer(data, np.int64, offset=head.end()).cumsum()


def _fields(header: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    _check_counts(columns)
    layouts = [_layout(row) for row in _list(header["layouts"], "layouts")]
    if len(set(layouts)) != len(layouts):
        raise ValueError("layouts are listed twice")
    rows = [_signature_row(row, len(layouts)) for row in _list(header["signatures"], "signatures")]
    modules = [_module(m) for m in _list(header["modules"], "modules")]
    _check_indices(columns, {"op_signature": len(rows), "op_module": len(modules), "tensor_layout": len(layouts)})
    _check_calls(columns, [row[1] for row in rows], [row[2] for row in rows])
    _check_memory(columns, layouts)
    signatures = [_signature(row, layouts) for row in rows]
    plain = {name: column.tolist() for name, column in columns.items()}
    return _header(header) | {
        "ops": tuple(map(
            Op, _picked(signatures, plain["op_signature"]), _picked(PHASES, plain["op_phase"]),
            _picked(modules, plain["op_module"]), _slices(plain["op_inputs"], plain["op_input_ends"]),
            _slices(plain["op_outputs"], plain["op_output_ends"]), plain["op_times"],
        )),
        "tensors": tuple(map(Tensor, _picked(layouts, plain["tensor_layout"]), plain["tensor_storage"],
                             plain["tensor_offset"])),
        "storages": tuple(map(Storage, plain["storage_nbytes"], _picked(ROLES, plain["storage_role"]),
                              plain["storage_born"], plain["storage_freed"])),
        "gradients": dict(zip(*(plain[name] for name in PAIRS), strict=True)) if PAIRS[0] in plain else None,
    }  # fmt: skip


def _picked(table: Sequence[T], indices: Sequence[int]) -> Iterator[T]:
    return map(table.__getitem__, indices)


def _slices(flat: list[int], ends: list[int]) -> Iterator[tuple[int, ...]]:
    return (tuple(flat[start:end]) for start, end in pairwise((0, *ends)))


# The header.


def _header(header: Mapping[str, Any]) -> dict[str, Any]:
    """What it holds besides its tables."""
    provenance, training, precision = header["provenance"], header["training"], header["precision"]
    if not isinstance(provenance, dict) or type(training) is not bool or precision not in PRECISIONS:
        raise ValueError("provenance, training or precision are not what they should be")
    versions = {_text(key, "provenance"): _text(value, "provenance") for key, value in provenance.items()}
    facts = _facts(header["facts"]) if header["version"] > 3 else StepFacts.from_provenance(versions)
    samples, tokens = (
        None if header[name] is None else _whole(header[name], name, 1, _LARGEST) for name in ("samples", "tokens")
    )
    return {
        "name": _text(header["name"], "the name"),
        "training": training,
        "precision": Precision.parse(_text(header.get("mixed", precision), "the precision")),
        "grad_accumulation": _whole(
            header["grad_accumulation"], "grad_accumulation", 1, limit("micro-steps of a step")
        ),
        "samples": samples,
        "tokens": tokens,
        "caveats": tuple(_caveat(row) for row in _list(header["caveats"], "caveats")),
        "facts": facts,
        "provenance": versions,
    }


def _facts(entries: Any) -> StepFacts:
    if not isinstance(entries, dict):
        raise ValueError("the facts of the step are no table")
    return StepFacts.from_dict({k: _text(v, k) if isinstance(v, str) else v for k, v in entries.items()})


def _caveat(row: Any) -> Caveat:
    code, text, share = _list(row, "a caveat", 3)
    if share is not None and not (type(share) in (int, float) and 0 <= share <= 1):
        raise ValueError(f"a caveat with the share {share!r}")
    return Caveat(_text(code, "a caveat"), _text(text, "a caveat", 10), share)


def _layout(row: Any) -> Layout:
    shape, strides, dtype = _list(row, "a layout", 3)
    sides = _list(shape, "a shape")
    if not (len(sides) == len(_list(strides, "strides")) <= _MAX_SIDES) or dtype not in ITEM_BYTES:
        raise ValueError("a layout's shape and strides disagree, or its dtype is unknown")
    if not all(type(n) is int and 0 <= n < _LARGEST for n in (*sides, *strides)):
        raise ValueError(f"a layout of shape {str(sides)[:100]} and strides {str(strides)[:100]}")
    layout = Layout(tuple(sides), tuple(strides), dtype)
    if layout.nbytes > _LARGEST or _extent(layout) > _LARGEST:
        raise ValueError(f"a tensor of shape {str(layout.shape)[:100]} is too large")
    return layout


def _extent(layout: Layout) -> int:
    """Elements from its first to its last, in memory."""
    if not layout.numel:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))


def _signature_row(row: Any, layouts: int) -> tuple[str, list[int], list[int], Any, tuple[int, ...]]:
    target, inputs, outputs, arguments, mutates = _list(row, "a signature", 5)
    for indices in (inputs, outputs):
        if not all(type(i) is int and 0 <= i < layouts for i in _list(indices, "a signature")):
            raise ValueError(f"a signature points outside the table of {layouts} layouts")
    if not all(type(i) is int and 0 <= i < len(inputs) for i in _list(mutates, "mutations")):
        raise ValueError(f"{target!r} writes in place what it is not given")
    return _text(target, "an operator"), inputs, outputs, arguments, tuple(mutates)


def _signature(row: tuple[str, list[int], list[int], Any, tuple[int, ...]], layouts: Sequence[Layout]) -> Signature:
    target, inputs, outputs, arguments, mutates = row
    given = tuple((_text(k, "an argument"), _value(v, len(inputs))) for k, v in _list(arguments, "arguments"))
    if len({key for key, _ in given}) != len(given):
        raise ValueError(f"{target} has an argument twice")
    signature = Signature(target, tuple(_picked(layouts, inputs)), tuple(_picked(layouts, outputs)), given, mutates)
    check_signature(signature)
    return signature


def _value(value: Any, inputs: int, depth: int = 0) -> Value:
    kind = type(value)
    if kind is dict:
        return _input_or_float(value, inputs)
    if kind is bool or kind is float or value is None or (kind is int and -(2**63) <= value < 2**64):
        return value  # type: ignore[no-any-return]
    if kind is str:
        return _text(value, "an argument", 10)
    if kind is list:
        if depth == _MAX_NESTED:
            raise ValueError("an argument of lists in lists, too deep")
        return tuple([_value(item, inputs, depth + 1) for item in value])
    raise ValueError(f"an argument {str(value)[:100]!r}")


def _input_or_float(value: Mapping[str, Any], inputs: int) -> Input | float:
    index, number = value.get("input"), value.get("float")
    if type(index) is int and 0 <= index < inputs and len(value) == 1:
        return _input(index)
    if number in ("inf", "-inf", "nan") and len(value) == 1:
        return float(number)
    raise ValueError(f"an argument {str(value)[:100]!r} of {inputs} inputs")


_input: Final = lru_cache(maxsize=1 << 14)(Input)  # thousands of them, in lists that are alike


def _module(value: Any) -> str:
    name = _text(value, "a module's name")
    check_limit("levels of a module's name", name.count("."))
    return name


def _text(value: Any, what: str, times: int = 1) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is no text")
    if len(value) > times * 100:  # most are short, and a limit takes a moment to look up
        check_limit("characters of a name", len(value) // times)
    if not value.isascii():
        value.encode()  # half a character raises
    return value


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} must be a whole number from {least} to {most}, got {str(value)[:40]!r}")
    return value


def _list(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or len(value) != (len(value) if length is None else length):
        raise ValueError(f"{what} is no list" + f" of {length}" * (length is not None))
    return value


# The columns.


def _check_counts(columns: Columns) -> None:
    for names in (_OPS, _TENSORS, _STORAGES, PAIRS if PAIRS[0] in columns else ()):
        if len({len(columns[name]) for name in names}) > 1:
            raise ValueError(f"columns {', '.join(names)} differ in length")
    ops, tensors, storages = (len(columns[names[0]]) for names in (_OPS, _TENSORS, _STORAGES))
    for what, count in (("ops", ops), ("tensors", tensors), ("storages", storages)):
        check_limit(f"{what} of a graph", count)
    check_limit("tensors that all ops of a graph read or write", len(columns["op_inputs"]) + len(columns["op_outputs"]))
    if not ops:
        raise ValueError("it has no op")


def _check_indices(columns: Columns, tables: Mapping[str, int]) -> None:
    ops, tensors, storages = (len(columns[names[0]]) for names in (_OPS, _TENSORS, _STORAGES))
    ends = {**tables, "op_phase": len(PHASES), "op_inputs": tensors, "op_outputs": tensors, "tensor_storage": storages,
            "tensor_offset": _LARGEST, "storage_nbytes": _LARGEST, "storage_role": len(ROLES),
            "op_times": limit("micro-steps of a step") + 1, "storage_born": ops, "storage_freed": ops + 1,
            **dict.fromkeys(PAIRS, storages)}  # fmt: skip
    for name, end in ends.items():
        least = {"op_times": 1, "storage_born": -1}.get(name, 0)
        column = columns.get(name)
        if column is not None and column.size and not (least <= column.min() and column.max() < end):
            raise ValueError(f"{name} points outside its table of {end}")


def _check_calls(columns: Columns, inputs: Sequence[list[int]], outputs: Sequence[list[int]]) -> None:
    """Every op has the tensors of its signature, in storages that are alive."""
    born, freed = columns["storage_born"], columns["storage_freed"]
    for way, listed in (("input", inputs), ("output", outputs)):
        flat, ends = columns[f"op_{way}s"], columns[f"op_{way}_ends"]
        wanted = np.array([len(row) for row in listed], dtype=np.int64)[columns["op_signature"]]
        if not np.array_equal(np.diff(ends, prepend=0), wanted) or ends[-1] != len(flat):
            raise ValueError(f"ops have another number of {way}s than their signatures")
        starts = np.cumsum([0, *(len(row) for row in listed)])
        laid = np.array([i for row in listed for i in row], dtype=np.int64)
        ops = np.repeat(np.arange(len(wanted)), wanted)
        places = starts[columns["op_signature"][ops]] + np.arange(len(flat)) - (ends - wanted)[ops]
        if not np.array_equal(columns["tensor_layout"][flat], laid[places]):
            raise ValueError(f"ops have other {way}s than their signatures")
        storage = columns["tensor_storage"][flat]
        if np.any(born[storage] > ops) or np.any(freed[storage] < ops):
            raise ValueError(f"an op has an {way} whose storage is not there")


def _check_memory(columns: Columns, layouts: Sequence[Layout]) -> None:
    """Tensors lie in their storages, and what has a gradient is a parameter."""
    nbytes, role = columns["storage_nbytes"], columns["storage_role"]
    if np.any(columns["storage_freed"] < columns["storage_born"]):
        raise ValueError("a storage is freed before it is born")
    check_limit("bytes of a graph's storages", sum(nbytes.tolist()))
    extent = np.array([_extent(x) for x in layouts], dtype=np.int64)
    item = np.array([ITEM_BYTES[x.dtype] for x in layouts], dtype=np.int64)
    layout = columns["tensor_layout"]
    end = (columns["tensor_offset"] + extent[layout]) * item[layout]
    if np.any((end > nbytes[columns["tensor_storage"]]) & (extent[layout] > 0)):
        raise ValueError("a tensor reaches beyond its storage")
    if PAIRS[0] in columns:
        parameters, gradients = (columns[name] for name in PAIRS)
        of_gradients = [ROLES.index(name) for name in ("gradient", "input")]  # a batch may bring them: an update alone
        is_wrong = (role[parameters] != ROLES.index("parameter")) | ~np.isin(role[gradients], of_gradients)
        if np.any(is_wrong) or len(np.unique(parameters)) != len(parameters):
            raise ValueError("gradients are paired with what is no parameter, or twice")
