"""Latents in fused trainers: queries and keys are put together by a kernel each, and scores of routers need no fp32 copies."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foretell.capture import capture
from foretell.graph import Graph
from foretell.parallel import parallelize
from foretell.plans import Plan
from tests.capture.tiny import names, workload

TOKENS, HEADS, PLAIN, TURNED, VALUE, WIDTH = 32, 4, 16, 8, 16, 64


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), dim=-1)


class Attention(nn.Module):
    """Multi-head latent attention, as libraries write it."""

    def __init__(self) -> None:
        super().__init__()
        self.squeezed, self.norms = nn.Linear(WIDTH, 32, bias=False), nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.queries = nn.Linear(32, HEADS * (PLAIN + TURNED), bias=False)
        self.latents = nn.Linear(WIDTH, 32 + TURNED, bias=False)
        self.keys = nn.Linear(32, HEADS * (PLAIN + VALUE), bias=False)
        self.out = nn.Linear(HEADS * VALUE, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        q = self.queries(self.norms[0](self.squeezed(x))).view(batch, TOKENS, HEADS, -1).transpose(1, 2)
        plain, position = q.split((PLAIN, TURNED), dim=-1)
        latents, shared = self.latents(x).split((32, TURNED), dim=-1)
        keys, values = (
            self.keys(self.norms[1](latents))
            .view(batch, TOKENS, HEADS, -1)
            .transpose(1, 2)
            .split((PLAIN, VALUE), dim=-1)
        )
        shared = turned(shared.view(batch, 1, TOKENS, TURNED), cos, sin).expand(-1, HEADS, -1, -1)
        q, k = (
            torch.cat((plain, turned(position, cos, sin)), dim=-1),
            keys.new_empty(batch, HEADS, TOKENS, PLAIN + TURNED),
        )
        k[..., :PLAIN], k[..., PLAIN:] = keys, shared
        made = F.scaled_dot_product_attention(q, k, values, is_causal=True)
        return self.out(made.transpose(1, 2).reshape(batch, TOKENS, -1))


class Tables(nn.Module):
    def forward(self, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return angles.cos(), angles.sin()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.tables, self.attention = nn.Embedding(64, WIDTH), Tables(), Attention()
        self.norm, self.head, self.gate = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 64, bias=False),
            nn.Linear(WIDTH, 8, bias=False),
        )
        self.register_buffer("angles", torch.randn(1, 1, TOKENS, TURNED // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(self.embedding(x))
        rows = rows + self.attention(rows, *self.tables(self.angles))
        scores = F.linear(rows.flatten(0, 1).float(), self.gate.weight.float()).sigmoid().topk(2)[0].sum(-1)
        return self.head(rows * scores.view(*x.shape, 1).to(rows.dtype))


@cache
def graph(kernels: str) -> Graph:
    return capture(
        workload(
            Model,
            lambda: torch.randint(64, (2, TOKENS)),
            loss=lambda m, x: F.cross_entropy(m(x).float().flatten(0, 1), x.flatten()),
            kernels=kernels,
            precision="parameters:bf16/gradients:fp32/master:fp32",
            optimizer=torch.optim.AdamW,
        )
    )


def test_queries_and_keys_are_made_by_one_kernel_each() -> None:
    fused = Counter(names(graph("megatron")))
    expected = {"latent_queries": 2, "latent_keys": 1, "latent_keys_backward": 1}
    assert {name: fused[f"foretell.{name}"] for name in expected} == expected
    assert (fused["aten.sub"], fused["aten.clone"]) == (0, 0)


def test_attention_writes_the_rows_of_the_next_product() -> None:
    """Neither a copy of what attention makes nor the parts that queries and keys are put together from are kept."""
    fused, captured = (graph(kernels).bytes_of("activation") for kernels in ("megatron", "torch"))
    rows = 2 * TOKENS
    copied, in_fp32 = 2 * rows * HEADS * VALUE, 4 * rows * WIDTH
    assert captured - fused >= copied + in_fp32


def test_scores_of_a_router_are_products_of_what_is_there() -> None:
    def factors(kernels: str) -> set[tuple[str, ...]]:
        scores = {(2 * TOKENS, 8), (8, WIDTH)}
        found = [op.signature for op in graph(kernels).ops if op.signature.name == "aten.mm"]
        return {tuple(x.dtype for x in s.inputs) for s in found if s.outputs[0].shape in scores}

    assert factors("torch") == {("float32", "float32")}
    assert factors("megatron") == {("bfloat16", "bfloat16")}


@pytest.mark.parametrize("plan", ["tp=2", "cp=2", "tp=2,sequence_parallel=true"])
def test_ranks_share_heads_of_latents_as_before(plan: str) -> None:
    plain, fused = (parallelize(graph(kernels), Plan.parse(plan)).roles[0].graph for kernels in ("torch", "megatron"))
    assert fused.bytes_of("parameter") == plain.bytes_of("parameter")
    shapes = [
        {op.signature.inputs[0].shape for op in each.ops if op.signature.name.endswith("cudnn_attention")}
        for each in (plain, fused)
    ]
    assert shapes[0] == shapes[1]
