"""The parts of DeepSpeed that scripts and libraries import, apart from the engine."""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.wrappers.deepspeed.engine import Engine
from foretell.capture.script.wrappers.deepspeed.pipeline import LayerSpec, PipelineEngine, PipelineModule, TiedLayerSpec

NAME: Final = "deepspeed"
VERSION: Final = "0.18.4"


class Part(ModuleType):
    """A module of DeepSpeed: what is not known here can be named, and fails as itself when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if any(f"{known}.".startswith(f"{path.removeprefix(f'{NAME}.')}.") for known in PARTS):
            return importlib.import_module(path)
        if self.__name__ == f"{NAME}.comm" and hasattr(torch.distributed, name):
            return getattr(torch.distributed, name)
        return _unknown(path)


def _unknown(path: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise StandInError(
            "DeepSpeed",
            path,
            f"Leave it out by an argument of the script's own, or declare what it returns: --opaque FILE with "
            f"foretell.opaque('{path}', …).",
        )

    return type(path.rpartition(".")[2], (), {"__init__": refuse, "__module__": path.rpartition(".")[0]})


class Context(contextlib.ContextDecorator):
    """Something that is entered and left, such as `zero.Init`, and changes nothing of one replica."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class OnDevice(Context):
    def __init__(self, dtype: Any = None, device: str = "meta", enabled: bool = True, **kwargs: Any) -> None:
        super().__init__()


class FusedAdam(torch.optim.AdamW):
    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999), eps: float = 1e-8,
        adam_w_mode: bool = True, weight_decay: float = 0.0, *args: Any, **how: Any,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class DeepSpeedCPUAdam(FusedAdam):
    """The plan says that the host runs it."""


class ZeroParamStatus(enum.Enum):
    """Where a parameter is; here it always is."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class RepeatingLoader:
    """Begins anew where a loader ends."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def __next__(self) -> Any:
        if "_iterator" not in vars(self):
            self._iterator = iter(self)
        return next(self._iterator)


class Accelerator:
    """What `get_accelerator()` returns: `torch.cuda` by other names."""

    _name, _communication_backend_name = "cuda", "nccl"

    def device_name(self, index: Any = None) -> str:
        return "cuda" if index is None else f"cuda:{index}"

    def current_device_name(self) -> str:
        return "cuda:0"

    def communication_backend_name(self) -> str:
        return "nccl"

    def is_bf16_supported(self) -> bool:
        return bool(torch.cuda.is_bf16_supported())

    def is_fp16_supported(self) -> bool:
        return True

    def is_synchronized_device(self) -> bool:
        return False

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def pin_memory(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor.pin_memory()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    group = parser.add_argument_group("DeepSpeed")
    for name, how in {
        "--deepspeed": {"action": "store_true", "default": False},
        "--deepspeed_config": {"type": str, "default": None},
        "--deepscale": {"action": "store_true", "default": False},
        "--deepscale_config": {"type": str, "default": None},
    }.items():
        with contextlib.suppress(argparse.ArgumentError):
            group.add_argument(name, **how)  # type: ignore[arg-type]
    return parser


def join_group(*args: Any, **kwargs: Any) -> None:
    if torch.distributed.is_available() and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl")


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _itself(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


def _checkpoint(function: Any, *args: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True)


def _schedule(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def _parameters_of_moe(groups: Any, *args: Any, **kwargs: Any) -> Any:
    return groups


class _Forked:
    """States of random numbers, of which fake tensors need none."""

    def fork(self, *args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext()


_LOGGER: Final = logging.getLogger("DeepSpeed")
_ZERO: Final[dict[str, Any]] = {
    "Init": Context, "GatheredParameters": Context, "register_external_parameter": _nothing, "MiCS_Init": Context,
    "unregister_external_parameter": _nothing, "ZeroParamStatus": ZeroParamStatus,
}  # fmt: skip
_CHECKPOINTING: Final[dict[str, Any]] = {
    "checkpoint": _checkpoint, "configure": _nothing, "is_configured": lambda: True, "reset": _nothing,
    "model_parallel_cuda_manual_seed": _nothing, "model_parallel_reconfigure_tp_seed": _nothing,
    "get_cuda_rng_tracker": _Forked, "set_num_layers": _nothing, "non_reentrant_checkpoint": _checkpoint,
}  # fmt: skip
_PIPE: Final[dict[str, Any]] = {
    "PipelineModule": PipelineModule, "LayerSpec": LayerSpec, "TiedLayerSpec": TiedLayerSpec,
    "PipelineEngine": PipelineEngine,
}  # fmt: skip
_UTILS: Final[dict[str, Any]] = {
    "logger": _LOGGER, "log_dist": _nothing, "RepeatingLoader": RepeatingLoader, "OnDevice": OnDevice,
    "set_z3_leaf_modules": _nothing, "set_z3_leaf_module": _nothing, "z3_leaf_module": lambda module: False,
    "safe_get_full_fp32_param": _itself, "safe_get_full_grad": lambda parameter: parameter.grad,
    "safe_get_full_optimizer_state": _nothing, "instrument_w_nvtx": _itself, "see_memory_usage": _nothing,
    "init_on_device": OnDevice,
}  # fmt: skip
PARTS: Final[dict[str, dict[str, Any]]] = {
    "zero": _ZERO, "runtime.zero": _ZERO, "runtime.zero.partition_parameters": _ZERO,
    "runtime.engine": {"DeepSpeedEngine": Engine}, "runtime.pipe.engine": _PIPE, "runtime.pipe.module": _PIPE,
    "runtime.pipe": _PIPE, "pipe": _PIPE, "checkpointing": _CHECKPOINTING,
    "runtime.activation_checkpointing": {}, "runtime.activation_checkpointing.checkpointing": _CHECKPOINTING,
    "runtime.utils": {"see_memory_usage": _nothing, "clip_grad_norm_": nn.utils.clip_grad_norm_},
    "runtime.dataloader": {"RepeatingLoader": RepeatingLoader}, "runtime": {},
    "runtime.lr_schedules": {
        "VALID_LR_SCHEDULES": ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"],
        **dict.fromkeys(("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"), _schedule),
    },
    "ops": {"__compatible_ops__": {}}, "ops.adam": {"FusedAdam": FusedAdam, "DeepSpeedCPUAdam": DeepSpeedCPUAdam},
    "ops.adam.fused_adam": {"FusedAdam": FusedAdam}, "ops.adam.cpu_adam": {"DeepSpeedCPUAdam": DeepSpeedCPUAdam},
    "comm": {"init_distributed": join_group}, "comm.comm": {"init_distributed": join_group},
    "accelerator": {"get_accelerator": Accelerator}, "utils": _UTILS, "utils.logging": {"logger": _LOGGER, "log_dist": _nothing},
    "utils.zero_to_fp32": {}, "utils.debug": {}, "moe": {}, "moe.layer": {},
    "moe.utils": {"split_params_into_different_moe_groups_for_optimizer": _parameters_of_moe, "is_moe_param": lambda p: False},
    "launcher": {}, "monitor": {}, "profiling": {}, "profiling.flops_profiler": {}, "git_version_info": {"version": VERSION},
}  # fmt: skip
