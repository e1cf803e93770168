"""What Megatron's arguments say of experts and of the kernels around them: who has them, how rows get there, what is fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretell.sources.configs.keys import Keys

_FLEXIBLE: Final = "flex"  # the dispatcher of those that send a token once
_ONCE: Final = ("deepep", "hybridep", "ncclep")
_OVERLAP: Final = "overlap_moe_expert_parallel_comm"
_BRIDGE_OVERLAP: Final = "moe_a2a_overlap"  # Megatron-Bridge's word for it, with gradients of weights delayed


def kernels(keys: Keys) -> str:
    """Megatron's, without what its flags leave to torch; `--cross-entropy-loss-fusion` compiles the loss, or takes
    Transformer Engine's."""
    fused, made_by = keys.flag("cross_entropy_loss_fusion"), keys.text("cross_entropy_fusion_impl", "native")
    if fused and made_by != "native":
        keys.say("cross_entropy_fusion_impl", f"{made_by}, taken for a loss that is not fused")
    base = "megatron-compiled-loss" if fused and made_by == "native" else "megatron"
    return "".join((base, *(f"-without-{part}" for part in _apart(keys))))


def _apart(keys: Keys) -> list[str]:
    latents, experts = keys.flag("multi_latent_attention"), keys.text("num_experts", "0") not in ("0", "1")
    without_rope = keys.flag("no_rope_fusion")
    if latents and keys.text("rope_type", "yarn") != "yarn":  # Megatron turns latents in one kernel with YaRN alone
        without_rope = True
    permute = keys.flag("moe_permute_fusion")
    found = {
        "permute": experts and not permute,
        "rope": without_rope,
        "wgrad": keys.flag("no_gradient_accumulation_fusion"),
    }
    return [name for name, apart in found.items() if apart]


def experts_plan(keys: Keys, *, tp: int, sequence_parallel: bool) -> dict[str, Any]:
    """Among how many ranks experts are divided, and whether ranks of tp share each of them."""
    plan: dict[str, Any] = {"ep": keys.count("expert_model_parallel_size", 1)}
    sharing = keys.count("expert_tensor_parallel_size", tp)
    if sharing == 1 < tp and sequence_parallel:
        plan["etp"] = 1
    elif sharing != tp and keys.text("num_experts", "0") not in ("0", "1"):
        keys.say("expert_tensor_parallel_size", f"{sharing}: experts are taken to be split as the rest")
    flexible = keys.text("moe_token_dispatcher_type", "alltoall") == _FLEXIBLE
    backend = keys.text("moe_flex_dispatcher_backend", "deepep" if keys.flag("moe_enable_deepep") else "")
    if plan["ep"] > 1 and (flexible or backend in _ONCE):
        plan["dispatch"] = "deepep"
    keys.free("moe_deepep_num_sms", "moe_hybridep_num_sms", "moe_flex_dispatcher_num_sms")
    return plan


def overlapped(keys: Keys, plan: Mapping[str, Any]) -> dict[str, bool]:
    """What runs beside rows on their way to experts: another micro-batch, where the schedule has pairs, and its own weights."""
    wanted, delayed, both = (keys.flag(name) for name in (_OVERLAP, "delay_wgrad_compute", _BRIDGE_OVERLAP))
    wanted, delayed = wanted or both, delayed or both
    if not wanted or plan["ep"] == 1:
        return {}
    if plan["pp"] > 1 and plan.get("virtual_stages", 1) == 1:
        keys.say(_OVERLAP, "not hidden: Megatron pairs passes with several chunks per pipeline stage alone")
        return {}
    return {"overlap_ep": True, **({"delay_wgrad": True} if delayed else {})}
