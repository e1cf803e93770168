"""What is recomputed is paid in time and gained in memory, whatever the architecture."""

from __future__ import annotations

import pytest

import foretell

from .architectures import ARCHITECTURES, architecture


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_selective_lies_between_none_and_full(name: str) -> None:
    graph = architecture(name)
    none, selective, full = (
        foretell.forecast(graph, on="h100-sxm", plan=f"checkpointing={what}") for what in ("none", "selective", "full")
    )
    assert none.memory.allocated >= selective.memory.allocated >= full.memory.allocated
    assert none.memory.allocated > full.memory.allocated
    assert none.device_time.seconds < selective.device_time.seconds <= full.device_time.seconds
    assert none.step_time.seconds <= selective.step_time.seconds <= full.step_time.seconds


@pytest.mark.parametrize(
    ("name", "parts"),
    [("t5", "mlp"), ("mixtral", "moe moe_act"), ("deepseek_v3", "moe mlp shared_experts mla_up_proj moe_act")],
)
def test_parts_of_mixtures_and_latents_save_memory_for_time(name: str, parts: str) -> None:
    graph = architecture(name)
    none, full = (foretell.forecast(graph, on="h100-sxm", plan=f"checkpointing={what}") for what in ("none", "full"))
    for part in parts.split():
        made = foretell.forecast(graph, on="h100-sxm", plan=f"checkpointing={part}")
        assert none.memory.allocated > made.memory.allocated >= full.memory.allocated, part
        assert none.device_time.seconds < made.device_time.seconds <= full.device_time.seconds, part
