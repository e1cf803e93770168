"""DeepSpeed as a script sees it: `initialize` gives an engine that runs one replica's step, and its configuration is the plan.

What it would communicate, gather or keep in host memory is the plan's to say. Precision, accumulation, clipping and the
optimizer are the step's, and run here as a Workload of the same configuration runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from foretell.capture.dtypes import torch_dtype
from foretell.capture.script.findings import DeepSpeed
from foretell.capture.script.imports import provide
from foretell.capture.script.session import Session
from foretell.capture.script.wrapped import Wrapper
from foretell.capture.script.wrappers import keywords
from foretell.errors import WorkloadError
from foretell.precision import Precision
from foretell.sources.configs import read_configuration
from foretell.sources.master_weights import OnMasters, keep_main_gradients
from foretell.sources.named.optimizers import optimizer_named
from foretell.sources.objects import same_optimizer

NAME: Final = "deepspeed"
FREE: Final = ("model_parameters", "distributed_port", "dist_init_required")
NOT_MODELLED: Final = ("mpu", "mesh_param")
USED: Final = ("args", "model", "optimizer", "training_data", "lr_scheduler", "collate_fn", "config", "config_params")


def install(session: Session) -> None:
    provide(lambda name: name.partition(".")[0] == NAME, lambda name: _module(name, session), first=True)


def _module(name: str, session: Session) -> ModuleType:
    module = ModuleType(name)
    if name == NAME:
        module.__dict__.update(
            __version__="0.17.0",
            initialize=lambda *args, **kwargs: _initialize(session, *args, **kwargs),
            init_distributed=lambda *args, **kwargs: torch.distributed.init_process_group("nccl"),
            add_config_arguments=_add_arguments,
            DeepSpeedEngine=Engine,
        )
    else:
        module.__dict__.update(_PARTS.get(name.removeprefix(f"{NAME}."), {}))
    return module


def initialize(
    args: Any = None, model: Any = None, optimizer: Any = None, model_parameters: Any = None, training_data: Any = None,
    lr_scheduler: Any = None, distributed_port: int = 29500, mpu: Any = None, dist_init_required: Any = None,
    collate_fn: Any = None, config: Any = None, mesh_param: Any = None, config_params: Any = None,
) -> None:  # fmt: skip
    """Have the signature of DeepSpeed's own, which is not installed."""


def _initialize(session: Session, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    keys = keywords(initialize, f"deepspeed.initialize in {session.script.name}", args, kwargs)
    keys.free(*FREE)
    keys.not_modelled(*NOT_MODELLED)
    arguments, model = keys.take("args"), keys.take("model")
    config = keys.take("config") or keys.take("config_params") or getattr(arguments, "deepspeed_config", None)
    if config is None or model is None:
        raise WorkloadError("deepspeed.initialize is called without a model, or without a config. Give it both.")
    if torch.distributed.is_available() and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl")
    if isinstance(config, Mapping):
        configuration = read_configuration(config, Path("the DeepSpeed config"))
    else:
        configuration = read_configuration(json.loads(Path(config).read_text(encoding="utf-8")), Path(config))
    engine = Engine(model, keys.take("optimizer"), keys.take("lr_scheduler"), configuration, session)
    session.find_wrapper(DeepSpeed(settings=dict(configuration.plan)), keys)
    session.find_caveats(*configuration.caveats)
    loader, training_data, collate_fn = None, keys.take("training_data"), keys.take("collate_fn")
    if training_data is not None:
        loader = torch.utils.data.DataLoader(training_data, engine.batch, collate_fn=collate_fn)
    return engine, engine.optimizer, loader, engine.lr_scheduler


class Engine(Wrapper):
    """One replica of the model with its optimizer, as the configuration says."""

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: Any, config: Any, session: Session) -> None:
        super().__init__(model.to("cuda"))
        settings = config.settings
        self.batch: int = settings.get("batch", 1)
        ranks = session.findings.world or 1
        self.micro_steps: int = settings.get("grad_accumulation") or max(
            (config.global_batch or 1) // (self.batch * ranks), 1
        )
        self.clip = settings.get("clip_grad_norm")
        self.global_steps = self.local_rank = self._done = 0
        self.config, self.device = dict(settings), torch.device("cuda", 0)
        mixed = Precision.parse(settings["precision"]) if "precision" in settings else None
        if mixed is not None:
            model.to(torch_dtype(mixed.parameters))
        make = optimizer_named(settings["optimizer"]) if "optimizer" in settings else None
        if optimizer is not None and not callable(optimizer):
            make = same_optimizer(model, optimizer)
        elif optimizer is not None:
            make = optimizer
        if make is None:
            raise WorkloadError("deepspeed.initialize finds no optimizer: neither given nor in its config. Give one.")
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer: Any = OnMasters(trained, make) if mixed is not None else optimizer or make(trained)
        self.main_gradients: list[Tensor] = []
        if mixed is not None and mixed.gradients != mixed.parameters:
            self.main_gradients = keep_main_gradients(trained)
        self.lr_scheduler = (
            scheduler(self.optimizer) if callable(scheduler) and not hasattr(scheduler, "step") else scheduler
        )
        self._stage = int(config.plan.get("zero", 0))
        session.find(mixed=mixed, optimizer=optimizer if mixed is not None else None)

    def backward(self, loss: Tensor, **how: Any) -> Tensor:
        (loss / self.micro_steps).backward()
        return loss

    def step(self, *args: Any, **kwargs: Any) -> None:
        self._done += 1
        if self._done % self.micro_steps:
            return
        if self.clip:
            masters = isinstance(self.optimizer, OnMasters)
            nn.utils.clip_grad_norm_(self.optimizer.take_gradients() if masters else self.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.main_gradients:
            torch._foreach_zero_(self.main_gradients)
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.global_steps += 1

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self._done + 1) % self.micro_steps == 0

    def gradient_accumulation_steps(self) -> int:
        return self.micro_steps

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.batch

    def zero_optimization_stage(self) -> int:
        return self._stage

    def get_global_grad_norm(self) -> float:
        return 1.0

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> tuple[None, dict[str, Any]]:
        return None, {}


def _add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument("--deepspeed", action="store_true", default=False)
    group.add_argument("--deepspeed_config", type=str, default=None)
    with contextlib.suppress(argparse.ArgumentError):
        group.add_argument("--local_rank", type=int, default=0)
    return parser


def _adam(
    params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0, **how: Any
) -> Any:
    return torch.optim.AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


_PARTS: dict[str, dict[str, Any]] = {
    "zero": {
        "Init": lambda *args, **kwargs: contextlib.nullcontext(),
        "GatheredParameters": lambda *args, **kwargs: contextlib.nullcontext(),
    },
    "ops.adam": {"FusedAdam": _adam, "DeepSpeedCPUAdam": _adam},
    "comm": {
        name: getattr(torch.distributed, name, None)
        for name in ("barrier", "get_rank", "get_world_size", "is_initialized")
    },
    "accelerator": {"get_accelerator": lambda: _Accelerator()},
}


class _Accelerator:
    def device_name(self, index: Any = None) -> str:
        return "cuda" if index is None else f"cuda:{index}"

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)
