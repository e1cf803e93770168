"""Graph files of strangers: what is wrong is said of the file, before it costs memory or time."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.errors import GraphFileError, InputError
from foretell.graph import Graph, Input, Layout, Signature
from foretell.graph.signatures import check_signature
from foretell.precision import PRECISIONS, Precision

BASE = Path(__file__).parents[1] / "fuzz" / "bases" / "experts.graph"
Parts = dict[str, bytes]


def parts_of(data: bytes) -> Parts:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: Parts, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_column(name: str, change: Callable[[np.ndarray[Any, Any]], object]) -> bytes:
    parts = parts_of(BASE.read_bytes())
    values = np.cumsum(np.load(io.BytesIO(parts[f"{name}.npy"])))
    change(values)
    buffer = io.BytesIO()
    np.save(buffer, np.diff(values, prepend=0))
    return packed(parts | {f"{name}.npy": buffer.getvalue()})


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    parts = parts_of(BASE.read_bytes())
    header = json.loads(parts["header.json"])
    change(header)
    return packed(parts | {"header.json": json.dumps(header).encode()})


def put(at: int, value: int) -> Callable[[np.ndarray[Any, Any]], object]:
    def change(values: np.ndarray[Any, Any]) -> None:
        values[at] = value

    return change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_column("op_times", put(3, 0)), "op_times points outside"),
        (with_column("op_times", put(3, -2)), "op_times points outside"),
        (with_column("op_times", put(3, 2**40)), "op_times points outside"),
        (with_column("storage_born", put(-1, 5000)), "storage_born points outside"),
        (with_column("storage_freed", put(-1, 5000)), "storage_freed points outside"),
        (with_column("storage_freed", put(-1, 0)), "whose storage is not there"),
        (with_column("storage_nbytes", put(0, 1)), "reaches beyond its storage"),
        (with_column("storage_nbytes", put(0, 2**60)), "storage_nbytes points outside"),
        (with_column("tensor_offset", put(0, -1)), "tensor_offset points outside"),
        (with_column("tensor_layout", put(0, 1)), "than their signatures"),
        (with_column("op_signature", put(0, 5)), "than their signatures"),
        (with_column("op_input_ends", put(0, 40)), "another number of inputs"),
        (with_column("gradient_parameter", put(0, 30)), "paired with what is no parameter"),
        (with_header(lambda h: h.update(samples=-4)), "samples must be a whole number from 1"),
        (with_header(lambda h: h.update(samples="many")), "samples must be a whole number"),
        (with_header(lambda h: h.update(tokens=1.5)), "tokens must be a whole number"),
        (with_header(lambda h: h.update(grad_accumulation=0)), "grad_accumulation must be a whole number from 1"),
        (with_header(lambda h: h.update(training="no")), "training or precision"),
        (with_header(lambda h: h.update(precision="fp7")), "training or precision"),
        (with_header(lambda h: h.update(version=0)), "version must be a whole number"),
        (with_header(lambda h: h.update(version="2")), "version must be a whole number"),
        (with_header(lambda h: h.update(caveats=[["a", "b", -1]])), "a caveat with the share -1"),
        (with_header(lambda h: h.update(caveats=[["a", 7, None]])), "a caveat is no text"),
        (with_header(lambda h: h.update(name="\ud800")), "surrogates not allowed"),
        (with_header(lambda h: h["signatures"][0].__setitem__(4, [9])), "writes in place what it is not given"),
        (with_header(lambda h: h["signatures"][0][3].append(["x", {"input": 99}])), "of 2 inputs"),
        (with_header(lambda h: h["layouts"].append(h["layouts"][0])), "listed twice"),
        (with_header(lambda h: h["layouts"][0].__setitem__(0, [10**400])), "a layout"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(data: bytes, message: str) -> None:
    Graph.load(BASE)
    with pytest.raises(GraphFileError, match=message):
        Graph.from_bytes(data)


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        (lambda h: h["modules"].__setitem__(0, "a." * 100_000), "characters of a name"),
        (lambda h: h["modules"].__setitem__(0, "a." * 200), "levels of a module's name: at most 100, got 200"),
        (lambda h: h.update(provenance=[[]] * 600_000), "values in a JSON file: at most 1,000,000, got 1,2"),
        (lambda h: h.update(name="n" * 2000), "characters of a name: at most 1,000, got 2,000"),
    ],
)
def test_a_header_that_is_too_much(change: Callable[[dict[str, Any]], object], limit: str) -> None:
    with pytest.raises(GraphFileError, match=limit):
        Graph.from_bytes(with_header(change))


def test_limits_are_raised_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_header(lambda h: h.update(name="n" * 2000))
    with pytest.raises(GraphFileError, match=r"\$FORETELL_LIMITS=4 allows four times"):
        Graph.from_bytes(data)
    monkeypatch.setenv("FORETELL_LIMITS", "4")
    assert len(Graph.from_bytes(data).name) == 2000
    monkeypatch.setenv("FORETELL_LIMITS", "much")
    with pytest.raises(InputError, match=r"FORETELL_LIMITS must be a number"):
        Graph.load(BASE)


def test_an_archive_is_looked_at_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(BASE.read_bytes())
    with pytest.raises(GraphFileError, match="58 files inside"):
        Graph.from_bytes(packed(parts | {f"{i}": b"" for i in range(40)}))
    with pytest.raises(GraphFileError, match="packed by method 14"):
        Graph.from_bytes(packed(parts, zipfile.ZIP_LZMA))
    monkeypatch.setenv("FORETELL_LIMITS", "0.01")
    with pytest.raises(GraphFileError, match="unpacked: at most 2,684,354, got"):
        Graph.from_bytes(packed(parts | {"more.npy": b"\0" * 3 * 2**20}))


def test_a_member_that_unpacks_to_more_than_it_says() -> None:
    """Its size in the directory is a lie: no more than that is unpacked."""
    parts = parts_of(BASE.read_bytes())
    data = bytearray(packed(parts | {"header.json": parts["header.json"] + b" " * 10_000_000}))
    at = data.rindex(b"header.json") - 46 + 24
    data[at : at + 4] = (100).to_bytes(4, "little")
    with pytest.raises(GraphFileError, match="not a whole"):
        Graph.from_bytes(bytes(data))


def test_a_column_that_claims_more_than_there_is() -> None:
    parts = parts_of(BASE.read_bytes())
    length = str((len(parts["op_times.npy"]) - 128) // 8).encode()
    lie = parts["op_times.npy"].replace(b"(" + length + b",)", b"(" + b"9" * len(length) + b",)")
    with pytest.raises(GraphFileError, match="op_times is no list of int64 with all its bytes"):
        Graph.from_bytes(packed(parts | {"op_times.npy": lie}))


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.graph")
    for path in (tmp_path / "a.graph", "/dev/zero"):
        with pytest.raises(GraphFileError, match="no plain file"):
            Graph.load(path)
    with pytest.raises(GraphFileError, match="directory"):
        Graph.load(tmp_path)


def rows(*shape: int) -> Layout:
    return Layout.contiguous(shape, "float32")


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "arguments"),
    [
        ("mm", [(2, 3)], [(2, 4)], {}),
        ("mm", [(2, 3), (3,)], [(2,)], {}),
        ("mm", [(2, 3), (3, 4)], [], {}),
        ("addmm", [(2, 3), (3, 4)], [(2, 4)], {}),
        ("bmm", [(2, 3), (3, 4)], [(2, 4)], {}),
        ("_grouped_mm", [(2, 3), (3, 4)], [(2, 4)], {}),
        ("convolution", [(1, 3, 8, 8), (3,)], [(1, 3, 8, 8)], {}),
        ("convolution", [(1, 3, 8), (4, 3, 3, 3, 3)], [(1, 4, 6)], {}),
        ("convolution", [(1, 3, 8), (4, 3, 3)], [(1, 4, 6)], {"groups": 0}),
        ("convolution_backward", [(1, 4, 6), (1, 3, 8)], [(1, 3, 8)], {}),
        ("convolution_backward", [(1, 4, 6), (1, 3, 8), (4, 3, 3)], [], {"output_mask": (True,)}),
        ("_scaled_dot_product_flash_attention", [(1, 2, 8, 4)] * 3, [(1, 2, 8, 4)], {}),
        ("_scaled_dot_product_flash_attention", [(1, 8, 4)] * 3, [(1, 8, 4)], {"query": Input(0), "key": Input(1), "value": Input(2)}),
        ("_cudnn_rnn", [(8, 2, 4)], [], {"hidden_size": "4"}),
        ("_cudnn_rnn", [(8, 2, 4), (1, 4)], [], {"hidden_size": 4, "hx": Input(1)}),
        ("_log_softmax", [(2, 3)], [(2,)], {}),
        ("native_layer_norm", [(2, 3)], [(2, 3), (2,), (2,)], {}),
        ("native_group_norm", [(2, 4, 3)], [(2, 4, 3), (2, 2), (2, 2)], {"group": float("inf")}),
        ("sum", [(2, 3)], [(2,)], {"dim": (0, 1)}),
        ("sum", [(2, 3)], [(2,)], {"dim": (5,)}),
        ("embedding", [(9, 4)], [(2, 4)], {}),
        ("cat", [(3,), (4,)], [()], {}),
        ("avg_pool2d", [()], [()], {}),
        ("upsample_bilinear2d", [()], [()], {}),
        ("zeros", [], [], {}),
        ("_to_copy", [], [(2, 3)], {}),
    ],
)  # fmt: skip
def test_operators_are_called_as_they_can_be(
    name: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], arguments: dict[str, Any]
) -> None:
    layouts = tuple(rows(*shape) for shape in inputs), tuple(rows(*shape) for shape in outputs)
    with pytest.raises(ValueError, match=name):
        check_signature(Signature(f"aten.{name}.default", *layouts, tuple(arguments.items())))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("compiled_cross_entropy_backward", []), ("weighted_gated_backward", [(2, 3)]), ("latent_keys_backward", [(2,)])],
)
def test_kernels_of_fused_trainers_are_called_as_they_can_be(name: str, inputs: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=name):
        check_signature(Signature(f"foretell.{name}.default", tuple(rows(*shape) for shape in inputs), (rows(2, 3),)))


@pytest.mark.parametrize("facts", [{}, {"traffic": 8}, {"traffic": "8", "flops": 1.0}, {"traffic": -1, "flops": 1.0}])
@pytest.mark.parametrize("name", ["opaque.mine", "fused.pointwise"])
def test_what_nobody_looks_into_says_what_it_takes(name: str, facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        check_signature(Signature(f"foretell.{name}", (rows(2),), (rows(2),), tuple(facts.items())))


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_of_a_workload_is_read_back(name: str) -> None:
    graph = replace(Graph.from_bytes(BASE.read_bytes()), precision=Precision.parse(name))
    assert Graph.from_bytes(graph.to_bytes()).precision == graph.precision
