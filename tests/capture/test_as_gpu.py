"""Kernel choices: a capture on the CPU runs what a GPU would."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretell.capture import capture
from foretell.capture.as_gpu.attention import attention_backend
from foretell.capture.as_gpu.autocast import casts_on_cuda
from foretell.errors import WorkloadError
from foretell.graph import Graph
from tests.capture.tiny import codes, mlp, named, names, the, workload

HALF, FULL = torch.bfloat16, torch.float32
PLAIN: dict[str, Any] = {
    "dtype": HALF, "head_dim": 64, "value_dim": 64, "has_mask": False, "mask_needs_grad": False, "queries": 128, "keys": 128,
    "is_causal": False, "grouped": False, "dense_last_dim": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "backend"),
    [
        ({}, "cudnn"),
        ({"dtype": torch.float16}, "cudnn"),
        ({"is_causal": True}, "cudnn"),
        ({"has_mask": True}, "cudnn"),
        ({"grouped": True}, "cudnn"),
        ({"head_dim": 256, "value_dim": 256}, "cudnn"),
        ({"head_dim": 128, "value_dim": 64}, "cudnn"),
        ({"head_dim": 60, "value_dim": 60}, "flash"),
        ({"head_dim": 60, "value_dim": 60, "grouped": True}, "flash"),
        ({"head_dim": 60, "value_dim": 60, "is_causal": True, "keys": 256}, "math"),
        ({"head_dim": 60, "value_dim": 60, "has_mask": True}, "math"),
        ({"head_dim": 512, "value_dim": 512}, "efficient"),
        ({"has_mask": True, "mask_needs_grad": True}, "efficient"),
        ({"has_mask": True, "mask_needs_grad": True, "grouped": True}, "math"),
        ({"dtype": FULL}, "efficient"),
        ({"dtype": FULL, "has_mask": True, "is_causal": False}, "efficient"),
        ({"dtype": FULL, "head_dim": 60, "value_dim": 60}, "efficient"),
        ({"dtype": FULL, "head_dim": 62, "value_dim": 62}, "math"),
        ({"dtype": FULL, "grouped": True}, "math"),
        ({"dtype": torch.float64}, "math"),
        ({"dense_last_dim": False}, "math"),
    ],
)
def test_the_rule_that_picks_an_attention_kernel(call: dict[str, Any], backend: str) -> None:
    assert attention_backend(**{**PLAIN, **call}) == backend


@given(
    dtype=st.sampled_from([torch.float16, HALF, FULL, torch.float64]), head_dim=st.integers(1, 600), grouped=st.booleans(),
    has_mask=st.booleans(), mask_needs_grad=st.booleans(), is_causal=st.booleans(), keys=st.integers(1, 300),
)  # fmt: skip
def test_no_kernel_is_given_what_it_refuses(has_mask: bool, mask_needs_grad: bool, head_dim: int, **call: Any) -> None:
    call |= {"has_mask": has_mask, "mask_needs_grad": has_mask and mask_needs_grad}
    backend = attention_backend(**{**PLAIN, **call, "head_dim": head_dim, "value_dim": head_dim})
    half = call["dtype"] in (torch.float16, HALF)
    if backend in ("cudnn", "flash"):
        assert half
        assert head_dim <= 256
    if backend == "flash":
        assert not has_mask
    if backend == "efficient":
        assert call["dtype"] != torch.float64
        assert not call["grouped"]


class Attention(nn.Module):
    def __init__(
        self, heads: int = 2, key_heads: int = 2, head_dim: int = 16, mask: str = "none", causal: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_dim, self.mask, self.causal = heads, key_heads, head_dim, mask, causal
        self.project = nn.Linear(8, (heads + 2 * key_heads) * head_dim)
        self.bias = nn.Parameter(torch.zeros(1, heads, 5, 5)) if mask == "learned" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        all_heads = self.project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = all_heads.split([self.heads, self.key_heads, self.key_heads], dim=1)
        mask = torch.ones(5, 5, dtype=torch.bool).tril() if self.mask == "bool" else self.bias
        grouped = self.heads != self.key_heads
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, enable_gqa=grouped)


@pytest.mark.parametrize(
    ("precision", "settings", "kernel"),
    [
        ("bf16", {"causal": True}, "cudnn_attention"),
        ("amp-fp16", {"mask": "bool"}, "cudnn_attention"),
        ("bf16", {"key_heads": 1}, "cudnn_attention"),
        ("bf16", {"head_dim": 12}, "flash_attention"),
        ("fp32", {}, "efficient_attention"),
        ("fp32", {"mask": "bool"}, "efficient_attention"),
        ("bf16", {"mask": "learned"}, "efficient_attention"),
    ],
)
def test_attention_runs_the_chosen_kernel_both_ways(precision: Any, settings: dict[str, Any], kernel: str) -> None:
    graph = capture(workload(lambda: Attention(**settings), lambda: torch.randn(2, 5, 8), precision=precision))
    assert [name for name in names(graph) if "scaled_dot_product" in name] == [
        f"aten._scaled_dot_product_{kernel}", f"aten._scaled_dot_product_{kernel}_backward",
    ]  # fmt: skip


def test_grouped_heads_are_not_repeated_for_cudnn() -> None:
    graph = capture(workload(lambda: Attention(heads=4, key_heads=2), lambda: torch.randn(2, 5, 8), precision="bf16"))
    attention = the(graph, "_scaled_dot_product_cudnn_attention").signature
    assert [attention.tensor(name).shape[1] for name in ("query", "key", "value")] == [4, 2, 2]


def test_heads_are_padded_for_flash_and_the_padding_cut_off() -> None:
    graph = capture(workload(lambda: Attention(head_dim=12), lambda: torch.randn(2, 5, 8), precision="bf16"))
    flash = the(graph, "_scaled_dot_product_flash_attention").signature
    assert flash.tensor("query").shape[-1] == 16
    assert named(graph, "constant_pad_nd")


def test_attention_without_a_fused_kernel_is_matrix_products() -> None:
    graph = capture(workload(lambda: Attention(key_heads=1), lambda: torch.randn(2, 5, 8)))
    assert not [name for name in names(graph) if "scaled_dot_product" in name]
    assert len(named(graph, "bmm", "forward")) == 2
    assert named(graph, "_softmax") or named(graph, "_safe_softmax")


class Convolution(nn.Module):
    """A convolution and every layer whose kernel depends on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.batch = nn.BatchNorm2d(8)
        self.group = nn.GroupNorm(2, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.group(self.batch(self.conv(x))))


@cache
def convolved(precision: Any, channels_last: bool = False, training: bool = True) -> Graph:
    optimizer = torch.optim.SGD if training else None
    batch = lambda: torch.randn(2, 3, 6, 6)  # noqa: E731
    return capture(workload(Convolution, batch, precision=precision, channels_last=channels_last, optimizer=optimizer))


@pytest.mark.parametrize(
    ("precision", "kernel"), [("fp32", "cudnn"), ("amp-fp16", "cudnn"), ("amp-bf16", "native"), ("bf16", "native")]
)
def test_batch_norm_is_cudnns_unless_its_input_is_bf16(precision: Any, kernel: str) -> None:
    graph = convolved(precision)
    assert [name for name in names(graph) if "batch_norm" in name] == [
        f"aten.{kernel}_batch_norm", f"aten.{kernel}_batch_norm_backward",
    ]  # fmt: skip


class Rms(nn.Module):
    def __init__(self, narrow: bool = False) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8, dtype=HALF if narrow else None), nn.RMSNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.linear(x))
        return out


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_rms_norm_is_one_kernel_forward_and_one_backward(precision: Any) -> None:
    """As CUDA runs it and the dataset has it recorded; the CPU's own path takes it apart into two dozen ops."""
    graph = capture(workload(Rms, lambda: torch.randn(4, 8), precision=precision))
    assert [name for name in names(graph) if "rms" in name] == ["aten._fused_rms_norm", "aten._fused_rms_norm_backward"]
    assert not {"aten.rsqrt", "aten.pow"} & set(names(graph))
    kept = next(op for op in graph.ops if op.signature.name == "aten._fused_rms_norm").signature.outputs[1]
    assert (kept.shape, kept.dtype) == ((4, 1), "float32")


def test_rms_norm_with_a_weight_of_another_type_is_taken_apart() -> None:
    graph = capture(workload(lambda: Rms(narrow=True), lambda: torch.randn(4, 8, dtype=HALF), precision="fp32"))
    assert "aten.rsqrt" in names(graph)
    assert "aten._fused_rms_norm" not in names(graph)


class Permuted(nn.Module):
    """Norms of what a convolution wrote, seen with channels last: its gradient comes with strides of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 1), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.convolution(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


def test_the_gradient_of_a_layer_norms_input_is_written_densely() -> None:
    backward = the(capture(workload(Permuted, lambda: torch.randn(2, 3, 4, 4))), "native_layer_norm_backward")
    assert backward.signature.inputs[1].strides != backward.signature.outputs[0].strides
    assert backward.signature.outputs[0].strides == (128, 32, 8, 1)


def test_batch_norm_counts_its_batches() -> None:
    buffers = 8 * 4 * 2 + 8  # running mean and variance, and the number of batches
    weights = (8 * 3 * 9 + 8 + 4 * 8) * 4
    assert convolved("fp32").bytes_of("parameter") == weights + buffers
    assert convolved("fp32").bytes_of("gradient") == weights


def test_dropout_is_one_kernel_that_keeps_a_byte_mask() -> None:
    graph = convolved("fp32")
    drop = the(graph, "native_dropout").signature
    assert [x.dtype for x in drop.outputs] == ["float32", "bool"]
    assert named(graph, "native_dropout_backward")
    assert not named(graph, "bernoulli_")


def test_dropout_does_nothing_in_inference() -> None:
    graph = convolved("fp32", training=False)
    assert not named(graph, "native_dropout")


def test_channels_last_is_kept_from_the_input_to_the_group_norm() -> None:
    graph = convolved("fp32", channels_last=True)
    convolution = the(graph, "convolution").signature
    assert convolution.inputs[0].strides == (108, 1, 18, 3)
    assert convolution.inputs[1].strides == (27, 1, 9, 3)
    assert convolution.outputs[0].strides == (128, 1, 32, 8)
    group = the(graph, "native_group_norm").signature
    assert group.inputs[0].strides == (128, 16, 4, 1)  # only the CPU kernel reads channels-last


def test_group_norm_copies_only_what_is_channels_last() -> None:
    assert len(named(convolved("fp32", channels_last=True), "clone", "forward")) == 1
    assert not named(convolved("fp32"), "clone", "forward")


@pytest.mark.parametrize(
    ("module", "mode"),
    [
        (nn.LSTM, 2), (nn.GRU, 3), (nn.RNN, 1),
    ],
)  # fmt: skip
def test_recurrent_layers_are_one_cudnn_call(module: Any, mode: int) -> None:
    make = lambda: module(8, 6, num_layers=2, bidirectional=True, batch_first=True)  # noqa: E731
    graph = capture(workload(make, lambda: torch.randn(3, 5, 8), loss=lambda model, x: model(x)[0].mean()))
    call = the(graph, "_cudnn_rnn", "forward").signature
    assert call.argument("mode") == mode
    assert call.outputs[0].shape == (3, 5, 12)
    assert len(call.tensors("weight")) == 2 * 2 * 4
    assert named(graph, "_cudnn_rnn_backward", "backward")
    assert graph.bytes_of("gradient") == sum(p.numel() * 4 for p in make().parameters())


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16"])
def test_autocast_runs_recurrent_layers_in_fp16(precision: str) -> None:
    make = lambda: nn.GRU(8, 6, batch_first=True)  # noqa: E731
    graph = capture(
        workload(make, lambda: torch.randn(3, 5, 8), loss=lambda model, x: model(x)[0].mean(), precision=precision)
    )
    call = the(graph, "_cudnn_rnn", "forward").signature
    assert {tensor.dtype for tensor in (*call.inputs, *call.outputs[:2])} == {"float16"}


def test_packed_sequences_are_one_cudnn_call_too() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.lstm = nn.Linear(8, 8), nn.LSTM(8, 6)

        def forward(self, batch: Any) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.linear(batch["x"]), batch["lengths"])
            padded, lengths = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], total_length=7)
            assert padded.shape == (7, 3, 6)
            assert lengths.tolist() == batch["lengths"].tolist()
            return padded

    graph = capture(workload(Packed, lambda: {"x": torch.randn(5, 3, 8), "lengths": torch.tensor([5, 3, 2])}))
    assert the(graph, "_cudnn_rnn").signature.argument("batch_sizes") == (3, 3, 2, 1, 1)
    copies = [
        op.signature.inputs[0].shape for op in graph.ops if op.signature.name == "aten.copy_" and op.phase == "backward"
    ]
    assert copies[-5:] == [(3, 8), (3, 8), (2, 8), (1, 8), (1, 8)]  # gradients of what was packed, place by place


def test_a_transformer_layer_takes_the_same_road_in_inference() -> None:
    """The CPU has a fast path for it, which a GPU step in training does not take; ours is plain operators."""
    make = lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)  # noqa: E731
    graph = capture(workload(make, lambda: torch.randn(2, 5, 16), optimizer=None, precision="bf16"))
    assert "aten._transformer_encoder_layer_fwd" not in names(graph)
    assert named(graph, "_scaled_dot_product_cudnn_attention")


def scaled(x: torch.Tensor, width: int) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.nn.functional.dropout(x @ x.T, 0.5, True)
    return x / torch.sqrt(torch.tensor(width, dtype=torch.float))


def test_functions_are_compiled_by_torch_script_while_the_model_is_built() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.scaled = torch.jit.script(scaled)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(self.linear(x), 8)

    graph = capture(workload(Scripted, lambda: torch.randn(2, 8)))
    assert named(graph, "sqrt", "forward")
    assert the(graph, "mm", "forward").signature.outputs[0].dtype == "bfloat16"
    assert named(graph, "native_dropout", "forward")
    assert not graph.caveats


class Attends(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, mask)


def attends(**settings: Any) -> Graph:
    return capture(workload(Attends, lambda: torch.randn(2, 16, 32), precision="bf16", **settings))


@pytest.mark.parametrize(
    ("asked", "run"),
    [
        (None, "cudnn"), ("cudnn", "cudnn"), ("flash3", "cudnn"), ("flash2", "flash"), ("efficient", "efficient"),
    ],
)  # fmt: skip
def test_the_attention_that_is_asked_for(asked: Any, run: str) -> None:
    graph = attends(attention=asked)
    kernel = f"aten._scaled_dot_product_{run}_attention"
    assert [n for n in names(graph) if "dot_product" in n] == [kernel, f"{kernel}_backward"]
    assert not codes(graph)


def test_written_out_attention_keeps_its_scores() -> None:
    graph = attends(attention="math")
    assert "aten._safe_softmax" in names(graph) or "aten._softmax" in names(graph)
    assert graph.bytes_of("activation") > attends(attention="flash2").bytes_of("activation")


def test_torchs_own_choice_of_kernels_is_followed() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return model(x).float().mean()

    assert "aten._scaled_dot_product_efficient_attention" in names(attends(loss=loss))


def test_attention_that_cannot_be_chosen_is_said() -> None:
    def masked(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x, torch.zeros(16, 16, dtype=x.dtype)).float().mean()

    graph = attends(attention="flash2", loss=masked)
    assert "aten._scaled_dot_product_cudnn_attention" in names(graph)
    assert codes(graph) == {"attention-not-possible"}
    with pytest.raises(WorkloadError, match="nothing calls it"):
        capture(mlp(attention="flash2"))


class Cells(nn.Module):
    """A recurrent cell unrolled over two steps."""

    def __init__(self, cell: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.cell = cell(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        for part in x.unbind(1):
            state = self.cell(part, state)
        out: torch.Tensor = state[0] if isinstance(state, tuple) else state
        return out


@pytest.mark.parametrize(("cell", "kernel"), [(nn.LSTMCell, "lstm"), (nn.GRUCell, "gru")])
def test_a_recurrent_cell_is_two_products_and_one_kernel(cell: Any, kernel: str) -> None:
    graph = capture(workload(lambda: Cells(cell), lambda: torch.randn(2, 2, 8)))
    assert len(named(graph, f"_thnn_fused_{kernel}_cell")) == 2
    assert len([name for name in names(graph) if name.startswith(f"aten._thnn_fused_{kernel}_cell_backward")]) == 2
    assert len(named(graph, "mm", "forward")) == 4
    assert not {"aten.sigmoid", "aten.sigmoid_", "aten.tanh"} & set(names(graph))


class Sampled(nn.Module):
    def __init__(self, align_corners: bool) -> None:
        super().__init__()
        self.places, self.align_corners = nn.Parameter(torch.randn(2, 5, 5, 2)), align_corners

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.grid_sample(x, self.places, align_corners=self.align_corners)


@pytest.mark.parametrize(("align_corners", "kernel"), [(True, "cudnn_grid_sampler"), (False, "grid_sampler_2d")])
def test_an_image_is_sampled_by_cudnn_where_it_can(align_corners: bool, kernel: str) -> None:
    graph = capture(workload(lambda: Sampled(align_corners), lambda: torch.randn(2, 3, 8, 8)))
    assert the(graph, kernel).signature.outputs[0].shape == (2, 3, 5, 5)
    assert the(graph, f"{kernel}_backward")


@pytest.mark.parametrize(
    ("shape", "norm", "kernel"),
    [((4, 8), nn.BatchNorm1d, "native"), ((4, 8, 5), nn.BatchNorm1d, "cudnn"), ((4, 8, 5, 5), nn.BatchNorm2d, "cudnn")],
)
def test_rows_of_features_are_not_normalized_by_cudnn(shape: tuple[int, ...], norm: Any, kernel: str) -> None:
    graph = capture(workload(lambda: norm(8), lambda: torch.randn(shape)))
    assert the(graph, f"{kernel}_batch_norm")
    assert the(graph, f"{kernel}_batch_norm_backward")


@pytest.mark.parametrize(
    ("norm", "name", "shape", "kept"),
    [
        (lambda: nn.BatchNorm2d(8), "native_batch_norm", (4, 8, 5, 5), (8,)),
        (lambda: nn.LayerNorm(8), "native_layer_norm", (4, 6, 8), (4, 6, 1)),
    ],
)
def test_statistics_of_half_types_are_kept_in_fp32(norm: Any, name: str, shape: Any, kept: Any) -> None:
    made = the(capture(workload(norm, lambda: torch.randn(shape), precision="bf16")), name).signature.outputs
    assert [(x.dtype, x.shape) for x in made] == [("bfloat16", shape), ("float32", kept), ("float32", kept)]


class Shared(nn.Module):
    """Heads that share one key and value."""

    def __init__(self, grouped: bool) -> None:
        super().__init__()
        self.linear, self.grouped = nn.Linear(64, 64), grouped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, shared = self.linear(x).unflatten(-1, (4, 16)).transpose(1, 2), x[..., :16].unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(query, shared, shared, enable_gqa=self.grouped)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_fused_kernel_shares_keys_only_when_asked(grouped: bool) -> None:
    graph = capture(workload(lambda: Shared(grouped), lambda: torch.randn(2, 8, 64), precision="bf16"))
    assert bool(named(graph, "_scaled_dot_product_cudnn_attention")) == grouped
    assert bool(named(graph, "bmm")) == (not grouped)


def test_a_mask_becomes_a_bias_of_two_numbers() -> None:
    def attend(model: Any, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(8, 8, dtype=torch.bool)
        return nn.functional.scaled_dot_product_attention(model(x), x, x, attn_mask=mask).mean()

    graph = capture(workload(lambda: nn.Linear(16, 16), lambda: torch.randn(2, 4, 8, 16), loss=attend))
    assert len(named(graph, "scalar_tensor")) == 2


def test_autocast_casts_what_this_version_of_torch_casts() -> None:
    assert casts_on_cuda(torch.ops.aten.layer_norm.default)
    assert casts_on_cuda(torch.ops.aten.lstm.input)  # inside its own kernel
    assert not casts_on_cuda(torch.ops.aten.relu.default)
