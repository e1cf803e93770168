"""DeepSpeed's engine: one replica of the model with its optimizer, which runs the step that the configuration asks for."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from foretell.capture.dtypes import torch_dtype
from foretell.capture.script.session import Session
from foretell.capture.script.wrapped import Wrapper
from foretell.precision import Precision
from foretell.sources.configs import Configuration
from foretell.sources.master_weights import OnMasters, keep_main_gradients
from foretell.sources.named.optimizers import optimizer_named
from foretell.sources.objects import same_optimizer


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


_FALSE = """autotuning_enabled flops_profiler_enabled wall_clock_breakdown memory_breakdown is_deepcompile_enabled
    curriculum_learning_enabled data_efficiency_enabled random_ltd_enabled torch_autocast_enabled zero_cpu_offload
    load_universal_checkpoint checkpoint_tag_validation_enabled is_compiled dynamic_loss_scale""".split()


class Engine(Wrapper):
    """A model as `deepspeed.initialize` returns it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        scheduler: Any,
        config: Configuration,
        entries: Mapping[str, Any],
        session: Session,
    ) -> None:
        super().__init__(model.to("cuda"))
        settings, self._entries, self._session = config.settings, dict(entries), session
        ranks = session.findings.world or 1
        self.config = self._config = dict(entries)
        self.world_size, self.global_rank, self.local_rank, self._done = ranks, 0, 0, 0
        self.global_steps = self.global_samples = self.micro_steps = self.skipped_steps = 0
        self.device = torch.device("cuda", 0)
        self._read_batch(config, ranks)
        self.clip = settings.get("clip_grad_norm")
        self._boundary: bool | None = None  # what a library says; else it is counted
        self._stage = int(config.plan.get("zero", 0))
        mixed = Precision.parse(settings["precision"]) if "precision" in settings else None
        self._mixed = mixed
        if mixed is not None:
            model.to(torch_dtype(mixed.parameters))
        self.main_gradients: list[Tensor] = []
        self.basic_optimizer = optimizer
        self.optimizer: Any = self._make_optimizer(optimizer, settings, mixed)
        self.lr_scheduler = self._make_scheduler(scheduler)
        session.find(mixed=mixed, optimizer=optimizer if mixed is not None and not callable(optimizer) else None)

    def _read_batch(self, config: Configuration, ranks: int) -> None:
        """Two of micro-batch, global batch and accumulation say the third."""
        total, micro = self._number("train_batch_size"), config.settings.get("batch")
        steps = config.settings.get("grad_accumulation")
        if micro is None:
            micro = max((total or ranks) // (ranks * (steps or 1)), 1)
        self.batch: int = micro
        self.steps: int = steps or max((total or micro * ranks) // (micro * ranks), 1)

    def _number(self, name: str) -> int | None:
        value = self._entries.get(name)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return int(value) if isinstance(value, int | float) or (isinstance(value, str) and value.isdigit()) else None

    def _make_optimizer(self, given: Any, settings: Mapping[str, Any], mixed: Precision | None) -> Any:
        make: Callable[[Any], Any] | None = None
        if self._entries.get("optimizer") and "optimizer" in settings:
            make = optimizer_named(settings["optimizer"])
        if given is not None:
            make = given if callable(given) else same_optimizer(self.module, given)
        trained = [p for p in self.module.parameters() if p.requires_grad]
        if make is None or not trained:
            return given  # a model that is only asked, such as a reference
        if mixed is None:
            made = given if given is not None and not callable(given) else make(trained)
        else:
            made = OnMasters(trained, make)
            if mixed.gradients != mixed.parameters:
                self.main_gradients = keep_main_gradients(trained, copied=True)
        made.overflow, made.cur_scale, made.loss_scale = False, 1.0, 1.0
        return made

    def _make_scheduler(self, given: Any) -> Any:
        if callable(given) and not hasattr(given, "step"):
            return given(self.optimizer)
        if given is None and self._entries.get("scheduler") and self.optimizer is not None:
            return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        return given

    def __getattr__(self, name: str) -> Any:
        """As DeepSpeed's: the model's attributes are the engine's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _FALSE:
                return lambda *args, **kwargs: False
            return getattr(super().__getattr__("module"), name)

    # The step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if (self._entries.get("fp16") or {}).get("auto_cast") and self.fp16_enabled():
            args, kwargs = pytree.tree_map_only(Tensor, _half, (args, kwargs))
        return self.module(*args, **kwargs)

    def backward(self, loss: Tensor, *args: Any, retain_graph: bool = False, **how: Any) -> Tensor:
        (loss / self.steps).backward(retain_graph=retain_graph)
        return loss

    def step(self, *args: Any, **kwargs: Any) -> None:
        ends = self.is_gradient_accumulation_boundary()
        self._done += 1
        self.micro_steps += 1
        self.global_samples += self.batch * self.world_size
        if not ends:
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

    def zero_grad(self, set_to_none: bool = True) -> None:
        return None  # its step does it

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self._done + 1) % self.steps == 0 if self._boundary is None else self._boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self._boundary = is_boundary

    @contextlib.contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        yield

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> None:
        return None

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self.module.compile()

    # What it is asked

    def gradient_accumulation_steps(self) -> int:
        return self.steps

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.batch

    def train_batch_size(self) -> int:
        return self.batch * self.steps * self.world_size

    def set_train_batch_size(self, train_batch_size: int) -> None:
        self.steps = max(train_batch_size // (self.batch * self.world_size), 1)

    def get_batch_info(self) -> tuple[int, int, int]:
        return self.train_batch_size(), self.batch, self.steps

    def zero_optimization_stage(self) -> int:
        return self._stage

    def zero_optimization(self) -> bool:
        return self._stage > 0

    def zero_optimization_partition_gradients(self) -> bool:
        return self._stage >= 2

    def zero_optimization_partition_weights(self) -> bool:
        return self._stage >= 3

    def bfloat16_enabled(self) -> bool:
        return self._mixed is not None and self._mixed.parameters == "bf16"

    def fp16_enabled(self) -> bool:
        return self._mixed is not None and self._mixed.parameters == "fp16"

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        kind = torch.float32 if self._mixed is None else torch_dtype(self._mixed.parameters)
        return kind, kind

    @property
    def communication_data_type(self) -> torch.dtype:
        return self.get_data_types()[0]

    def gradient_clipping(self) -> float:
        return float(self.clip or 0.0)

    def get_global_grad_norm(self) -> float:
        return 1.0

    def loss_scale(self) -> float:
        return 1.0

    def was_step_applied(self) -> bool:
        return True

    def steps_per_print(self) -> int:
        return self._number("steps_per_print") or 10

    def optimizer_name(self) -> str:
        return str((self._entries.get("optimizer") or {}).get("type", "")).lower()

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        return [group.get("momentum", group.get("betas")) for group in self.optimizer.param_groups]

    # Checkpoints, of which there are none

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> bool:
        return True

    save_16bit_model = save_fp16_model = save_checkpoint

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> tuple[None, Any]:
        return None, defaultdict(int)

    def module_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict()

    def load_module_state_dict(self, *args: Any, **kwargs: Any) -> None:
        return None

    def empty_partition_cache(self) -> None:
        return None

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        return None

    def reload_states(self, *args: Any, **kwargs: Any) -> None:
        return None

    def destroy(self) -> None:
        return None
