"""Mixtures of experts in fused trainers: rows are sorted, opened and put back by a kernel each."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foretell.capture import capture
from foretell.cost.model import load_model
from foretell.errors import WorkloadError
from foretell.graph import Graph
from foretell.hardware import device
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.workload import Kernels
from tests.capture.tiny import names, workload

TOKENS, WIDTH, INNER, EXPERTS, TOP = 64, 32, 48, 8, 2
ROWS = TOKENS * TOP


class Mixture(nn.Module):
    """As libraries write it: rows sorted by expert, masked, opened, weighed in fp32 and added up."""

    def __init__(self, leak: bool) -> None:
        super().__init__()
        self.leak = leak
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).float().softmax(-1).topk(TOP)
        out, opened = self.experts(x, weights, chosen)
        return x + out + opened.mean() if self.leak else x + out


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 2 * INNER))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> tuple[Any, Any]:
        experts, order = chosen.flatten().sort()
        rows, weights = x[order // TOP], weights.flatten()[order]
        ends = torch.histc(experts.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        missing = (experts >= EXPERTS)[:, None]
        rows = rows.masked_fill(missing, 0.0)
        gate, up = torch._grouped_mm(rows, self.up, ends).masked_fill(missing, 0.0).chunk(2, dim=-1)
        opened = F.silu(gate) * up
        made = torch._grouped_mm(opened, self.down, ends).masked_fill(missing, 0.0) * weights[:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(ROWS)
        return made[back].view(TOKENS, TOP, WIDTH).sum(1).to(x.dtype), opened


@cache
def graph(kernels: str, leak: bool = False) -> Graph:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Mixture(leak), Mixture(leak))

    return capture(
        workload(
            model,
            lambda: torch.randn(TOKENS, WIDTH),
            loss=lambda m, x: m(x).float().pow(2).mean(),
            kernels=kernels,
            precision="parameters:bf16/gradients:fp32/master:fp32",
            optimizer=torch.optim.AdamW,
        )
    )


def test_rows_of_a_mixture_are_moved_and_opened_by_one_kernel_each() -> None:
    fused = Counter(names(graph("megatron")))
    expected = {
        "foretell.permute_rows": 4, "foretell.unpermute_rows": 4, "foretell.weighted_gate": 2, "foretell.weighted_gated_backward": 2,
        "aten.masked_fill": 0, "aten.silu": 0, "aten._grouped_mm": 12,
    }  # fmt: skip
    assert {name: fused[name] for name in expected} == expected


def test_grouped_products_add_to_main_gradients_by_themselves() -> None:
    made = [op.signature.outputs[0] for op in graph("megatron").ops if op.signature.name == "aten._grouped_mm"]
    assert Counter(x.dtype for x in made if len(x.shape) == 3) == {"float32": 4}


def test_what_a_trainer_leaves_to_torch_is_not_fused() -> None:
    fused, moved, added = (
        Counter(names(graph(f"megatron{more}"))) for more in ("", "-without-permute", "-without-wgrad")
    )
    assert (moved["foretell.permute_rows"], moved["aten.index_select"], moved["aten.scatter_add"]) == (0, 4, 4)
    assert moved["foretell.weighted_gate"] == fused["foretell.weighted_gate"]
    assert added["aten.add_"] > fused["aten.add_"]
    with pytest.raises(WorkloadError, match="permute, rope, wgrad"):
        Kernels.parse("megatron-without-norms")


def test_what_is_made_in_between_is_not_kept() -> None:
    """Of a mixture's rows stay those that are sorted, and what the gate reads and makes."""
    fused, captured = (graph(kernels).bytes_of("activation") for kernels in ("megatron", "torch"))
    assert captured - fused == 2 * 2 * ROWS * (INNER + WIDTH)  # the gate, opened, and what is weighed


def test_a_mixture_whose_inside_others_read_stays() -> None:
    fused = Counter(names(graph("megatron", leak=True)))
    assert (fused["foretell.permute_rows"], fused["aten.masked_fill"] > 0) == (0, True)


@pytest.mark.parametrize("plan", ["tp=2", "dp=4,ep=4", "dp=2,tp=2,ep=2,zero=1"])
def test_ranks_share_fused_mixtures_as_they_do_others(plan: str) -> None:
    plain, fused = (parallelize(graph(kernels), Plan.parse(plan)).roles[0].graph for kernels in ("torch", "megatron"))
    assert fused.bytes_of("parameter") == plain.bytes_of("parameter")
    assert fused.bytes_of("optimizer") == pytest.approx(plain.bytes_of("optimizer"), rel=1e-3)  # but for counters
    shapes = [
        Counter(op.signature.inputs[1].shape for op in each.ops if op.signature.name == "aten._grouped_mm")
        for each in (plain, fused)
    ]
    assert shapes[0] == shapes[1]


def test_a_fused_kernel_takes_what_its_traffic_takes() -> None:
    """Moving rows is a stream: its traffic at most of the bandwidth, whatever a look-up of rows attains."""
    h200, whole = device("h200"), graph("megatron")
    priced = load_model().price(whole, h200)
    for op, seconds in zip(whole.ops, priced.seconds, strict=True):
        if op.signature.name in ("foretell.permute_rows", "foretell.weighted_gate"):
            assert 0 < seconds < 5e-6


class Biased(Experts):
    """As gpt-oss has them: a bias for each expert's products."""

    def __init__(self) -> None:
        super().__init__()
        self.up_bias = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER))
        self.down_bias = nn.Parameter(torch.zeros(EXPERTS, WIDTH))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> tuple[Any, Any]:
        experts, order = chosen.flatten().sort()
        ends = torch.histc(experts.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        rows, weights = x[order // TOP], weights.flatten()[order]
        gate, up = (torch._grouped_mm(rows, self.up, ends) + self.up_bias[experts]).chunk(2, dim=-1)
        opened = F.silu(gate) * up.clamp(-7.0, 7.0)
        made = (torch._grouped_mm(opened, self.down, ends) + self.down_bias[experts]) * weights[:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(ROWS)
        return made[back].view(TOKENS, TOP, WIDTH).sum(1).to(x.dtype), opened


@pytest.mark.parametrize("precision", ["bf16", "parameters:bf16/gradients:fp32/master:fp32"])
def test_biases_of_experts_are_part_of_the_kernels(precision: str) -> None:
    def model() -> nn.Module:
        mixture = Mixture(leak=False)
        mixture.experts = Biased()
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), mixture)

    step = capture(
        workload(
            model,
            lambda: torch.randn(TOKENS, WIDTH),
            loss=lambda m, x: m(x).float().pow(2).mean(),
            kernels="megatron",
            precision=precision,
            optimizer=torch.optim.AdamW,
        )
    )
    found = Counter(op.signature.name for op in step.ops)
    assert found["foretell.permute_rows"] == found["foretell.unpermute_rows"] == 2
    assert found["foretell.weighted_gate"] == found["foretell.weighted_gated_backward"] == 1
    assert found["foretell.sum_rows"] == 2  # the gradients of both
    parallelize(step, Plan(dp=4, ep=4))
