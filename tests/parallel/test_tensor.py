"""Tensor parallelism from the graph: products shrink, memory shrinks, what cannot be shared is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from foretell import Workload, forecast
from foretell.capture import capture
from foretell.cost.flops import total_flops
from foretell.errors import PlanError
from foretell.graph import Graph, Storage
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.simulate.memory import replay

from .models import Attention, Mlp, graph


@pytest.mark.parametrize(("family", "least"), [("vit", 0.45), ("llama", 0.48)])
@pytest.mark.parametrize("sequence", [False, True])
def test_two_ranks_share_the_products(family: str, least: float, sequence: bool) -> None:
    whole = graph(family)
    split = parallelize(whole, Plan(tp=2, sequence_parallel=sequence)).roles[0].graph
    assert least <= total_flops(split) / total_flops(whole) <= 0.56
    assert len(split.ops) == len(whole.ops)
    for purpose in ("parameter", "gradient", "optimizer"):
        assert split.bytes_of(purpose) < 0.62 * whole.bytes_of(purpose)


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
@pytest.mark.parametrize("family", ["vit", "llama"])
def test_it_is_found_in_every_precision(family: str, precision: str) -> None:
    whole = graph(family, precision=precision)
    split = parallelize(whole, Plan(tp=2)).roles[0].graph
    assert total_flops(split) <= 0.56 * total_flops(whole)


def test_along_the_sequence_activations_shrink_too() -> None:
    alone, with_sequence = (
        replay(parallelize(graph("llama"), Plan(tp=2, sequence_parallel=s)).roles[0].graph).peak_allocated
        for s in (False, True)
    )
    assert with_sequence < alone


def test_what_is_gathered_along_the_sequence_is_dropped_with_what_is_recomputed() -> None:
    """And gathered again, as torch's checkpoint gathers it; so parts of the sequence never take more than all of it."""
    plain, scattered = (
        parallelize(graph("llama"), Plan(tp=2, sequence_parallel=s, checkpointing="full")).roles[0]
        for s in (False, True)
    )
    assert _kept(scattered.graph) < _kept(plain.graph)
    once = parallelize(graph("llama"), Plan(tp=2, sequence_parallel=True)).roles[0]
    forward = [
        c for c in once.collectives if c.kind == "all-gather" and once.graph.ops[c.starts_after].phase == "forward"
    ]
    blocks, head = 3, 1
    assert len(forward) == 2 * blocks + head
    gathers = [sum(c.kind == "all-gather" for c in role.collectives) for role in (once, scattered)]
    assert gathers[1] - gathers[0] == 2 * blocks


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_megatron_keeps_a_ranks_own_rows_and_gathers_them_again(checkpointing: str) -> None:
    plan = Plan(tp=2, sequence_parallel=True, checkpointing=checkpointing)
    torchs, megatrons = (parallelize(graph("llama", kernels=k), plan).roles[0] for k in ("torch", "megatron"))
    assert all(c.waited_for_by > c.starts_after for c in megatrons.collectives)
    gathers = [sum(c.kind == "all-gather" for c in role.collectives) for role in (torchs, megatrons)]
    blocks, head = 3, 1
    assert gathers[1] - gathers[0] == 2 * blocks + head
    whole = 2 * 16 * 32 * 4  # samples, tokens, features in fp32
    recomputed = blocks if checkpointing == "full" else 0
    assert _kept(torchs.graph) - _kept(megatrons.graph) >= (2 * (blocks - recomputed) + head) * whole // 2


def test_heads_that_do_not_divide_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(
        PlanError, match=r"tp=3 cannot share layers.0.attention.q of 'llama': .* is not a multiple of 3"
    ):
        parallelize(graph("llama"), Plan(tp=3))


def test_ranks_share_a_head_of_keys_where_there_are_too_few() -> None:
    class Grouped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = {"q": (32, 32), "k": (32, 8), "v": (32, 8), "out": (32, 32)}
            for name, (a, b) in widths.items():
                setattr(self, name, torch.nn.Linear(a, b, bias=False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            found = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return x + self.out(found.transpose(1, 2).flatten(2))

    whole = capture(
        Workload(
            name="grouped", model=Grouped, batch=lambda: torch.randn(2, 8, 32), precision="bf16",
            loss=lambda model, x: model(x).float().square().mean(), optimizer=lambda params: torch.optim.AdamW(params),
        )
    )  # fmt: skip
    graph_of_rank = parallelize(whole, Plan(tp=4)).roles[0].graph  # 8 heads of queries, 2 of keys and values
    products = [
        op.signature.inputs[-1].shape
        for op in graph_of_rank.ops
        if op.signature.name == "aten.mm" and op.phase == "forward"
    ]
    assert products == [(32, 8), (32, 4), (32, 4), (8, 32)]
    quarter, half = (32 * 32 + 32 * 32) * 2 // 4, (32 * 8 + 32 * 8) * 2 // 2
    for purpose in ("parameter", "gradient"):
        assert graph_of_rank.bytes_of(purpose) == quarter + half


def test_replicas_reduce_their_parts_of_the_gradients() -> None:
    whole = parallelize(graph("llama"), Plan(dp=2)).roles[0]
    shared = parallelize(graph("llama"), Plan(dp=2, tp=2)).roles[0]
    gradients = [sum(c.nbytes for c in role.collectives if c.lane == "dp") for role in (whole, shared)]
    assert gradients[1] < 0.55 * gradients[0]
    assert {c.group.stride for c in shared.collectives if c.lane == "dp"} == {2}
    assert {c.group.stride for c in shared.collectives if c.lane == "tp"} == {1}


def test_it_is_priced_by_whatever_prices_ops() -> None:
    alone = forecast(graph("llama"), on="h100-sxm", model="roofline")
    shared = forecast(graph("llama"), on="2xh100-sxm", plan="tp=2", model="roofline")
    assert shared.device_time.seconds < alone.device_time.seconds
    assert shared.network.sent_bytes > 0
    assert shared.memory.allocated < alone.memory.allocated


def test_teachers_logits_in_the_batch_have_no_product_before_them() -> None:
    distilled = Workload(
        name="distilled",
        model=lambda: torch.nn.Sequential(Mlp(16), torch.nn.Linear(16, 100)),
        batch=lambda: {"x": torch.randn(4, 8, 16), "teacher": torch.randn(4, 8, 100)},
        loss=lambda model, b: F.kl_div(
            F.log_softmax(model(b["x"]).view(-1, 100), -1),
            F.log_softmax(b["teacher"].view(-1, 100), -1),
            log_target=True,
        ),
        optimizer=lambda p: torch.optim.SGD(p),
    )
    assert forecast(distilled, on="2xh100-sxm", plan="tp=2", model="roofline").network.sent_bytes > 0


class Cached(Attention):
    """Keys and values join a cache that is empty, as in every first forward pass of transformers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (torch.cat([torch.tensor([]), t], dim=-2) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


def test_heads_are_shared_beside_an_empty_cache() -> None:
    cached = Workload(
        name="cached",
        model=lambda: Cached(64, 8, 4, causal=True, bias=False),
        batch=lambda: torch.randn(1, 16, 64),
        loss=lambda model, b: model(b).sum(),
        optimizer=lambda p: torch.optim.AdamW(p),
    )
    whole = capture(cached)
    split = parallelize(whole, Plan(tp=4)).roles[0].graph
    assert total_flops(split) == total_flops(whole) / 4


class Latent(torch.nn.Module):
    """Queries and keys made from narrow latents, each normed: attention as DeepSeek has it."""

    def __init__(self) -> None:
        super().__init__()
        self.to_queries, self.to_keys = (torch.nn.Linear(32, 16, bias=False) for _ in range(2))
        self.queries, self.keys, self.out = (
            torch.nn.Linear(a, b, bias=False) for a, b in ((16, 32), (16, 64), (32, 32))
        )
        self.scale = torch.nn.Parameter(torch.ones(16))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.queries(self.norm(self.to_queries(x))).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.keys(self.norm(self.to_keys(x))).unflatten(-1, (4, 16)).transpose(1, 2).split(8, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_heads_made_from_latents_are_shared_and_the_latents_are_not() -> None:
    whole = capture(
        Workload(
            name="latent", model=Latent, batch=lambda: torch.randn(2, 8, 32), loss=lambda model, x: model(x).square().mean(),
            optimizer=lambda parameters: torch.optim.AdamW(parameters),
        )
    )  # fmt: skip
    role = parallelize(whole, Plan(tp=2)).roles[0]
    products = [
        op.signature.inputs[-1].shape
        for op in role.graph.ops
        if op.signature.name == "aten.mm" and op.phase == "forward"
    ]
    assert products == [(32, 16), (16, 16), (32, 16), (16, 32), (16, 32)]
    sums = [c.nbytes for c in role.collectives if c.lane == "tp"]
    assert sums[0] == 2 * 8 * 32 * 4  # after the last product, of whole rows
    assert sorted(sums[1:]) == [2 * 8 * 16 * 4] * 2  # on the way back, of the latents


@pytest.mark.parametrize("sequence", [False, True])
def test_what_is_communicated_can_run_beside_products(sequence: bool) -> None:
    plain, beside = (
        parallelize(graph("llama"), Plan(tp=2, sequence_parallel=sequence, overlap_tp=way)).roles[0]
        for way in (False, True)
    )
    room = [sum(c.waited_for_by - c.starts_after for c in role.collectives) for role in (plain, beside)]
    assert room[1] > room[0]  # ops that they may run beside
    assert sorted(c.nbytes for c in plain.collectives) == sorted(c.nbytes for c in beside.collectives)
    with pytest.raises(PlanError, match="tp=1 has none"):
        parallelize(graph("llama"), Plan(dp=2, overlap_tp=True))


@pytest.mark.parametrize("plan", ["dp=4,tp=2", "dp=2,cp=2,tp=2", "dp=2,pp=2,tp=2,zero=1"])
def test_a_replica_that_is_known_from_fewer_devices_is_as_if_it_was_not(plan: str) -> None:
    asked, whole = Plan.parse(plan), graph("llama")
    fresh = parallelize(replace(whole), asked).roles
    again = replace(whole)
    parallelize(again, replace(asked, dp=1, zero=0))
    known = parallelize(again, asked).roles
    assert [r.collectives for r in known] == [r.collectives for r in fresh]
    assert [r.count for r in known] == [r.count for r in fresh]
    assert any(c.lane in ("tp", "cp") for r in known for c in r.collectives)


@pytest.mark.parametrize(
    "plan",
    [
        "dp=2,tp=2,sequence_parallel=true,checkpointing=full",
        "dp=4,zero=3",
        "dp=2,cp=2,zero=1",
        "dp=4,checkpointing=selective",
    ],
)
def test_any_number_of_micro_steps_is_cut_once(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Plan.parse(f"{plan},grad_accumulation=7")
    quick = parallelize(graph("llama"), asked)
    monkeypatch.setattr("foretell.parallel.MARKED", 1000)  # cut for this number alone
    anew = parallelize(replace(graph("llama")), asked)
    assert quick.roles == anew.roles
    assert {op.times for op in quick.roles[0].graph.ops} == {1, 6}


def _kept(graph: Graph) -> int:
    """Bytes that the forward pass leaves for the backward pass."""
    return sum(s.nbytes for s in graph.storages if s.role == "activation" and _crosses(graph, s))


def _crosses(graph: Graph, storage: Storage) -> bool:
    first = next(i for i, op in enumerate(graph.ops) if op.phase == "backward")
    return 0 <= storage.born < first <= storage.freed
