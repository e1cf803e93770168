"""Precisions: what is stored in which type, and where autocast casts, which is where CUDA's would."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from foretell.capture import capture
from foretell.errors import InputError, WorkloadError
from foretell.graph import Graph
from foretell.precision import Precision
from tests.capture.tiny import MLP_NUMBERS, mlp, named, names, roles, storage_of, the, workload

AdamW = torch.optim.AdamW


@cache
def trained_in(precision: Any, **settings: Any) -> Graph:
    return capture(mlp(optimizer=AdamW, precision=precision, **settings))


def dtypes(graph: Graph, name: str) -> set[str]:
    return {layout.dtype for op in named(graph, name) for layout in op.signature.inputs}


@pytest.mark.parametrize(
    ("precision", "parameter", "computed"),
    [
        ("fp32", 4, "float32"), ("tf32", 4, "float32"), ("bf16", 2, "bfloat16"), ("fp16", 2, "float16"),
        ("amp-bf16", 4, "bfloat16"), ("amp-fp16", 4, "float16"),
    ],
)  # fmt: skip
def test_bytes_and_types_of_each_precision(precision: Any, parameter: int, computed: str) -> None:
    graph = trained_in(precision)
    assert graph.precision.name == precision
    assert dtypes(graph, "addmm") == dtypes(graph, "mm") == {computed}
    held = roles(graph)
    scaler = 8 if precision == "amp-fp16" else 0  # the scale, and for how many steps it has held
    assert held["parameter"] == parameter * MLP_NUMBERS + scaler
    assert held["gradient"] == parameter * MLP_NUMBERS
    assert held["optimizer"] == 2 * parameter * MLP_NUMBERS
    assert held["input"] == 2 * 8 * parameter + 2 * 8  # class numbers stay integers


def test_tf32_runs_what_fp32_runs() -> None:
    """The same kernels; that they may use tf32 units is for the cost model to know."""
    assert trained_in("tf32").ops == trained_in("fp32").ops


def test_only_amp_casts() -> None:
    assert not named(trained_in("fp32"), "_to_copy")
    assert not named(trained_in("bf16"), "_to_copy")
    assert named(trained_in("amp-bf16"), "_to_copy")


def test_gradients_of_cast_weights_are_cast_back() -> None:
    graph = trained_in("amp-bf16")
    gradients = [s for s in graph.storages if s.role == "gradient"]
    assert {graph.ops[s.born].signature.name for s in gradients} == {"aten._to_copy"}


def test_a_scaler_scales_unscales_and_updates_in_amp_fp16_only() -> None:
    graph = trained_in("amp-fp16")
    check = the(graph, "_amp_foreach_non_finite_check_and_unscale_", "optimizer")
    assert sum(storage_of(graph, i).role == "gradient" for i in check.inputs) == 4
    update = the(graph, "_amp_update_scale_", "optimizer")
    assert graph.ops.index(check) < graph.ops.index(update)
    assert not [name for name in names(trained_in("amp-bf16")) if "_amp_" in name]


def test_clipping_comes_after_unscaling() -> None:
    graph = trained_in("amp-fp16", clip_grad_norm=1.0)
    order = [
        name
        for name in names(graph, "optimizer")
        if name in ("aten._foreach_norm", "aten._foreach_lerp_") or "_amp_" in name
    ]
    assert order == [
        "aten._amp_foreach_non_finite_check_and_unscale_", "aten._foreach_norm", "aten._foreach_lerp_",
        "aten._amp_update_scale_",
    ]  # fmt: skip


class Mixed(nn.Module):
    """One weight used twice, a norm, a softmax, and a concatenation of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = self.shared(self.shared(x))
        both = torch.cat([twice, x])
        return self.norm(twice).sum() + twice.softmax(-1).sum() + both.sum() + twice.exp().sum()


@cache
def mixed(precision: Any, step: Any = None) -> Graph:
    return capture(workload(Mixed, lambda: torch.randn(4, 8), precision=precision, step=step))


@pytest.mark.parametrize(("precision", "half"), [("amp-bf16", "bfloat16"), ("amp-fp16", "float16")])
def test_autocast_follows_the_lists_of_cuda(precision: Any, half: str) -> None:
    graph = mixed(precision)
    assert dtypes(graph, "addmm") == {half}
    assert dtypes(graph, "native_layer_norm") == {"float32"}
    assert dtypes(graph, "exp") == {"float32"}
    assert [x.dtype for x in the(graph, "_softmax").signature.outputs] == ["float32"]
    assert {x.dtype for op in named(graph, "sum", "forward") for x in op.signature.outputs} == {"float32"}


def test_a_weight_is_cast_once_in_a_forward_pass() -> None:
    graph = mixed("amp-bf16")
    casts = [op for op in named(graph, "_to_copy", "forward") if storage_of(graph, op.inputs[0]).role == "parameter"]
    assert sorted(op.signature.outputs[0].shape for op in casts) == [(8,), (8, 8)]


def test_a_weight_is_cast_again_in_the_next_micro_step() -> None:
    graph = capture(workload(Mixed, lambda: torch.randn(4, 8), precision="amp-bf16", grad_accumulation=2))
    casts = [op for op in named(graph, "_to_copy", "forward") if storage_of(graph, op.inputs[0]).role == "parameter"]
    assert len(casts) == 4


def test_concatenation_is_left_to_promote_by_itself() -> None:
    """CPU autocast would cast its parts first."""
    assert [x.dtype for x in the(mixed("amp-bf16"), "cat").signature.inputs] == ["bfloat16", "float32"]


@pytest.mark.parametrize(("precision", "read"), [("amp-fp16", "float16"), ("amp-bf16", "float32")])
def test_softmax_converts_fp16_by_itself(precision: Any, read: str) -> None:
    """CUDA's kernel reads fp16 and writes fp32; there is no such kernel for bf16, which is copied first."""
    assert dtypes(mixed(precision), "_softmax") == {read}


def test_cross_entropy_ends_in_fp32() -> None:
    """Its softmax asks for the type of its input, so the cast comes after: as on CUDA."""
    graph = trained_in("amp-bf16")
    assert dtypes(graph, "_log_softmax") == {"bfloat16"}
    assert the(graph, "nll_loss_forward").signature.inputs[0].dtype == "float32"


def test_autocast_of_ones_own_for_cuda_means_the_device_we_stand_in_for() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    ours, theirs = mixed("amp-bf16"), mixed("fp32", step)
    assert [op.signature for op in named(theirs, "addmm")] == [op.signature for op in named(ours, "addmm")]
    assert dtypes(theirs, "native_layer_norm") == {"float32"}


def test_autocast_of_ones_own_defaults_to_fp16() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        with torch.autocast("cuda"):
            loss = model(batch)
        loss.backward()
        optimizer.step()

    assert dtypes(mixed("fp32", step), "addmm") == {"float16"}


def test_inference_under_autocast_has_no_master_gradient_and_no_scaler() -> None:
    graph = capture(mlp(optimizer=None, precision="amp-fp16", loss=lambda model, b: model(b["x"])))
    assert dtypes(graph, "addmm") == {"float16"}
    assert not [name for name in names(graph) if "_amp_" in name]


MEGATRON = Precision(parameters="bf16", gradients="fp32", master="fp32")
FSDP2 = Precision(compute="bf16", reduce="fp32")


def test_masters_and_main_gradients_are_fp32_beside_bf16_parameters() -> None:
    graph = trained_in(MEGATRON, grad_accumulation=3, clip_grad_norm=1.0)
    assert (graph.precision.arithmetic, graph.precision) == ("bf16", MEGATRON)
    held = roles(graph)
    assert (held["parameter"], held["gradient"]) == (2 * MLP_NUMBERS, 4 * MLP_NUMBERS)
    assert held["optimizer"] == (4 + 8) * MLP_NUMBERS  # masters, two moments
    assert all(s.born < 0 for s in graph.storages if s.role == "gradient")  # kept from step to step
    added = named(graph, "add_", "backward")
    assert {op.signature.inputs[0].dtype for op in added} == {"float32"}
    assert {op.module for op in added} == {"0", "2"}  # where their parameters are used
    assert [op.times for op in added] == [1] * 4 + [2] * 4
    assert not named(graph, "_to_copy", "optimizer")


def test_gradients_for_masters_are_cast_in_the_update_unless_they_are_kept_in_fp32() -> None:
    graph = trained_in(Precision(parameters="bf16", master="fp32"))
    assert roles(graph)["gradient"] == 2 * MLP_NUMBERS
    assert len(named(graph, "_to_copy", "optimizer")) == 4


def test_what_is_computed_with_are_copies_of_fp32_parameters_and_nothing_is_autocast() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16))
    graph = capture(workload(lambda: model, lambda: torch.randn(2, 8), optimizer=AdamW, precision=FSDP2))
    assert {layout.dtype for op in named(graph, "native_layer_norm") for layout in op.signature.inputs} == {"bfloat16"}
    copies = [s for s in graph.storages if s.role == "parameter" and s.born >= 0]
    numbers = 8 * 16 + 16 + 2 * 16
    assert sum(s.nbytes for s in copies) == 2 * numbers
    assert all(graph.ops[s.freed].phase == "backward" for s in copies)
    assert roles(graph)["gradient"] == 4 * numbers
    assert roles(graph)["optimizer"] == 8 * numbers


@pytest.mark.parametrize(
    "text", ["parameters:bf16/gradients:fp32/master:fp32", "parameters:fp32/compute:bf16/reduce:fp32"]
)
def test_precisions_said_apart_are_read_and_written(text: str) -> None:
    assert str(Precision.parse(text)) == text
    assert mlp(precision=text).arithmetic == Precision.parse(text)
    graph = trained_in(Precision.parse(text))
    assert Graph.from_bytes(graph.to_bytes()).precision == graph.precision


@pytest.mark.parametrize(("kernels", "added"), [("torch", {"bfloat16", "float32"}), ("fused-model", {"float32"})])
def test_an_engine_adds_gradients_up_through_fp32_copies(kernels: str, added: set[str]) -> None:
    """As DeepSpeed's does, which moves 18 bytes a number where adding two types moves 10."""
    graph = trained_in("parameters:bf16/gradients:fp32/master:fp32", kernels=kernels)
    sums = [op for op in named(graph, "add_") if op.phase == "backward"]
    assert {layout.dtype for op in sums for layout in op.signature.inputs} == added
    copies = [op for op in named(graph, "_to_copy") if op.phase == "backward"]
    assert len(copies) == (len(sums) if kernels == "fused-model" else 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"master": "fp32"}, "parameters=fp32 are their own"),
        ({"parameters": "bf16", "gradients": "fp32"}, "master is left out"),
        ({"parameters": "bf16", "compute": "fp16", "master": "fp32"}, "are the masters"),
        ({"parameters": "fp32", "gradients": "bf16"}, "are not possible"),
        ({"reduce": "fp64"}, "Allowed"),
    ],
)
def test_precisions_that_do_not_go_together_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Precision(**settings)


def test_misspelt_parts_are_named() -> None:
    with pytest.raises(WorkloadError, match="Did you mean 'reduce'"):
        mlp(precision="compute:bf16/reduced:fp32")
