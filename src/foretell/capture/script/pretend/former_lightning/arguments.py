"""The arguments of Lightning's Trainer before its second version, and how a command line became them."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_RENAMED: Final[Mapping[str, str]] = {
    "max_nb_epochs": "max_epochs", "min_nb_epochs": "min_epochs", "nb_gpu_nodes": "num_nodes",
    "nb_sanity_val_steps": "num_sanity_val_steps",
    "row_log_interval": "log_every_n_steps", "train_percent_check": "limit_train_batches", "val_percent_check": "limit_val_batches",
    "test_percent_check": "limit_test_batches", "overfit_pct": "overfit_batches", "gradient_clip": "gradient_clip_val",
    "replace_sampler_ddp": "use_distributed_sampler", "default_save_path": "default_root_dir", "distributed_backend": "strategy",
}  # fmt: skip
# What has no part in a step, or is the same as nothing here.
_DROPPED: Final = frozenset(
    """auto_lr_find auto_scale_batch_size auto_select_gpus process_position flush_logs_every_n_steps
    log_gpu_memory amp_backend amp_level resume_from_checkpoint terminate_on_nan truncated_bptt_steps prepare_data_per_node
    weights_save_path stochastic_weight_avg track_grad_norm move_metrics_to_cpu multiple_trainloader_mode num_processes
    tpu_cores ipus log_save_interval print_nan_grads add_row_log_interval weights_summary progress_bar_refresh_rate
    show_progress_bar num_gpus reload_dataloaders_every_epoch callbacks_factory enable_pl_optimizer""".split()
)
_SPECIAL: Final = frozenset("gpus checkpoint_callback early_stop_callback use_amp".split())
_STRATEGIES: Final = {"dp": "auto", "ddp2": "ddp", "ddp_spawn": "ddp", "ddp_cpu": "ddp", "ddp_sharded": "ddp", "horovod": "ddp",
                      "ddp_sharded_spawn": "ddp", "ddp_fork": "ddp", "fsdp_native": "fsdp", "ddp_notebook": "ddp"}  # fmt: skip


def adapt(library: Any) -> None:
    trainer = library.Trainer
    make, fit = trainer.__init__, trainer.fit

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **_now(kwargs))

    @functools.wraps(fit)
    def fitted(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if "train_dataloader" in kwargs:
            kwargs["train_dataloaders"] = kwargs.pop("train_dataloader")
        return fit(self, model, *args, **kwargs)

    trainer.__init__, trainer.fit = init, fitted
    methods: dict[str, Callable[..., Any]] = {
        "add_argparse_args": _add_arguments,
        "from_argparse_args": _from_arguments,
        "parse_argparser": lambda kind, args: args,
    }
    for kind in (trainer, library.LightningModule, library.LightningDataModule):
        for name, method in methods.items():
            if not hasattr(kind, name):
                setattr(kind, name, classmethod(method))
    _add_attributes(trainer)


def _add_attributes(trainer: Any) -> None:
    values: dict[str, Any] = {
        "gpus": lambda self: self.num_devices, "num_gpus": lambda self: self.num_devices, "on_gpu": lambda self: True,
        "use_ddp": lambda self: self.num_devices > 1, "use_dp": lambda self: False, "use_ddp2": lambda self: False,
        "use_tpu": lambda self: False, "root_gpu": lambda self: 0, "running_sanity_check": lambda self: self.sanity_checking,
        "num_processes": lambda self: self.num_devices, "data_parallel_device_ids": lambda self: self.device_ids,
    }  # fmt: skip
    for name, value in values.items():
        if not hasattr(trainer, name):
            setattr(trainer, name, property(value))
    if not hasattr(trainer, "tune"):
        trainer.tune = lambda self, *args, **kwargs: {}


def _now(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as Trainer takes them today."""
    found = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _DROPPED | _SPECIAL}
    for name in ("devices", "precision", "accelerator", "strategy"):
        if name in found and found[name] is None:
            del found[name]  # what was the default
    _devices(found, given)
    _strategy(found)
    if given.get("use_amp"):
        found["precision"] = 16
    if "max_steps" in found and found["max_steps"] is None:
        del found["max_steps"]
    steps = found.get("accumulate_grad_batches")
    if isinstance(steps, dict):  # by epoch; the first counts
        found["accumulate_grad_batches"] = steps.get(0, 1)
    if found.get("profiler") is True:
        found["profiler"] = "simple"
    _callbacks(found, given)
    return found


def _devices(found: dict[str, Any], given: Mapping[str, Any]) -> None:
    gpus = given.get("gpus")
    if isinstance(gpus, str):
        gpus = [part for part in gpus.split(",") if part] if "," in gpus else gpus
        gpus = int(gpus) if isinstance(gpus, str) and gpus.lstrip("-").isdigit() else gpus
    if gpus in (None, 0, "", []):
        return
    found.setdefault("accelerator", "gpu")
    found["devices"] = len(gpus) if isinstance(gpus, list | tuple) else gpus  # any of them is like the first


def _strategy(found: dict[str, Any]) -> None:
    accelerator = found.get("accelerator")
    if isinstance(accelerator, str) and (accelerator.startswith("ddp") or accelerator in _STRATEGIES):
        found["strategy"], found["accelerator"] = accelerator, "gpu"
    plugins = found.get("plugins")
    for plugin in plugins if isinstance(plugins, list | tuple) else [plugins]:
        if type(plugin).__name__.endswith("Strategy") or (isinstance(plugin, str) and plugin in _STRATEGIES):
            found["strategy"] = plugin
            found["plugins"] = None
    if isinstance(found.get("strategy"), str):
        found["strategy"] = _STRATEGIES.get(found["strategy"], found["strategy"])


def _callbacks(found: dict[str, Any], given: Mapping[str, Any]) -> None:
    callbacks = found.get("callbacks") or []
    more = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    checkpoint, stops = given.get("checkpoint_callback"), given.get("early_stop_callback")
    if isinstance(checkpoint, bool):
        found["enable_checkpointing"] = checkpoint
    more += [one for one in (checkpoint, stops) if one is not None and not isinstance(one, bool)]
    if more:
        found["callbacks"] = more


# Command lines


def _parameters(kind: Any) -> dict[str, Any]:
    """Names of a class's arguments, with their defaults."""
    taken = inspect.signature(kind.__init__).parameters.values()
    own = {p.name: p.default for p in taken if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "self"}
    former = {*_RENAMED, *_DROPPED, *_SPECIAL} if kind.__name__ == "Trainer" else ()
    return dict.fromkeys(former) | own


def _add_arguments(kind: Any, parent_parser: Any, *args: Any, **kwargs: Any) -> Any:
    there = {option for action in parent_parser._actions for option in action.option_strings}
    group = parent_parser.add_argument_group(f"pl.{kind.__name__}")
    for name, default in _parameters(kind).items():
        if f"--{name}" not in there:
            value = None if default is inspect.Parameter.empty else default
            group.add_argument(f"--{name}", type=_read, default=value, nargs="?", const=True)
    return parent_parser


def _from_arguments(kind: Any, args: Any, **kwargs: Any) -> Any:
    given = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
    names = _parameters(kind)
    return kind(**({name: value for name, value in given.items() if name in names} | kwargs))


def _read(text: str) -> Any:
    """A number, a flag, nothing, or text."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
