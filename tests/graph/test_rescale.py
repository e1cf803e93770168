"""Two sizes say what a third is: a graph extended to a larger batch equals the one captured there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from foretell.capture import capture
from foretell.errors import CaptureError
from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.graph.rescale import extend, same_path, scale
from tests.capture.tiny import named, workload

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor], dict[str, Any]]] = {
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        lambda batch: torch.randn(batch, 3, 6, 6),
        {"channels_last": True, "precision": "amp-fp16"},
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        lambda batch: torch.randn(batch, 5, 16),
        {"precision": "amp-bf16", "optimizer": torch.optim.AdamW},
    ),
    "recurrent": (
        lambda: nn.LSTM(8, 6, num_layers=2, batch_first=True),
        lambda batch: torch.randn(batch, 5, 8),
        {"loss": lambda model, x: model(x)[0].mean()},
    ),
}  # fmt: skip


@cache
def at(name: str, batch: int) -> Graph:
    model, make, settings = MODELS[name]
    return capture(workload(model, lambda: make(batch), **settings))


@pytest.mark.parametrize("name", MODELS)
def test_an_extended_graph_equals_the_captured_one(name: str) -> None:
    extended = extend(at(name, 8), at(name, 16), sizes=(8, 16), to=64)
    captured = at(name, 64)
    assert extended.ops == captured.ops
    assert extended.tensors == captured.tensors
    assert extended.storages == captured.storages
    assert (extended.samples, extended.tokens) == (captured.samples, captured.tokens)
    assert extended.samples == 64


def test_what_is_told_of_inputs_grows_along() -> None:
    grown = extend(at("transformer", 2), at("transformer", 4), sizes=(2, 4), to=12)
    assert grown.facts.inputs == (12, 5, 16)


def test_a_graph_may_be_made_smaller_too() -> None:
    assert extend(at("recurrent", 16), at("recurrent", 64), sizes=(16, 64), to=8).ops == at("recurrent", 8).ops


class Chunks(nn.Module):
    """One more layer for every four samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[0] // 4):
            x = self.linear(x)
        return x


def test_a_step_that_takes_another_path_is_not_extended() -> None:
    first, second = (capture(workload(Chunks, lambda n=n: torch.randn(n, 8))) for n in (4, 8))
    assert not same_path(first, second)
    with pytest.raises(CaptureError, match="another path"):
        extend(first, second, sizes=(4, 8), to=64)


def test_one_size_scales_its_multiples_and_nothing_else() -> None:
    thirteen = capture(workload(Chunks, lambda: torch.randn(13, 8)))
    scaled = scale(thirteen, size=13, to=64)
    products = [op.signature.inputs[1].shape for op in named(scaled, "addmm", "forward")]
    assert products == [(64, 8)] * 3
    assert scaled.bytes_of("parameter") == scaled.bytes_of("gradient") == 4 * (8 * 8 + 8)
    assert scaled.bytes_of("input") == 4 * 64 * 8
    assert scaled.samples == 64


def line(batch: int, slope: int, constant: int) -> Graph:
    """One op over `slope · batch + constant` numbers."""
    layout = Layout((slope * batch + constant, 3), (3, 1), "float32")
    signature = Signature("aten.relu.default", (layout,), (layout,), (("self", Input(0)), ("rows", layout.shape[0])))
    return Graph(
        name="line", ops=(Op(signature, "forward", "", (0,), (1,)),), tensors=(Tensor(layout, 0), Tensor(layout, 1)),
        storages=(Storage(layout.nbytes, "input", -1, 1), Storage(layout.nbytes, "temporary", 0, 0)),
    )  # fmt: skip


@given(
    slope=st.integers(0, 50), constant=st.integers(0, 50), small=st.integers(1, 20), more=st.integers(1, 20),
    to=st.integers(1, 10_000),
)  # fmt: skip
def test_every_size_continues_along_its_line(slope: int, constant: int, small: int, more: int, to: int) -> None:
    first, second = line(small, slope, constant), line(small + more, slope, constant)
    assert extend(first, second, sizes=(small, small + more), to=to) == line(to, slope, constant)


def test_graphs_of_different_tensors_are_not_of_the_same_path() -> None:
    first = line(2, 1, 0)
    assert same_path(first, line(4, 1, 0))
    assert not same_path(first, dataclasses.replace(first, tensors=first.tensors[:1]))
    assert not same_path(first, dataclasses.replace(first, ops=()))
