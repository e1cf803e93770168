"""The graph file: a zip of one JSON header and one .npy column per field; `reading.py` reads it.

Version 2 adds which gradient belongs to which parameter, version 3 mixed precision, version 4 facts of the step apart from
its provenance, version 5 notes of what was taken to be so, version 6 who trains. A graph is written in the oldest version
that can hold what is known of it.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.graph.facts import StepFacts
from foretell.graph.types import PHASES, ROLES, Input, Value

if TYPE_CHECKING:
    from foretell.graph.graph import Graph

FORMAT: Final = "foretell-graph"
VERSION: Final = 6
HEADER: Final = "header.json"
PAIRS: Final = ("gradient_parameter", "gradient_storage")  # since version 2


class _Interned(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def members(graph: Graph, *, hashed: bool = False) -> Iterator[tuple[str, bytes]]:
    """The files inside the archive, by name; or, of the same content, what its hash is of, which stays that of version 3."""
    version = _version(graph, hashed)
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
    if graph.gradients is not None or version == 3:
        pairs = graph.gradients or {}
        columns |= dict(zip(PAIRS, (list(pairs), list(pairs.values())), strict=True))
    signature_rows = [
        [s.target, [layouts[x] for x in s.inputs], [layouts[x] for x in s.outputs],
         [[name, _encode(value)] for name, value in s.arguments], list(s.mutates)]
        for s in signatures
    ]  # fmt: skip
    provenance = {**graph.provenance, **(graph.facts.to_provenance() if hashed else {})}
    header = {
        "format": FORMAT, "version": version, "name": graph.name,
        "training": graph.training, "precision": graph.precision.arithmetic, "grad_accumulation": graph.grad_accumulation,
        "samples": graph.samples, "tokens": graph.tokens,
        "caveats": [[c.code, c.text, c.share] for c in graph.caveats], "provenance": provenance,
        "modules": list(modules), "layouts": [[x.shape, x.strides, x.dtype] for x in layouts],
        "signatures": signature_rows,
    }  # fmt: skip
    if not graph.precision.is_named:
        header["mixed"] = graph.precision.name
    if version > 3:
        header["facts"] = graph.facts.to_dict()
    yield HEADER, json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    for name, column in columns.items():
        # Differences compress far better than the rising numbers themselves, and lose nothing.
        buffer = io.BytesIO()
        differences = np.diff(np.asarray(column, dtype=np.int64), prepend=0)
        np.lib.format.write_array(buffer, differences, allow_pickle=False)
        yield f"{name}.npy", buffer.getvalue()


def _version(graph: Graph, hashed: bool) -> int:
    if graph.facts.trainer is not None and not hashed:
        return 6
    if graph.facts != StepFacts() and not hashed:
        return 5 if graph.facts.notes or graph.facts.untrained is not None else 4
    if not graph.precision.is_named:
        return 3
    return 1 if graph.gradients is None else 2


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


def _encode(value: Value) -> Any:
    if isinstance(value, Input):
        return {"input": value.index}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value
