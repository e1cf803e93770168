"""Linear layers of repeated blocks in 8 bits: which products, what scales their factors, what is kept in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

import foretell
from foretell.capture import capture
from foretell.graph import Graph
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.program import Role
from foretell.workload import Workload

from .models import Llama, graph, loss, workload

LAYERS, LINEAR = 3, 7  # of a block: q, k, v, o, gate, up, down


def step(parts: str = "fp8:delayed") -> Graph:
    return replace(graph("llama", precision="bf16"), precision=Precision.parse(f"parameters:bf16/{parts}"))


def role(plan: str = "dp=1", parts: str = "fp8:delayed") -> Role:
    return parallelize(step(parts), Plan.parse(plan)).roles[0]


def ops(of: Role, name: str) -> Counter[str]:
    return Counter(op.phase for op in of.graph.ops if op.signature.name == name)


def test_blocks_are_in_8_bits_and_the_output_layer_is_not() -> None:
    found = role()
    assert ops(found, "aten._scaled_mm") == {"forward": LAYERS * LINEAR, "backward": 2 * LAYERS * LINEAR}
    assert ops(found, "aten.mm") == {"forward": 1, "backward": 2}  # the head
    assert {op.module for op in found.graph.ops if op.signature.name == "aten.mm"} == {"head"}


def test_a_factor_is_scaled_once_for_all_products_that_share_it() -> None:
    casts = ops(role(), "foretell.fp8_cast")
    assert casts["forward"] == LAYERS * 4  # what q, k and v share, o's, what gate and up share, down's
    assert casts["backward"] == LAYERS * LINEAR
    assert casts["optimizer"] == LAYERS * LINEAR  # weights, once per step


def test_weights_are_scaled_once_per_step_or_whenever_they_are_gathered() -> None:
    several = role("dp=1,grad_accumulation=4")
    assert ops(several, "foretell.fp8_cast")["optimizer"] == LAYERS * LINEAR
    sharded = ops(role("dp=4,zero=3"), "foretell.fp8_cast")
    assert (sharded["optimizer"], sharded["forward"]) == (0, LAYERS * (4 + LINEAR))


def test_scales_of_the_step_itself_read_their_factors_first() -> None:
    assert not ops(role(), "aten.amax")
    current = role(parts="fp8:current")
    assert ops(current, "aten.amax") == ops(current, "foretell.fp8_cast")


def test_blocks_at_the_ends_can_stay_as_they_are() -> None:
    found = role(parts="fp8:current/half_blocks:1-1")
    assert ops(found, "aten._scaled_mm")["forward"] == LINEAR
    assert {op.module.split(".")[1] for op in found.graph.ops if op.signature.name == "aten._scaled_mm"} == {"1"}


def test_activations_wait_as_transposed_copies_alone() -> None:
    halves, eighths = (role(parts=parts).graph for parts in ("tf32:never", "fp8:delayed"))
    turn = [max(i for i, op in enumerate(g.ops) if op.phase == "forward") for g in (halves, eighths)]
    waiting = [
        sum(s.nbytes for s in g.storages if s.role == "activation" and s.born <= at < s.freed)
        for g, at in zip((halves, eighths), turn, strict=True)
    ]
    assert waiting[1] < waiting[0]


def test_what_waits_for_the_backward_pass_is_an_activation_and_nothing_else_is() -> None:
    """Micro-batches in flight are counted by it."""
    g = role("tp=2,sequence_parallel=true").graph
    turn = max(i for i, op in enumerate(g.ops) if op.phase == "forward")
    made = {g.tensors[t].storage for op in g.ops if op.signature.name == "foretell.fp8_cast" for t in op.outputs}
    copies = [s for n, s in enumerate(g.storages) if n in made and 0 <= s.born <= turn and s.role != "parameter"]
    assert {s.role for s in copies if s.freed > turn} == {"activation"}
    assert {s.role for s in copies if s.freed <= turn} == {"temporary"}


def test_weights_kept_in_8_bits_take_no_more_than_in_half_precision() -> None:
    halves, copied, kept = (
        role(parts=parts).graph.bytes_of("parameter")
        for parts in ("tf32:never", "fp8:current", "fp8:current/weights:fp8")
    )
    assert kept == halves < copied  # two copies of 8 bits each


def test_weights_gathered_in_8_bits_send_half_and_need_no_cast_forward() -> None:
    halves, eighths = (role("dp=4,zero=3", parts) for parts in ("fp8:current", "fp8:current/weights:fp8"))
    sent = [
        sum(c.nbytes for c in r.collectives if c.kind == "all-gather" and "layers" in c.name) for r in (halves, eighths)
    ]
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.05)  # norms stay
    assert ops(eighths, "foretell.fp8_cast")["forward"] == LAYERS * 4
    updated = [
        sum(c.nbytes for c in role("dp=4,zero=1", parts).collectives if c.kind == "all-gather")
        for parts in ("fp8:current", "fp8:current/weights:fp8")
    ]
    assert updated[1] < updated[0]


def test_rows_for_products_are_gathered_in_8_bits() -> None:
    halves, eighths, blocks = (
        {c.name: c.nbytes for c in role("tp=2,sequence_parallel=true", parts).collectives if c.kind == "all-gather"}
        for parts in ("tf32:never", "fp8:current", "fp8:blockwise")
    )
    inside = [name for name in halves if "layers" in name]
    assert inside
    assert all(2 * eighths[name] == halves[name] == blocks[name] for name in inside)
    assert all(eighths[name] == halves[name] for name in halves if name not in inside)
    casts = [op for op in role("tp=2,sequence_parallel=true").graph.ops if op.signature.name == "foretell.fp8_cast"]
    read = Counter(op.signature.inputs[0].dtype for op in casts if op.phase == "forward")
    assert read == {"float8_e4m3fn": LAYERS * 2, "bfloat16": LAYERS * 2}  # what was gathered is transposed alone


@pytest.mark.parametrize(
    "plan",
    ["dp=2,pp=3,grad_accumulation=4", "dp=2,tp=2,sequence_parallel=true", "dp=4,zero=3,checkpointing=full", "dp=2,cp=2,zero=1",
     "dp=2,pp=3,grad_accumulation=6,schedule=zero-bubble", "dp=4,zero=2"],
)  # fmt: skip
def test_every_plan_keeps_its_work(plan: str) -> None:
    """Products are as many as in half precision, and nothing is read before it is there or after it is gone."""
    halves, eighths = (parallelize(step(parts), Plan.parse(plan)) for parts in ("tf32:never", "fp8:current"))
    for before, after in zip(halves.roles, eighths.roles, strict=True):
        counts = [
            sum(op.times for op in g.graph.ops if op.signature.name in ("aten.mm", "aten._scaled_mm"))
            for g in (before, after)
        ]
        assert counts[0] == counts[1]
        g = after.graph
        for position, op in enumerate(g.ops):
            for t in (*op.inputs, *op.outputs):
                s = g.storages[g.tensors[t].storage]
                assert s.born <= position, (op.target, s)
                assert op.signature.name != "aten._scaled_mm" or s.freed >= position
        for c in after.collectives:
            assert -1 <= c.starts_after < c.waited_for_by <= len(g.ops)


def test_it_is_faster_where_there_are_units_for_it() -> None:
    words = torch.randint(96, (4, 2048))
    large = capture(
        Workload(
            name="large", model=lambda: Llama(2048, 2), batch=lambda: {"x": words, "y": words}, loss=loss,
            optimizer=torch.optim.AdamW, precision="fp8",
        )
    )  # fmt: skip
    halves = replace(large, precision=Precision.parse("bf16"))
    assert (
        foretell.forecast(large, "h100-sxm").step_time.seconds < foretell.forecast(halves, "h100-sxm").step_time.seconds
    )


def test_boards_without_units_for_it_are_named_and_those_with_them_have_a_model() -> None:
    codes = {on: {c.code for c in foretell.forecast(step(), on).caveats} for on in ("a100-80g-sxm", "h100-sxm", "h200")}
    assert {on: "precision-without-units" in found for on, found in codes.items()} == {
        "a100-80g-sxm": True, "h100-sxm": False, "h200": False,
    }  # fmt: skip
    unknown = [c.text for c in foretell.forecast(step(), "h200").caveats if c.code == "op-without-model"]
    assert not any("scaled_mm" in text or "fp8_cast" in text for text in unknown)


def test_parameters_that_are_cast_for_each_pass_are_scaled_with_it() -> None:
    """FSDP2 with torchao: fp32 shards, gathered in half precision or in 8 bits."""
    sharded = capture(workload("llama", precision="compute:bf16/reduce:fp32/fp8:current"))
    found = parallelize(sharded, Plan.parse("dp=4,zero=3")).roles[0]
    assert ops(found, "aten._scaled_mm") == {"forward": LAYERS * LINEAR, "backward": 2 * LAYERS * LINEAR}
    casts = ops(found, "foretell.fp8_cast")
    assert (casts["optimizer"], casts["forward"]) == (0, LAYERS * (4 + LINEAR))


@pytest.mark.parametrize("text", ["fp8:current/weights:fp8", "weights:fp8", "parameters:bf16/fp8:fast", "parameters:bf16/half_blocks:1-1",
                                  "parameters:bf16/fp8:current/half_blocks:one"])  # fmt: skip
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(foretell.InputError):
        Precision.parse(text)


def test_recipes_are_named() -> None:
    assert Precision.parse("fp8") == Precision.parse("fp8:delayed")
    assert Precision.parse("parameters:bf16/fp8:mx").arithmetic == "fp8:mx"
    text = "parameters:bf16/gradients:fp32/master:fp32/fp8:current/weights:fp8/half_blocks:1-2"
    assert (Precision.parse(text).name, Precision.parse(text).blocks_in_half) == (text, (1, 2))
