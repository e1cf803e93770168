"""FLOPs of captured graphs equal what is derived by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foretell import Workload
from foretell.capture import capture
from foretell.cost.flops import flops, formula, total_flops
from foretell.cost.roofline import seconds_at_peak
from foretell.graph import Graph
from foretell.hardware import device


def captured(model: nn.Module, x: torch.Tensor, *, train: bool = True, precision: str = "bf16") -> Graph:
    return capture(
        Workload(
            name="net", model=lambda: model, batch=lambda: {"x": x}, loss=lambda m, b: m(b["x"]).float().sum(),
            optimizer=(lambda p: torch.optim.SGD(p, lr=0.1)) if train else None, precision=precision,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def of(graph: Graph, operator: str, phase: str | None = None) -> float:
    return sum(flops(op.signature) for op in graph.ops if operator in op.target and phase in (None, op.phase))


@pytest.mark.parametrize("groups", [1, 4])
def test_convolution(groups: int) -> None:
    batch, channels, filters, side, kernel = 2, 16, 32, 14, 3
    net = nn.Sequential(
        nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, filters, kernel, stride=2, padding=1, groups=groups)
    )
    graph = captured(net, torch.randn(batch, channels, side, side))
    first = 2 * batch * channels * side * side * channels
    second = 2 * batch * filters * (side // 2) ** 2 * (channels // groups) * kernel * kernel
    assert of(graph, "convolution", "forward") == first + second
    # The first layer's input needs no gradient: one product there, two in the second layer.
    assert of(graph, "convolution_backward") == first + 2 * second


def test_transposed_convolution() -> None:
    graph = captured(nn.ConvTranspose2d(8, 24, 4, stride=2, padding=1), torch.randn(2, 8, 10, 10), train=False)
    assert total_flops(graph) == 2 * (2 * 8 * 10 * 10) * 24 * 4 * 4


class Attention(nn.Module):
    def __init__(self, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        self.q = nn.Linear(64, heads * width, bias=False)
        self.kv = nn.Linear(64, 2 * kv_heads * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, self.heads, self.width).transpose(1, 2)
        k, v = self.kv(x).view(b, s, 2, self.kv_heads, self.width).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)


@pytest.mark.parametrize(("kv_heads", "precision"), [(8, "bf16"), (2, "bf16"), (8, "fp32")])
def test_attention_counts_every_query_head_against_every_key(kv_heads: int, precision: str) -> None:
    batch, seq, heads, width = 2, 128, 8, 32
    graph = captured(Attention(heads, kv_heads, width), torch.randn(batch, seq, 64), precision=precision)
    scores = 2 * batch * heads * seq * seq * width
    assert of(graph, "scaled_dot_product", "forward") == 2 * scores
    assert of(graph, "scaled_dot_product", "backward") == 5 * scores
    assert of(graph, "mm", "forward") == 2 * batch * seq * 64 * (heads + 2 * kv_heads) * width


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 40, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def test_lstm() -> None:
    batch, seq, into, hidden = 3, 11, 24, 40
    graph = captured(Recurrent(), torch.randn(batch, seq, into), precision="fp32")
    gates, directions = 4, 2
    first = 2 * batch * seq * directions * gates * hidden * (into + hidden)
    second = 2 * batch * seq * directions * gates * hidden * (directions * hidden + hidden)
    assert of(graph, "_cudnn_rnn", "forward") == first + second
    assert of(graph, "_cudnn_rnn_backward") == 2 * (first + second)


class Experts(nn.Module):
    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)) for _ in range(experts)
        )
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            out = out.index_add(0, token, expert(x[token]) * weights[token, slot, None])
        return out


def test_mixture_of_experts_runs_each_token_through_the_chosen_experts() -> None:
    tokens, width, inner, experts, chosen = 512, 32, 64, 4, 2
    graph = captured(Experts(width, inner, experts, chosen), torch.randn(tokens, width), train=False, precision="fp32")
    routing = 2 * tokens * width * experts
    assert total_flops(graph) == routing + 2 * tokens * chosen * width * inner * 2
    assert any(c.code == "assumed-values" for c in graph.caveats)


def test_gradient_accumulation_multiplies_the_work() -> None:
    def workload(accumulation: int) -> Workload:
        return Workload(
            name="mlp", model=lambda: nn.Linear(32, 64, bias=False), batch=lambda: {"x": torch.randn(8, 32)},
            loss=lambda m, b: m(b["x"]).sum(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), grad_accumulation=accumulation,
        )  # fmt: skip

    product = 2 * 8 * 32 * 64
    for accumulation in (1, 2, 7):
        graph = capture(workload(accumulation))
        assert total_flops(graph) == accumulation * 2 * product  # the input needs no gradient
        assert math.isclose(graph.grad_accumulation, accumulation)


def test_registering_a_formula_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"aten\.mm is registered already"):
        formula("aten.mm")(lambda s: 0.0)


def test_what_the_device_does_not_run_is_no_use_of_it() -> None:
    """In a damaged file a product may claim to be a view: it takes no time, so it must not count as use of the peak."""
    graph, h200 = captured(nn.Linear(512, 512, bias=False), torch.randn(256, 512)), device("h200")
    tensors = list(graph.tensors)
    for op in graph.ops:
        if flops(op.signature):
            for i in op.outputs:
                tensors[i] = replace(tensors[i], storage=tensors[op.inputs[0]].storage)
    assert seconds_at_peak(graph, h200) > 0
    assert seconds_at_peak(replace(graph, tensors=tuple(tensors)), h200) == 0
