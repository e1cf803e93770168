"""The step of the contract, on any device: build model, batch and optimizer, then run one update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from foretell.capture.dtypes import half_dtype, torch_dtype
from foretell.errors import WorkloadError
from foretell.sources.master_weights import Copies, OnMasters, keep_main_gradients
from foretell.workload import Kernels, Workload

# FlashAttention 3 is not torch's; cuDNN's kernel does the same work in the same way and about as fast.
ATTENTION: Final[dict[str, SDPBackend]] = {
    "flash1": SDPBackend.FLASH_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION,
    "flash3": SDPBackend.CUDNN_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
}  # fmt: skip
Watch = Callable[[str, int], None]  # called with (phase, micro-step) as the step enters it


@dataclass(kw_only=True)
class Step:
    """A workload made concrete on one device, ready to run again and again."""

    workload: Workload
    model: torch.nn.Module
    batch: Any
    optimizer: torch.optim.Optimizer | None
    scaler: torch.amp.GradScaler | None
    device: str
    copies: Copies | None = None  # of parameters, which the model computes with
    main_gradients: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        precision = self.workload.arithmetic
        if precision.casts:
            self.copies = Copies(self.model, torch_dtype(precision.products))
        if precision.gradients != precision.parameters and self.optimizer is not None:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            engine = Kernels.parse(self.workload.kernels).base == "fused-model"
            self.main_gradients = keep_main_gradients(trained, copied=engine)

    @classmethod
    def of(cls, workload: Workload, model: torch.nn.Module, batch: Any, device: str = "cpu") -> Step:
        """The step of a prepared model on a batch as the workload makes it."""
        return cls(
            workload=workload,
            model=model,
            batch=prepare_batch(workload, batch),
            optimizer=prepare_optimizer(workload, model),
            scaler=make_scaler(workload, device),
            device=device,
        )

    def run(self, watch: Watch = lambda phase, micro: None, micro_steps: int | None = None) -> None:
        with self._attention():
            self._run(watch, micro_steps or self.workload.grad_accumulation)
        self._drop_copies()

    def _run(self, watch: Watch, micro_steps: int) -> None:
        workload = self.workload
        if self.optimizer is None:
            watch("forward", 0)
            with torch.inference_mode(), self._autocast():
                workload.loss(self.model, self.batch)
            return
        if workload.step is not None:
            watch("forward", 0)
            workload.step(self.model, self.optimizer, self.batch)
            return
        scaler = self.scaler
        for micro in range(micro_steps):
            watch("forward", micro)
            with self._autocast():
                loss = _checked(workload.loss(self.model, self.batch), workload)
            watch("backward", micro)
            loss = loss / workload.grad_accumulation
            (scaler.scale(loss) if scaler else loss).backward()
            del loss
            self._drop_copies()
        watch("optimizer", 0)
        if workload.clip_grad_norm is not None:
            if scaler:
                scaler.unscale_(self.optimizer)
            updated = (
                self.optimizer.take_gradients() if isinstance(self.optimizer, OnMasters) else self.model.parameters()
            )
            torch.nn.utils.clip_grad_norm_(updated, workload.clip_grad_norm)
        if scaler:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.main_gradients:
            torch._foreach_zero_(self.main_gradients)

    def _attention(self) -> contextlib.AbstractContextManager[Any]:
        """The kernel that is asked for, and where it cannot run, what torch picks of the others."""
        if self.workload.attention is None:
            return contextlib.nullcontext()
        first = ATTENTION[self.workload.attention]
        others = [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ]
        return sdpa_kernel([first, *(each for each in others if each is not first)], set_priority=True)

    def _drop_copies(self) -> None:
        if self.copies is not None:
            self.copies.made.clear()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = self.workload.arithmetic.autocast
        return torch.autocast(self.device, dtype=torch_dtype(dtype)) if dtype else contextlib.nullcontext()


def prepare_model(workload: Workload, model: Any) -> torch.nn.Module:
    """Cast and lay out the module as the workload says."""
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(
            f"model of workload {workload.name!r} returned {type(model).__name__}, not a torch.nn.Module. "
            "Let model=lambda: … build and return the module."
        )
    if dtype := half_dtype(workload.arithmetic.parameters):
        model.to(dtype)
    if workload.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if workload.optimizer is None:
        return model.eval().requires_grad_(False)
    return model.train()


def prepare_batch(workload: Workload, batch: Any) -> Any:
    dtype = half_dtype(workload.arithmetic.compute)  # autocast takes inputs as they are
    first = next(_tensors(batch), None)
    if first is not None and first.dim() and not first.shape[0]:
        raise WorkloadError(
            f"batch of workload {workload.name!r} has no samples: its first tensor has shape {tuple(first.shape)}. "
            "Make it of at least 1."
        )

    def prepare(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if dtype and value.is_floating_point():
            value = value.to(dtype)
        if workload.channels_last and value.dim() == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        return value

    return pytree.tree_map(prepare, batch)


def prepare_optimizer(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer | None:
    if workload.optimizer is None:
        return None
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise WorkloadError(
            f"workload {workload.name!r} trains nothing: no parameter requires a gradient. "
            "Leave some parameters unfrozen, or set optimizer=None for inference."
        )
    make = _fused(workload.optimizer) if Kernels.parse(workload.kernels).of_megatron else workload.optimizer
    if workload.arithmetic.master:
        return OnMasters(trainable, make)
    return make(trainable)


def _fused(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Any], torch.optim.Optimizer]:
    """The optimizer in its fused form, where it has one."""

    def made(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        for group in (optimizer.defaults, *optimizer.param_groups):
            if "fused" in group:
                group.update(fused=True, foreach=False)
        return optimizer

    return made


def make_scaler(workload: Workload, device: str) -> torch.amp.GradScaler | None:
    trains_in_fp16 = workload.arithmetic.autocast == "fp16" and workload.optimizer is not None and workload.step is None
    return torch.amp.GradScaler(device) if trains_in_fp16 else None


def batch_sizes(workload: Workload, batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of one batch: as stated, else dim 0 of the first tensor and numel of an integer (B, S) input."""
    tensors = list(_tensors(batch))
    samples, tokens = workload.samples, workload.tokens
    if samples is None and tensors and tensors[0].dim():
        samples = int(tensors[0].shape[0])
    if tokens is None:
        sequences = [t for t in tensors if t.dim() == 2 and not t.is_floating_point() and t.dtype != torch.bool]
        tokens = int(sequences[0].numel()) if sequences else None
    return samples, tokens


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def _checked(loss: Any, workload: Workload) -> torch.Tensor:
    what = f"loss of workload {workload.name!r}"
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(
            f"{what} returned {type(loss).__name__}, not a tensor. "
            "Return the scalar to call backward on, for example model(**batch).loss."
        )
    if loss.numel() != 1:
        raise WorkloadError(
            f"{what} has shape {tuple(loss.shape)}, but backward needs a scalar. Reduce it, for example with .mean()."
        )
    if not loss.requires_grad:
        raise WorkloadError(
            f"{what} does not depend on any trainable parameter. "
            "Check for .detach(), torch.no_grad() or a model that is frozen whole."
        )
    return loss
