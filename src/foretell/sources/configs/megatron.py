"""Megatron-LM's arguments: a command, a shell script, or a recipe in YAML. The model is built from their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.graph import Caveat
from foretell.sources.configs import deepspeed
from foretell.sources.configs.accelerate import deepspeed_file
from foretell.sources.configs.attention import megatron_attention
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.context import megatron_context
from foretell.sources.configs.files import is_file
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.known_keys import account_for
from foretell.sources.configs.megatron_experts import experts_plan, kernels, overlapped
from foretell.sources.configs.megatron_free import CHANGES, FREE
from foretell.sources.configs.megatron_model import architecture
from foretell.sources.configs.megatron_precision import megatron_precision
from foretell.sources.configs.megatron_recompute import recompute
from foretell.sources.configs.megatron_stages import LAYOUT, stages

TRAINER: Final = "Megatron-LM"
_SIZES: Final = {"num_layers", "hidden_size", "num_attention_heads"}
_SHARDED: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_RECIPE: Final = "MODEL_ARGS"  # of the project's own tests
_NESTED: Final = ("language_model", "model_parallel", "model", "trainer", "comm_overlap")  # of its YAML, and of NeMo's
# Names of earlier versions, and of Megatron-DeepSpeed.
_ALIASES: Final = {
    "moe_expert_parallel_size": "expert_model_parallel_size", "num_key_value_heads": "num_query_groups", "model_parallel_size":
    "tensor_model_parallel_size", "batch_size":
    "micro_batch_size", "num_moe_experts": "num_experts", "num_layers_in_first_pipeline_stage":
    "decoder_first_pipeline_num_layers", "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    inside = entries.get("language_model")
    names = {_plain(name) for name in (*entries, *(inside if isinstance(inside, Mapping) else ()))}
    return _RECIPE in entries or len(_SIZES & names) >= 2 or {"encoder_num_layers", "hidden_size"} <= names


def read(keys: Keys, folder: Path) -> Configuration:
    if _RECIPE in keys:
        keys.free(
            "ENV_VARS",
            "TEST_TYPE",
            "METRICS",
            "BEFORE_SCRIPT",
            "AFTER_SCRIPT",
            "MODE",
            "LAUNCHER",
            "SKIP_PYTEST",
            "GENERATION_ARGS",
        )
        inner = keys.part(_RECIPE)
        arguments = inner.renamed(_plain)
    else:
        arguments = keys.flattened(_NESTED).renamed(_plain)
    return from_arguments(arguments, folder)


def _plain(name: str) -> str:
    plain = name.removeprefix("--").replace("-", "_")
    return _ALIASES.get(plain, plain)


def from_arguments(keys: Keys, folder: Path = Path()) -> Configuration:
    """By Megatron's names, with underscores."""
    layers = keys.count("num_layers") or keys.count("encoder_num_layers")
    if layers is None:
        raise SourceError(
            f"{keys.file} does not say --num-layers, or says it with what is given on its command line. Write the numbers into the "
            "variables of the script, set them in the environment, or give the arguments that Megatron is started with as a .txt file."
        )
    plan = _plan(keys, layers)
    attention, written_out = megatron_attention(keys)
    settings = _step(keys) | attention
    more = _further_tokens(keys, plan)
    model = keys.model or architecture(keys, layers + more, tp=plan["tp"]) | written_out
    nodes, each = keys.count("nnodes"), keys.count("nproc_per_node")
    keys.free(*FREE)
    account_for(keys, "megatron")
    keys.not_modelled(*CHANGES)
    caveats = _deepspeed(keys, folder, settings, plan)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=model, settings=settings, plan=plan, caveats=caveats,
        global_batch=keys.count("global_batch_size"), devices=each * (nodes or 1) if each else None,
        replicas=keys.count("num_distributed_optimizer_instances", 1),
    )  # fmt: skip


def _deepspeed(keys: Keys, folder: Path, settings: dict[str, Any], plan: dict[str, Any]) -> tuple[Caveat, ...]:
    """What Megatron-DeepSpeed's file says goes before Megatron's own optimizer: ZeRO and offloading."""
    stage, named = keys.count("zero_stage", least=0), keys.take("deepspeed_config")
    keys.free(
        "deepspeed", "deepspeed_config", "zero_stage", "no_pipeline_parallel", "num_gpus", "create_moe_param_group"
    )
    if not keys.flag("deepspeed") and stage is None:
        return ()
    plan["zero"] = stage if stage is not None else plan["zero"]
    if isinstance(named, Mapping):
        inner = deepspeed.read(keys.part("deepspeed_config"), folder)
    elif isinstance(named, str) and any(is_file(place) for place in (folder / named, Path(named))):
        inner = deepspeed_file(named, folder)
    else:
        keys.say("deepspeed_config", "its file is not there: ZeRO is taken as the arguments say")
        return ()
    kept = ("zero", "sharding", "offload", "offload_to")
    plan.update(
        {name: value for name, value in inner.plan.items() if name in kept and (name != "zero" or stage is None)}
    )
    if inner.settings.get("precision") and "precision" not in settings:
        settings["precision"] = inner.settings["precision"]
    return inner.caveats


def _further_tokens(keys: Keys, plan: dict[str, Any]) -> int:
    """Layers that predict further tokens (MTP): each is one more of the model's, on the last stage."""
    more = keys.count("mtp_num_layers", 0, least=0)
    if more:
        keys.say("mtp_num_layers", f"{more} more layers; their projections and losses are left out")
    if more and "stages" in plan and not keys.take(LAYOUT):
        plan["stages"] = [*plan["stages"][:-1], plan["stages"][-1] + more]
    return more


def _step(keys: Keys) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "batch": keys.count("micro_batch_size", 1),
        "seq": keys.count("seq_length") or keys.count("encoder_seq_length") or 1024,
        **megatron_precision(keys),
        "kernels": kernels(keys),
    }
    if clip := keys.number("clip_grad", 1.0):
        settings["clip_grad_norm"] = clip
    if (given := keys.text("optimizer", "adam")) != "adam":
        keys.say("optimizer", f"{given}, taken for Adam")
    return settings


def _plan(keys: Keys, layers: int) -> dict[str, Any]:
    tp, pp = keys.count("tensor_model_parallel_size", 1), keys.count("pipeline_model_parallel_size", 1)
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        **megatron_context(keys),
        **experts_plan(keys, tp=tp, sequence_parallel=keys.flag("sequence_parallel")),
        "zero": _zero(keys),
    }
    if keys.flag("sequence_parallel") and tp > 1:
        plan["sequence_parallel"] = True
    if keys.flag("tp_comm_overlap") and plan.get("sequence_parallel"):
        plan["overlap_tp"] = True
    if not keys.flag("overlap_grad_reduce") and not keys.flag("use_torch_fsdp2"):
        plan["overlap"] = False
    if keys.flag("overlap_param_gather") and plan["zero"] == 1:
        plan["overlap_gather"] = True
    if (bucket := keys.count("ddp_bucket_size")) is not None:
        plan["bucket_bytes"] = bucket * 4
    if pp > 1:
        plan.update(stages(keys, layers, pp))
    plan.update(overlapped(keys, plan))
    plan.update(recompute(keys, layers // (pp * plan.get("virtual_stages", 1))))
    if keys.flag("optimizer_cpu_offload"):
        plan["offload"] = "optimizer"
        if (keys.number("optimizer_offload_fraction", 1.0) or 0.0) < 1.0:
            keys.say("optimizer_offload_fraction", "all of it is taken to be offloaded")
    return plan


def _zero(keys: Keys) -> int:
    strategy = keys.chosen("data_parallel_sharding_strategy", _SHARDED, "no_shard")
    distributed = keys.flag("use_distributed_optimizer")
    if keys.flag("use_torch_fsdp2"):
        return 3
    if keys.flag("use_megatron_fsdp") or keys.flag("use_custom_fsdp"):
        return strategy or 3
    return 1 if distributed else 0
