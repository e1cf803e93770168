"""Expert parallelism on a mixture written with torch's grouped product."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from foretell import Conditions, forecast
from foretell.capture import capture
from foretell.cost.collectives import collective_seconds, sent_once
from foretell.cost.flops import total_flops
from foretell.errors import PlanError
from foretell.forecasting.communication import Collectives
from foretell.forecasting.experts import busiest
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.program import Collective, Group
from foretell.simulate.jitter import slowest_of
from foretell.workload import Workload

from .models import graph

EXPERTS, WIDTH, INNER, ROWS = 8, 32, 64, 128


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        order = chosen.argsort()
        ends = torch.histc(chosen.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        inner = torch._grouped_mm(x[order], self.up, ends).relu()
        return x + torch._grouped_mm(inner, self.down, ends) * weight[:, None]


@cache
def mixture() -> Graph:
    return capture(Workload(
        name="mixture", model=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Mixture() for _ in range(2)), nn.Linear(WIDTH, 16)),
        precision="bf16",
        batch=lambda: {"x": torch.randn(ROWS, WIDTH), "y": torch.randint(16, (ROWS,))},
        loss=lambda model, b: nn.functional.cross_entropy(model(b["x"]), b["y"]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    ))  # fmt: skip


def test_rows_travel_to_the_experts_and_back_twice() -> None:
    role = parallelize(mixture(), Plan(dp=8, ep=4)).roles[0]
    journeys = [c for c in role.collectives if c.kind == "all-to-all"]
    assert len(journeys) == 2 * 4  # layers, and there and back on each of two passes
    assert {(c.nbytes, c.group.size) for c in journeys} == {(ROWS * WIDTH * 2, 4)}


def test_each_rank_holds_its_experts() -> None:
    whole, role = mixture(), parallelize(mixture(), Plan(dp=8, ep=4)).roles[0]
    experts = 2 * 2 * EXPERTS * WIDTH * INNER * 2
    for purpose, copies in (("parameter", 1), ("gradient", 1), ("optimizer", 2)):
        saved = whole.bytes_of(purpose) - role.graph.bytes_of(purpose)
        assert saved == copies * experts * 3 // 4
    assert total_flops(role.graph) == pytest.approx(total_flops(whole), rel=0.01)  # as many rows come as go


def test_experts_are_reduced_among_those_who_hold_the_same() -> None:
    role = parallelize(mixture(), Plan(dp=8, ep=4)).roles[0]
    groups = {
        c.name.endswith("of experts"): (c.group.size, c.group.stride)
        for c in role.collectives
        if c.kind == "all-reduce"
    }
    assert groups == {False: (8, 1), True: (2, 4)}
    alone = parallelize(mixture(), Plan(dp=8, ep=8)).roles[0]
    assert not any("experts" in c.name for c in alone.collectives if c.kind == "all-reduce")


def test_what_cannot_be_shared_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(PlanError, match="8 is not a multiple of 3"):
        parallelize(mixture(), Plan(dp=3, ep=3))
    with pytest.raises(PlanError, match="no grouped products"):
        parallelize(graph("llama"), Plan(dp=2, ep=2))
    with pytest.raises(PlanError, match="ep=2 with hybrid_shard=2 is not modelled"):
        parallelize(mixture(), Plan(dp=4, ep=2, zero=3, hybrid_shard=2))


def test_tensor_parallel_ranks_share_every_expert() -> None:
    whole, role = mixture(), parallelize(mixture(), Plan(tp=2)).roles[0]
    products = [op.signature for op in role.graph.ops if op.signature.name == "aten._grouped_mm"]
    shapes = {signature.inputs[1].shape for signature in products if len(signature.inputs[1].shape) == 3}
    assert shapes >= {(EXPERTS, WIDTH, INNER // 2), (EXPERTS, INNER // 2, WIDTH)}
    experts = 2 * 2 * EXPERTS * WIDTH * INNER * 2
    assert whole.bytes_of("parameter") - role.graph.bytes_of("parameter") >= experts // 2
    assert whole.bytes_of("optimizer") - role.graph.bytes_of("optimizer") >= experts
    sums = [c for c in role.collectives if c.group.size == 2 and c.nbytes == ROWS * WIDTH * 2]
    assert len(sums) >= 2 * 2  # per layer: of rows on the way there, of their gradients on the way back


def test_experts_and_tensor_parallel_ranks_divide_them_twice() -> None:
    experts = 2 * 2 * EXPERTS * WIDTH * INNER * 2
    shared = parallelize(mixture(), Plan(tp=2)).roles[0].graph
    both = parallelize(mixture(), Plan(dp=4, tp=2, ep=4)).roles[0].graph
    assert shared.bytes_of("parameter") - both.bytes_of("parameter") == experts // 2 * 3 // 4


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_is_sharded_of_experts_is_sharded_among_those_who_hold_the_same(zero: int) -> None:
    """8 ranks with 4 groups of experts: a rank keeps an eighth of everything, experts or not."""
    whole, role = mixture(), parallelize(mixture(), Plan(dp=8, ep=4, zero=zero)).roles[0]
    assert role.graph.bytes_of("optimizer") == pytest.approx(whole.bytes_of("optimizer") / 8, rel=0.05)
    groups = {(c.group.size, c.group.stride) for c in role.collectives if c.kind == "reduce-scatter"}
    assert groups == {(8, 1), (2, 4)}
    rows = 2 * 2 * EXPERTS * WIDTH * INNER * 2 // 4  # experts that a rank holds
    scattered = sum(c.nbytes for c in role.collectives if c.kind == "reduce-scatter" and c.group.size == 2)
    assert scattered == rows
    forecast(mixture(), on="8xh100-sxm", plan=f"dp=8,ep=4,zero={zero}", model="roofline")


def test_experts_on_one_rank_alone_are_not_sharded() -> None:
    role = parallelize(mixture(), Plan(dp=8, ep=8, zero=3)).roles[0]
    assert {c.group.size for c in role.collectives if c.kind != "all-to-all"} == {8}
    experts = 2 * 2 * EXPERTS * WIDTH * INNER * 2 // 8
    assert role.graph.bytes_of("optimizer") >= 2 * experts


@cache
def mixture_of_sequences() -> Graph:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.mixture, self.head = nn.Embedding(64, WIDTH), Mixture(), nn.Linear(WIDTH, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.mixture(self.table(x).flatten(0, 1)))

    return capture(Workload(
        name="mixture of sequences", model=Model, precision="bf16",
        batch=lambda: {"x": torch.randint(64, (4, 32)), "y": torch.randint(64, (4, 32))},
        loss=lambda model, b: nn.functional.cross_entropy(model(b["x"]).float(), b["y"].flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    ))  # fmt: skip


def test_ranks_that_share_sequences_route_their_own_rows() -> None:
    whole, role = mixture_of_sequences(), parallelize(mixture_of_sequences(), Plan(cp=2)).roles[0]
    assert total_flops(role.graph) == pytest.approx(total_flops(whole) / 2)
    assert role.graph.bytes_of("activation") == pytest.approx(whole.bytes_of("activation") / 2, rel=0.02)
    assert role.graph.bytes_of("parameter") == whole.bytes_of("parameter")
    assert sum(c.nbytes for c in role.collectives if c.lane == "dp") == whole.bytes_of("gradient")
    forecast(whole, on="8xh100-sxm", plan="dp=2,cp=2,tp=2,ep=4,zero=1", model="roofline")


class Block(nn.Module):
    """A dense layer and a mixture, with norms that keep tokens apart."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.up, self.down, self.mixture = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH), Mixture()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(self.up(self.norms[0](x)).relu())
        return self.norms[2](x + self.mixture(self.norms[1](x).flatten(0, 1)).view_as(x))


@cache
def mixture_of_tokens(batch: int) -> Graph:
    return capture(Workload(
        name="mixture of tokens", model=lambda: nn.Sequential(nn.Embedding(64, WIDTH), Block(), nn.Linear(WIDTH, 64)), precision="bf16",
        batch=lambda: {"x": torch.randint(64, (batch, ROWS // batch)), "y": torch.randint(64, (batch, ROWS // batch))},
        loss=lambda model, b: nn.functional.cross_entropy(model(b["x"]).float().flatten(0, 1), b["y"].flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    ))  # fmt: skip


@pytest.mark.parametrize("batch", [1, 4])
def test_ranks_that_share_a_sequence_send_the_rows_of_their_tokens(batch: int) -> None:
    """As Megatron divides them: each rank sends its part to the experts, where the ranks that share them gather it."""
    rows = ROWS * WIDTH * 2
    graph = mixture_of_tokens(batch)
    for tp in (1, 2, 4):
        plan = Plan(dp=4, tp=tp, ep=4, sequence_parallel=tp > 1)
        found = parallelize(graph, plan).roles[0].collectives
        assert {(c.nbytes, c.group.stride) for c in found if c.kind == "all-to-all"} == {(rows // tp, tp)}
        gathers = [c.kind for c in found if c.lane == "ep" and c.nbytes == rows and c.kind != "all-to-all"]
        assert gathers == (["all-gather", "reduce-scatter"] * 2 if tp > 1 else [])


def test_ranks_of_tensor_parallelism_may_have_experts_of_their_own() -> None:
    graph, rows = mixture_of_tokens(1), ROWS * WIDTH * 2
    role = parallelize(graph, Plan(dp=2, tp=4, ep=8, etp=1, sequence_parallel=True)).roles[0]
    journeys = [c for c in role.collectives if c.lane == "ep"]
    assert {(c.kind, c.nbytes, c.group.size, c.group.stride) for c in journeys} == {("all-to-all", rows // 4, 8, 1)}
    shapes = {op.signature.inputs[1].shape for op in role.graph.ops if op.signature.name == "aten._grouped_mm"}
    assert shapes >= {(1, WIDTH, INNER), (1, INNER, WIDTH)}
    same = parallelize(graph, Plan(dp=2, tp=4, ep=2, etp=1, sequence_parallel=True)).roles[0]
    reduced = {(c.group.size, c.group.stride) for c in same.collectives if c.name.endswith("of experts")}
    assert reduced == {(4, 2)}


def test_rows_that_arrive_for_several_experts_are_sorted_there() -> None:
    rows = ROWS * WIDTH * 2
    for ep, copied in ((2, rows), (8, 0)):
        found = parallelize(mixture(), Plan(dp=8, ep=ep)).roles[0].collectives
        assert {c.copied_in + c.copied_out for c in found if c.kind == "all-to-all"} == {copied}


def test_tokens_that_are_sent_once_cross_between_nodes_once() -> None:
    """Eight rows of a token, on four nodes: a node gets it once, so a third of the rows' bytes leave."""
    plain = Collective(
        kind="all-to-all", nbytes=2**28, group=Group(size=32), name="rows", starts_after=0, waited_for_by=1
    )
    once, cluster = replace(plain, choices=8), Cluster.parse("4x8xh100-sxm")
    assert sent_once(8, 4) == pytest.approx(4 * (1 - 0.75**8) / 8)
    assert (sent_once(1, 4), sent_once(8, 10**6)) == (1.0, pytest.approx(1.0, abs=1e-4))
    ratio = collective_seconds(once, cluster) / collective_seconds(plain, cluster)
    assert ratio == pytest.approx(sent_once(8, 4), rel=0.15)
    role = parallelize(mixture_of_tokens(1), Plan(dp=4, ep=4, dispatch="deepep")).roles[0]
    assert {c.choices for c in role.collectives if c.kind == "all-to-all"} == {1}  # its tokens have one expert each
    with pytest.raises(PlanError, match="ep=1 has none"):
        Plan(dp=4, dispatch="deepep")


def test_experts_of_their_own_need_tokens_of_their_own() -> None:
    with pytest.raises(PlanError, match="needs sequence_parallel=true"):
        Plan(tp=2, etp=1)
    with pytest.raises(PlanError, match="etp=2 must be 1 or tp=4"):
        Plan(tp=4, etp=2, sequence_parallel=True)
    with pytest.raises(PlanError, match="ep=3 must divide dp × cp × tp = 2 × 1 × 2 = 4"):
        Plan(dp=2, tp=2, ep=3, etp=1, sequence_parallel=True)


def test_a_forecast_says_that_routing_is_taken_as_even() -> None:
    answer = forecast(mixture(), on="8xh100-sxm", plan="dp=8,ep=8", model="roofline")
    assert "even-routing" in {caveat.code for caveat in answer.caveats}
    assert answer.network.sent_bytes > 0


def test_the_rank_with_the_busiest_experts_holds_the_others_up() -> None:
    even, chance, skewed = (
        forecast(mixture(), on="8x1xh100-sxm@eth-1g", plan="dp=8,ep=8", model="roofline",
                 conditions=Conditions(jitter=0.0, expert_skew=skew))
        for skew in (1.0, None, 3.0)
    )  # fmt: skip
    assert even.device_time.seconds < chance.device_time.seconds < skewed.device_time.seconds
    assert even.exposed_communication.seconds < skewed.exposed_communication.seconds
    assert even.step_time.seconds < chance.step_time.seconds < skewed.step_time.seconds


def test_chance_alone_is_the_largest_share_of_the_rows() -> None:
    role = parallelize(mixture(), Plan(dp=8, ep=8)).roles[0]
    assert busiest(role, None) == pytest.approx(slowest_of(8, (7 / 8 / ROWS) ** 0.5))
    assert busiest(role, 1.5) == 1.5
    assert busiest(parallelize(graph("llama"), Plan(dp=8)).roles[0], 1.5) == 1.0  # nobody shares experts


def test_tokens_of_some_groups_of_experts_go_to_fewer_nodes() -> None:
    any_node, some = sent_once(8, 8) * 8, sent_once(8, 8, (8, 4)) * 8
    assert any_node == pytest.approx(8 * (1 - (7 / 8) ** 8))
    assert some == pytest.approx(4 * (1 - (3 / 4) ** 8))  # a group lies on a node, and four are taken
    assert sent_once(8, 64, (8, 4)) * 8 == pytest.approx(32 * (1 - (31 / 32) ** 8))
    assert sent_once(8, 2, (8, 4)) * 8 == pytest.approx(2, rel=0.05)  # one of two nodes has all four now and then


def test_rows_go_to_experts_in_8_bits_and_come_back_in_full() -> None:
    step = replace(mixture(), tokens=ROWS, facts=replace(mixture().facts, expert_groups=(4, 2)))
    journeys = [
        c
        for c in parallelize(step, Plan(dp=8, ep=4, dispatch="deepep-fp8")).roles[0].collectives
        if c.kind == "all-to-all"
    ]
    there = {c.nbytes for c in journeys if " to experts" in c.name}
    back = {c.nbytes for c in journeys if " from experts" in c.name}
    assert back == {ROWS * WIDTH * 2}
    assert there == {round(ROWS * WIDTH * (1 + 4 / 128))}
    assert {c.groups for c in journeys} == {(4, 2)}


def test_collectives_of_other_routing_are_priced_anew() -> None:
    ranks = Collectives(Cluster.parse("8x8xh100-sxm"))
    sent = Collective(kind="all-to-all", nbytes=2**28, group=Group(size=64), name="", starts_after=0, waited_for_by=1)
    plain, once = ranks.seconds(sent), ranks.seconds(replace(sent, choices=8))
    assert ranks.seconds(replace(sent, choices=8, groups=(8, 4))) < once < plain


@pytest.mark.parametrize(("nodes", "measured"), [(4, 58e9), (8, 51e9)])
def test_a_token_sent_once_takes_what_deepep_says(nodes: int, measured: float) -> None:
    """Its README's table on H800: 4,096 tokens of 7,168 in 8 bits, eight experts in four of eight groups; the bytes are of
    tokens times nodes that they go to, with their own."""
    token = 7168 * (1 + 4 / 128)
    sent = Collective(
        kind="all-to-all", nbytes=round(4096 * 8 * token), group=Group(size=8 * nodes), name="", starts_after=0, waited_for_by=1,
        choices=8, groups=(8, 4),
    )  # fmt: skip
    logical = 4096 * token * sent_once(8, nodes, (8, 4)) * 8
    seconds = collective_seconds(sent, Cluster.parse(f"{nodes}x8xh800-sxm@ib-400g"))
    assert logical / seconds == pytest.approx(measured, rel=0.15)
