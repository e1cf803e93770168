"""Context parallelism: every op works on a part of the sequence, keys and values go round."""

from __future__ import annotations

import pytest

from foretell import forecast
from foretell.cost.attention_kernels import as_run_on
from foretell.cost.flops import total_flops
from foretell.errors import PlanError
from foretell.hardware import device
from foretell.parallel import parallelize
from foretell.plans import Plan

from .models import graph


@pytest.mark.parametrize("ways", [2, 4])
def test_ranks_share_every_sequence(ways: int) -> None:
    whole = graph("llama")
    role = parallelize(whole, Plan(cp=ways)).roles[0]
    assert total_flops(role.graph) == pytest.approx(total_flops(whole) / ways)
    assert role.graph.bytes_of("activation") == pytest.approx(whole.bytes_of("activation") / ways, rel=0.01)
    assert role.graph.bytes_of("parameter") == whole.bytes_of("parameter")


def test_keys_and_values_pass_every_rank_and_their_gradients_come_back() -> None:
    role = parallelize(graph("llama"), Plan(cp=4)).roles[0]
    sent = [c.nbytes for c in role.collectives if c.kind == "send-recv"]
    keys_and_values = 2 * 2 * 4 * 16 * 8 * 4  # both, batch, heads after repeating, length, size, bytes
    assert sent == [keys_and_values * 3 // 4] * 3 + [2 * keys_and_values * 3 // 4] * 3


def test_gradients_are_added_up_over_replicas_and_parts() -> None:
    role = parallelize(graph("llama"), Plan(dp=2, cp=2, tp=2)).roles[0]
    assert {(c.group.size, c.group.stride) for c in role.collectives if c.lane == "dp"} == {(4, 2)}
    assert {(c.group.size, c.group.stride) for c in role.collectives if c.kind == "send-recv"} == {(2, 2)}


def test_sequence_parallel_ranks_share_what_is_left_of_a_sequence() -> None:
    role = parallelize(graph("llama"), Plan(cp=2, tp=2, sequence_parallel=True)).roles[0]
    assert total_flops(role.graph) == pytest.approx(total_flops(graph("llama")) / 4)
    half = 2 * 16 // 2 * 32 * 4  # batch, length, width, bytes
    assert {c.nbytes for c in role.collectives if c.kind == "reduce-scatter"} == {half}
    quarters = [op for op in role.graph.ops if op.signature.inputs and op.signature.inputs[0].shape == (2, 4, 32)]
    assert quarters


def test_each_tensor_parallel_rank_sends_the_keys_of_its_heads() -> None:
    alone, shared = (
        [c.nbytes for c in parallelize(graph("llama"), Plan(cp=2, tp=tp)).roles[0].collectives if c.kind == "send-recv"]
        for tp in (1, 2)
    )
    assert alone == [2 * nbytes for nbytes in shared]


def test_sequences_that_do_not_divide_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(PlanError, match=r"cp=3 must divide the sequence: 16 / 3 = 5\.33"):
        parallelize(graph("llama"), Plan(cp=3))
    with pytest.raises(PlanError, match="has none"):
        parallelize(graph("vit"), Plan(cp=2))


def test_with_everything_else() -> None:
    ran = forecast(
        graph("llama"), on="2x12xh100-sxm", plan="dp=2,tp=2,cp=2,pp=3,zero=3,grad_accumulation=3", model="roofline"
    )
    assert ran.memory.fits
    assert ran.step_time.seconds > 0


def test_ulysses_exchanges_heads_and_hides_nothing() -> None:
    role = parallelize(graph("llama"), Plan(cp=2, ulysses=2)).roles[0]
    assert total_flops(role.graph) == pytest.approx(total_flops(graph("llama")) / 2)
    assert not any(c.kind == "send-recv" for c in role.collectives)
    sent = [c for c in role.collectives if c.kind == "all-to-all"]
    assert all(c.waited_for_by == c.starts_after + 1 for c in sent)
    part = 2 * 4 * 8 * 8 * 4  # of the queries: batch, heads, half the length, size, bytes; keys have as many heads here
    assert [c.nbytes for c in sent] == [3 * part, part] * 3 + [part, 3 * part] * 3
    attention = next(op for op in role.graph.ops if op.signature.tensor("query"))
    query, key = (attention.signature.tensor(name) for name in ("query", "key"))
    assert query is not None
    assert key is not None
    assert query.shape == key.shape == (2, 2, 16, 8)


def test_both_at_once_exchange_among_neighbours_and_pass_on_to_others() -> None:
    role = parallelize(graph("llama"), Plan(cp=4, ulysses=2)).roles[0]
    assert total_flops(role.graph) == pytest.approx(total_flops(graph("llama")) / 4)
    groups = {(c.kind, c.group.size, c.group.stride) for c in role.collectives if c.kind in ("all-to-all", "send-recv")}
    assert groups == {("all-to-all", 2, 1), ("send-recv", 2, 2)}
    ring = parallelize(graph("llama"), Plan(cp=4)).roles[0]
    passed, alone = (
        sum(c.nbytes for c in r.collectives if c.kind == "send-recv" and c.lane == "cp") for r in (role, ring)
    )
    assert passed == alone / 3  # half the heads, one step of three


def test_gathered_keys_come_before_attention_and_their_gradients_go_after_it() -> None:
    role = parallelize(graph("llama"), Plan(cp=4, cp_gather=True)).roles[0]
    sent = [c for c in role.collectives if c.kind in ("all-gather", "reduce-scatter")]
    whole = 2 * 2 * 4 * 16 * 8 * 4
    assert [(c.kind, c.nbytes) for c in sent[:3]] == [("all-gather", whole)] * 3
    assert [c.kind for c in sent[3:5]] == ["all-gather", "reduce-scatter"]
    assert total_flops(role.graph) == pytest.approx(total_flops(graph("llama")) / 4)


@pytest.mark.parametrize(
    ("plan", "words"),
    [(Plan(cp=4, ulysses=3), "must divide cp"), (Plan(cp_gather=True), "cp=1"), (Plan(cp=2, ulysses=2, cp_gather=True), "ulysses=2"),
     (Plan(cp=8, ulysses=8), "4 / 8")],
)  # fmt: skip
def test_exchanges_that_cannot_be_are_refused(plan: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parallelize(graph("llama"), plan)


def test_pieces_of_a_ring_run_the_kernel_that_whole_sequences_run() -> None:
    """On an A100 causal attention with fewer queries than keys is no kernel of FlashAttention's, but pieces are square."""
    role = parallelize(graph("llama", precision="bf16"), Plan(cp=2)).roles[0]
    found = {
        as_run_on(op.signature, device("a100-80g-sxm")).name for op in role.graph.ops if op.signature.tensor("query")
    }
    assert found == {f"aten._scaled_dot_product_flash_attention{end}" for end in ("", "_backward")}
