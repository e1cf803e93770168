"""Activation checkpointing against torch: a model that checkpoints itself is the oracle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from foretell.capture import capture
from foretell.cost.flops import total_flops
from foretell.errors import PlanError
from foretell.graph import Graph
from foretell.graph.operators import ATTENTION
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.simulate.memory import replay
from foretell.workload import Workload

from .models import FAMILIES, graph, loss


def every_other_product() -> Any:
    """torchtitan's policy: it keeps the first product of a block, the third, …, and attention."""
    products = Counter[bool]()
    attention = [getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default for kind in ATTENTION]

    def policy(ctx: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func is torch.ops.aten.mm.default:
            products[ctx.is_recompute] += 1
        kept = func in attention or (func is torch.ops.aten.mm.default and products[ctx.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def checkpoints_itself(family: str, **how: Any) -> Graph:
    build, batch, blocks = FAMILIES[family]

    def model() -> Any:
        made = build()
        for block in getattr(made, blocks):
            inner = block.forward
            block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False, **how)
        return made

    return capture(Workload(name=family, model=model, batch=batch, loss=loss, optimizer=lambda p: torch.optim.AdamW(p)))


@pytest.mark.parametrize("family", ["vit", "llama"])
def test_full_checkpointing_is_what_a_model_that_checkpoints_itself_does(family: str) -> None:
    planned = parallelize(graph(family), Plan(checkpointing="full")).roles[0].graph
    own = checkpoints_itself(family)
    assert total_flops(planned) == total_flops(own)
    assert replay(planned).peak_allocated == pytest.approx(replay(own).peak_allocated, rel=0.02)


def test_per_op_checkpointing_is_what_torchs_policies_do() -> None:
    planned = parallelize(graph("llama"), Plan(checkpointing="selective-op")).roles[0].graph
    own = checkpoints_itself("llama", context_fn=every_other_product)
    assert total_flops(planned) == total_flops(own)
    assert replay(planned).peak_allocated == pytest.approx(replay(own).peak_allocated, rel=0.02)
    full, whole = (parallelize(graph("llama"), Plan(checkpointing=w)).roles[0].graph for w in ("full", "none"))
    assert total_flops(whole) < total_flops(planned) < total_flops(full)


def test_more_blocks_hold_less_and_compute_more() -> None:
    graphs = [parallelize(graph("llama"), Plan(checkpointing=f)).roles[0].graph for f in (0.0, 1 / 3, 2 / 3, 1.0)]
    assert [total_flops(g) for g in graphs] == sorted(total_flops(g) for g in graphs)
    held = [replay(g).allocated[next(i for i, op in enumerate(g.ops) if op.phase == "backward")] for g in graphs]
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]


def test_attention_alone_is_computed_again() -> None:
    whole, selective, full = (
        parallelize(graph("llama"), Plan(checkpointing=what)).roles[0].graph for what in ("none", "selective", "full")
    )
    assert total_flops(whole) < total_flops(selective) < total_flops(full)
    again = [op for op in selective.ops if op.phase == "backward" and op.signature.name.endswith("_attention")]
    assert len(again) == 3


def device_bytes(what: str | float, family: str = "llama") -> tuple[float, int]:
    """FLOPs of a step, and what its forward pass leaves for the backward pass."""
    made = parallelize(graph(family), Plan(checkpointing=what)).roles[0].graph
    first = next(i for i, op in enumerate(made.ops) if op.phase == "backward")
    return total_flops(made), replay(made).allocated[first]


def test_several_blocks_at_a_time_keep_one_input() -> None:
    one, three = (parallelize(graph("llama"), Plan(checkpointing=w)).roles[0].graph for w in ("full", "full:3"))
    rows = 2 * 16 * 32 * 4  # samples, tokens, features in fp32: what lies between two blocks
    begins = [next(i for i, op in enumerate(g.ops) if op.phase == "backward") for g in (one, three)]
    kept = [replay(g).allocated[begin] for g, begin in zip((one, three), begins, strict=True)]
    assert kept[0] - kept[1] == 2 * rows
    assert total_flops(one) < total_flops(three)  # the products at the ends of blocks inside are run again too


def test_partitioned_inputs_are_kept_in_parts_and_gathered() -> None:
    plain, parted = (
        parallelize(graph("llama"), Plan(tp=2, checkpointing=w)).roles[0] for w in ("full", "full-partitioned")
    )
    rows, blocks = 2 * 16 * 32 * 4, 3
    begins = [next(i for i, op in enumerate(r.graph.ops) if op.phase == "backward") for r in (plain, parted)]
    kept = [replay(r.graph).allocated[begin] for r, begin in zip((plain, parted), begins, strict=True)]
    assert kept[0] - kept[1] == blocks * rows // 2
    gathers = [[c for c in r.collectives if c.kind == "all-gather"] for r in (plain, parted)]
    assert [c.nbytes for c in gathers[1]] == [rows] * blocks
    assert not gathers[0]
    assert total_flops(plain.graph) == total_flops(parted.graph)
    with pytest.raises(PlanError, match="tp=1"):
        parallelize(graph("llama"), Plan(checkpointing="full-partitioned"))


def test_parts_of_blocks_drop_what_they_make() -> None:
    none, norms, attention, mlp, both, full = map(
        device_bytes, ("none", "layernorm", "core_attn", "mlp", "layernorm+mlp", "full")
    )
    rows = 2 * 16 * 32 * 4
    assert device_bytes("core_attn") == device_bytes("selective")
    assert none[0] == norms[0] < attention[0] < mlp[0] < full[0]
    assert none[1] - norms[1] >= 2 * 3 * rows  # two norms in each of three blocks
    assert norms[1] > both[1] > full[1]
    with pytest.raises(PlanError, match="no such parts"):
        device_bytes("moe_act+mla_up_proj")


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_what_is_cheapest_lies_between_nothing_and_everything(share: float) -> None:
    none, full = device_bytes("none"), device_bytes("full")
    flops, kept = device_bytes(f"cheapest:{share}")
    assert none[0] <= flops <= full[0]
    assert full[1] <= kept <= none[1]
    if share in (0.0, 1.0):
        assert (flops, kept) == (full if share else none)


@pytest.mark.parametrize("what", ["some", "full:0", "full:x", "budget:2", "cheapest:", "mlp+", "budget:nan", "moe,act"])
def test_what_cannot_be_recomputed_is_refused(what: str) -> None:
    with pytest.raises(PlanError):
        Plan(checkpointing=what)


def test_what_the_ranks_say_is_said_again() -> None:
    plain = parallelize(graph("llama"), Plan(tp=2)).roles[0]
    again = parallelize(graph("llama"), Plan(tp=2, checkpointing="full")).roles[0]
    assert (
        len(again.collectives) == len(plain.collectives) + 3
    )  # the sum after each attention; the last of a block is not needed
    assert len({c.starts_after for c in again.collectives}) > len({c.starts_after for c in plain.collectives})


def test_nothing_to_compute_again_is_refused() -> None:
    with pytest.raises(PlanError, match="no attention"):
        parallelize(graph("cnn"), Plan(checkpointing="selective"))
    with pytest.raises(PlanError, match="between 0 and 1"):
        parallelize(graph("cnn"), Plan(checkpointing=1.5))
