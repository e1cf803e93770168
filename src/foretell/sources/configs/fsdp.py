"""FSDP's options as accelerate and transformers spell them."""

from __future__ import annotations

from typing import Any, Final

from foretell.sources.configs.keys import Keys

_STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "FULL_SHARD": {"zero": 3}, "SHARD_GRAD_OP": {"zero": 2}, "NO_SHARD": {}, "HYBRID_SHARD": {"zero": 3},
    "HYBRID_SHARD_ZERO2": {"zero": 2}, "1": {"zero": 3}, "2": {"zero": 2}, "3": {}, "4": {"zero": 3}, "5": {"zero": 2},
}  # fmt: skip
_HYBRID: Final = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")


def fsdp_plan(keys: Keys) -> tuple[dict[str, Any], bool]:
    """Fields of a plan, and whether each node keeps a copy; keys have the prefix `fsdp_`, or in newer files none."""

    def name(plain: str) -> str:
        return plain if plain in keys else f"fsdp_{plain}"

    keys.free(name("version"))
    strategy = keys.text(name("sharding_strategy"), "FULL_SHARD").upper()
    reshard = keys.take(name("reshard_after_forward"))
    if isinstance(reshard, str) and reshard.upper() in _STRATEGIES:  # FSDP1's word under FSDP2's key
        strategy, reshard = reshard.upper(), None
    if strategy not in _STRATEGIES:
        raise keys.wrong(name("sharding_strategy"), strategy, f"one of {', '.join(_STRATEGIES)}")
    plan = dict(_STRATEGIES[strategy])
    if reshard is not None:
        plan["zero"] = 3 if str(reshard).lower() == "true" else 2
    if keys.flag(name("offload_params")):
        plan["offload"] = "parameters"
    if keys.flag(name("activation_checkpointing")):
        plan["checkpointing"] = "full"
    if keys.text(name("auto_wrap_policy"), "TRANSFORMER_BASED_WRAP") != "TRANSFORMER_BASED_WRAP":
        keys.say(name("auto_wrap_policy"), "each repeated block is taken for a unit")
    keys.free(*map(name, (
        "cpu_ram_efficient_loading", "state_dict_type", "sync_module_states", "use_orig_params", "transformer_layer_cls_to_wrap",
        "min_num_params", "final_state_dict_type", "save_optimizer", "activation_cpu_offload",
    )), "xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt")  # fmt: skip
    if keys.text(name("backward_prefetch"), "BACKWARD_PRE").upper() not in ("BACKWARD_PRE", "1"):
        keys.say(name("backward_prefetch"), "the next block is taken to be gathered early")
    keys.not_modelled(*map(name, ("forward_prefetch", "limit_all_gathers")[:1]))
    keys.free(name("limit_all_gathers"))
    return plan, strategy in _HYBRID
