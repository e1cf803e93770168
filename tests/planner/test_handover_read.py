"""What trainers' files say is the plan: read back by the project's own readers, over plans drawn at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import PlanError
from foretell.planner.handover import TOOLS, hand_over
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.sources.configs import configuration_of
from tests.planner.test_handover import chosen

TRAINERS = ("accelerate", "deepspeed", "torchtitan", "lightning")
_PRECISIONS = (
    "fp32", "bf16", "fp16", "amp-bf16", "amp-fp16", "tf32", "parameters:fp32/compute:bf16", "parameters:fp32/compute:bf16/reduce:fp32",
    "parameters:bf16/gradients:fp32/master:fp32", "parameters:bf16/master:fp32", "parameters:fp16/master:fp32", "fp8",
)  # fmt: skip
_COMPARED = (
    "dp", "tp", "pp", "cp", "ep", "zero", "hybrid_shard", "sequence_parallel", "overlap_tp", "schedule", "virtual_stages",
    "checkpointing", "offload", "offload_to", "cp_gather", "bucket_bytes",
)  # fmt: skip


@st.composite
def plans(draw: Any) -> Plan:
    """On sixteen devices."""
    tp, pp, cp = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (4, 1, 1)]))
    dp = 16 // (tp * pp * cp)
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    schedule = (
        draw(st.sampled_from(["1f1b", "gpipe", "interleaved", "zero-bubble", "zb-v", "dualpipe", "dualpipe-v"]))
        if pp > 1
        else "1f1b"
    )
    return Plan(
        dp=dp, tp=tp, pp=pp, cp=cp, zero=zero, schedule=schedule,
        virtual_stages=2 if schedule in ("interleaved", "zero-bubble") else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        hybrid_shard=draw(st.sampled_from([None, None, 4])) if zero in (2, 3) and dp % 4 == 0 and cp == 1 else None,
        checkpointing=draw(st.sampled_from(["none", "none", "full", "selective", "selective-op", 0.5, "cheapest:0.5"])),
        offload=draw(st.sampled_from(["none", "none", "none", "parameters", "optimizer"])) if zero else "none",
        offload_to=draw(st.sampled_from(["cpu", "cpu", "nvme"])),
        bucket_bytes=draw(st.sampled_from([None, None, 2**26])),
        cp_gather=cp > 1 and draw(st.booleans()),
        grad_accumulation=draw(st.sampled_from([1, 2, 8])),
    )  # fmt: skip


@pytest.mark.parametrize("to", TRAINERS)
@given(plan=plans(), precision=st.sampled_from(_PRECISIONS), batch=st.sampled_from([1, 2, 8]))
@settings(max_examples=150, deadline=None)
def test_a_file_reads_back_as_the_plan_or_is_refused(
    to: str, plan: Plan, precision: str, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        text = hand_over(chosen(str(plan), batch=batch, precision=precision), to)
    except PlanError as error:
        refusal = str(error)
        assert "ecide" in refusal or "lan with" in refusal
        return
    path = tmp_path_factory.mktemp("handed") / TOOLS[to].file
    path.write_text(('[model]\nname = "llama3"\nflavor = "8B"\n' if to == "torchtitan" else "") + text)
    read = configuration_of(str(path))
    assert read is not None
    got = read.template().plan_for(16, 2)
    differs = {
        name: (getattr(got, name), getattr(plan, name))
        for name in _COMPARED
        if name in TOOLS[to].says and getattr(got, name) != getattr(plan, name) and not _means_nothing(name, plan)
    }
    assert not differs, text
    found = Precision.parse(read.settings.get("precision", "fp32"))
    assert found == Precision.parse(precision), text
    if to in ("deepspeed", "torchtitan"):
        assert read.settings["batch"] == batch
    if to == "accelerate":  # its library takes them from the environment
        assert f" ACCELERATE_GRADIENT_ACCUMULATION_STEPS={plan.grad_accumulation} accelerate launch" in text
    else:
        assert (got.grad_accumulation or read.settings.get("grad_accumulation", 1)) == plan.grad_accumulation, text


def _means_nothing(name: str, plan: Plan) -> bool:
    """A setting of something that the plan does not do."""
    if name == "hybrid_shard":
        return plan.zero == 0 or plan.hybrid_shard == plan.dp * plan.cp  # all of them hold one copy
    return name == "offload_to" and plan.offload == "none"
