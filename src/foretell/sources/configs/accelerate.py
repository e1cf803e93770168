"""accelerate's YAML: devices, FSDP, DeepSpeed or Megatron behind it. The model and the batch are the script's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.precision import Float
from foretell.sources.configs import deepspeed
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.context import torch_context
from foretell.sources.configs.files import found_near, read_entries
from foretell.sources.configs.fp8 import in_fp8, named_recipe
from foretell.sources.configs.fsdp import fsdp_plan
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.optimizers import autocast, sharded_half, with_masters

TRAINER: Final = "accelerate"
_HALF: Final[dict[str, Float | None]] = {"no": None, "fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
_ALONE: Final = ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_HPU", "MULTI_MLU", "MULTI_CPU", "TP")


def recognises(entries: Mapping[str, Any]) -> bool:
    return "distributed_type" in entries


def read(keys: Keys, folder: Path) -> Configuration:
    kind = keys.text("distributed_type", "NO")
    processes, machines = keys.count("num_processes"), keys.count("num_machines", 1)
    word = keys.take("mixed_precision", "no")
    half = _HALF.get("no" if word is False else str(word))  # `no` is false in YAML
    settings: dict[str, Any] = autocast(half)
    plan: dict[str, Any] = {}
    copies: Any = 1
    found = Configuration(file=keys.file, trainer=TRAINER)
    if kind == "FSDP":
        plan, hybrid = fsdp_plan(keys.part("fsdp_config"))
        copies = "nodes" if hybrid else 1
        settings = sharded_half("fp32", half, half) if half else {}
    elif kind == "DEEPSPEED":
        found = _deepspeed(keys.part("deepspeed_config"), half, folder)
        settings, plan = dict(found.settings), dict(found.plan)
    elif kind == "MEGATRON_LM":
        settings, plan = _megatron(keys.part("megatron_lm_config"), half)
    elif kind not in _ALONE:
        raise keys.wrong("distributed_type", kind, "NO, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM")
    plan.update(_parallelism(keys.part("parallelism_config")))
    if (accumulation := keys.count("gradient_accumulation_steps")) is not None:
        settings["grad_accumulation"] = accumulation
    _compiling(keys, settings)
    keys.free(
        "compute_environment", "debug", "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
        "rdzv_backend", "same_network", "gpu_ids", "enable_cpu_affinity", "downcast_bf16", "tpu_use_cluster", "tpu_use_sudo",
        "tpu_env", "use_cpu", "command_file", "commands", "num_cpu_threads_per_process", "dynamo_backend", "fsdp_config",
        "deepspeed_config",
        "megatron_lm_config", "parallelism_config",
    )  # fmt: skip
    fp8 = keys.part("fp8_config")
    recipe = named_recipe(fp8, "backend", "te")
    fp8.free("amax_compute_algo", "amax_compute_algorithm", "amax_history_len", "amax_history_length", "fp8_format", "interval",
             "margin", "override_linear_precision", "use_autocast_during_eval", "optimization_level")  # fmt: skip
    if word == "fp8":
        settings = in_fp8(settings, recipe, weights="fp8" if fp8.flag("enable_fsdp_float8_all_gather") else None)
    keys.not_modelled("ipex_config", "mpirun_config", "tp_config")
    return Configuration(
        file=keys.file, trainer=TRAINER, settings=settings, plan=plan, replicas=copies, devices=processes or machines,
        global_batch=found.global_batch, caveats=found.caveats,
    )  # fmt: skip


def _deepspeed(keys: Keys, half: Float | None, folder: Path) -> Configuration:
    keys.free("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile",
              "deepspeed_exclusion_filter", "deepspeed_inclusion_filter")  # fmt: skip
    if name := keys.text("deepspeed_config_file"):
        return deepspeed_file(name, folder)
    settings: dict[str, Any] = with_masters(half)
    plan: dict[str, Any] = {"zero": keys.count("zero_stage", 2, least=0)}
    devices = [keys.text(f"offload_{what}_device", "none") for what in ("optimizer", "param")]
    for device, what in zip(devices, ("optimizer", "parameters"), strict=True):
        if device in ("cpu", "nvme"):
            plan["offload"] = what
    if "nvme" in devices:
        plan["offload_to"] = "nvme"
    keys.free("offload_optimizer_nvme_path", "offload_param_nvme_path", "deepspeed_moe_layer_cls_names")
    if (accumulation := keys.count("gradient_accumulation_steps")) is not None:
        settings["grad_accumulation"] = accumulation
    if clip := keys.number("gradient_clipping"):
        settings["clip_grad_norm"] = clip
    return Configuration(file=keys.file, trainer=TRAINER, settings=settings, plan=plan)


def deepspeed_file(name: str, folder: Path) -> Configuration:
    """Another file that this one names."""
    path = found_near(name, folder)
    inner = Keys(read_entries(path), path.name)
    found = deepspeed.read(inner, path.parent)
    return Configuration(
        file=found.file, trainer=found.trainer, settings=found.settings, plan=found.plan, global_batch=found.global_batch,
        caveats=tuple(inner.caveats()),
    )  # fmt: skip


def _megatron(keys: Keys, half: Float | None) -> tuple[dict[str, Any], dict[str, Any]]:
    def name(plain: str) -> str:
        return f"megatron_lm_{plain}"

    settings: dict[str, Any] = with_masters(half)
    plan: dict[str, Any] = {"tp": keys.count(name("tp_degree"), 1), "pp": keys.count(name("pp_degree"), 1)}
    if keys.flag(name("sequence_parallelism")) and plan["tp"] > 1:
        plan["sequence_parallel"] = True
    if keys.flag(name("recompute_activations")):
        plan["checkpointing"] = "selective"
    plan["zero"] = 1 if keys.flag(name("use_distributed_optimizer")) else 0
    if (micro := keys.count(name("num_micro_batches"))) is not None:
        settings["grad_accumulation"] = micro
    if clip := keys.number(name("gradient_clipping")):
        settings["clip_grad_norm"] = clip
    return settings, plan


def _parallelism(keys: Keys) -> dict[str, Any]:
    degrees = {"tp": keys.count("parallelism_config_tp_size", 1), "cp": keys.count("parallelism_config_cp_size", 1)}
    shard = keys.count("parallelism_config_dp_shard_size", 1)
    copies = keys.count("parallelism_config_dp_replicate_size", 1)
    if (sequence := keys.count("parallelism_config_sp_size", 1)) > 1:
        degrees["cp"] = degrees["ulysses"] = sequence
    keys.free("parallelism_config_sp_backend", "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
              "parallelism_config_sp_attn_implementation")  # fmt: skip
    gathers = torch_context(keys, "parallelism_config_cp_comm_strategy", degrees["cp"])
    plan: dict[str, Any] = {name: n for name, n in degrees.items() if n > 1} | ({} if "ulysses" in degrees else gathers)
    if shard > 1 and copies > 1:
        plan["hybrid_shard"] = shard
    return plan


def _compiling(keys: Keys, settings: dict[str, Any]) -> None:
    dynamo = keys.part("dynamo_config")
    if dynamo.text("dynamo_backend", "NO").upper() == "INDUCTOR":
        settings["compile"] = True
    dynamo.free("dynamo_mode", "dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation")
