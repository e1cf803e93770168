"""The YAML of Lightning's command line: the `trainer` section. Its model is the user's own class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.keys import Keys

TRAINER: Final = "Lightning"
_STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "auto": {}, "ddp": {}, "ddp_find_unused_parameters_true": {}, "ddp_find_unused_parameters_false": {}, "ddp_spawn": {},
    "ddp_notebook": {}, "dp": {"data_parallel": "dp"}, "fsdp": {"zero": 3}, "fsdp_cpu_offload": {"zero": 3, "offload": "parameters"},
    "deepspeed": {"zero": 2}, "deepspeed_stage_1": {"zero": 1}, "deepspeed_stage_2": {"zero": 2}, "deepspeed_stage_3": {"zero": 3},
    "deepspeed_stage_1_offload": {"zero": 1, "offload": "optimizer"}, "deepspeed_stage_2_offload": {"zero": 2, "offload": "optimizer"},
    "deepspeed_stage_3_offload": {"zero": 3, "offload": "parameters"},
    "deepspeed_stage_3_offload_nvme": {"zero": 3, "offload": "parameters", "offload_to": "nvme"},
}  # fmt: skip
_PRECISIONS: Final = {
    "32": {}, "32-true": {}, "16": {"precision": "amp-fp16"}, "16-mixed": {"precision": "amp-fp16"},
    "bf16": {"precision": "amp-bf16"}, "bf16-mixed": {"precision": "amp-bf16"}, "bf16-true": {"precision": "bf16"},
    "16-true": {"precision": "fp16"},
}  # fmt: skip

_SHARDING: Final = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}


def recognises(entries: Mapping[str, Any]) -> bool:
    return (isinstance(entries.get("trainer"), Mapping) and "model" in entries) or set(entries) == {"trainer"}


def read(keys: Keys, folder: Path) -> Configuration:
    trainer = keys.part("trainer")
    settings: dict[str, Any] = dict(trainer.chosen("precision", _PRECISIONS, "32-true"))
    plan = _strategy(trainer)
    if accumulation := trainer.count("accumulate_grad_batches"):
        settings["grad_accumulation"] = accumulation
    if clip := trainer.number("gradient_clip_val"):
        settings["clip_grad_norm"] = clip
    devices, nodes = trainer.take("devices"), trainer.count("num_nodes", 1)
    if isinstance(devices, list):
        devices = len(devices)
    trainer.free(
        "accelerator", "max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches", "limit_val_batches",
        "limit_test_batches", "limit_predict_batches", "overfit_batches", "val_check_interval", "check_val_every_n_epoch", "logger",
        "num_sanity_val_steps", "log_every_n_steps", "enable_checkpointing", "enable_progress_bar", "enable_model_summary",
        "gradient_clip_algorithm", "deterministic", "inference_mode", "use_distributed_sampler", "profiler", "detect_anomaly",
        "barebones", "callbacks", "default_root_dir", "fast_dev_run", "reload_dataloaders_every_n_epochs", "enable_autolog_hparams",
    )  # fmt: skip
    trainer.not_modelled("benchmark", "sync_batchnorm", "plugins", "model_registry")
    keys.free("seed_everything", "model", "data", "ckpt_path", "optimizer", "lr_scheduler", "fit")
    return Configuration(
        file=keys.file, trainer=TRAINER, settings=settings, plan=plan,
        devices=devices * nodes if isinstance(devices, int) and devices > 0 else None,
    )  # fmt: skip


def _strategy(keys: Keys) -> dict[str, Any]:
    given = keys.take("strategy", "auto")
    if isinstance(given, Mapping):
        part = keys.part("strategy")
        name = part.text("class_path").rpartition(".")[2].removesuffix("Strategy").lower()
        options = part.part("init_args")
        plan = dict(_STRATEGIES.get(name, {}))
        if name not in _STRATEGIES:
            part.say("class_path", "taken for DDP")
        if (stage := options.count("stage")) is not None:
            plan["zero"] = stage
        if (sharding := options.take("sharding_strategy")) is not None and name == "fsdp":
            plan["zero"] = options.chosen("sharding_strategy", _SHARDING, str(sharding))
        if "nvme" in (options.text("offload_optimizer_device", "cpu"), options.text("offload_params_device", "cpu")):
            plan["offload_to"] = "nvme"
        if options.flag("cpu_offload") or options.flag("offload_parameters"):
            plan["offload"] = "parameters"
        elif options.flag("offload_optimizer"):
            plan["offload"] = "optimizer"
        return plan
    return dict(keys.chosen("strategy", _STRATEGIES, "auto"))
