"""The workload's step on a real device."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import re
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from foretell.capture.step import Step, make_scaler, prepare_batch, prepare_model, prepare_optimizer
from foretell.errors import WorkloadError
from foretell.workload import Workload

# Measuring repeats one batch many times. Steps must not drift into NaN on the way, and a step costs the same at any rate.
_LEARNING_RATE: Final = 1e-12
# Only CUDA's own allocator has an exception for it; the CPU's, cuBLAS and cuDNN say it in words.
_NO_MEMORY: Final = re.compile(r"out of memory|not enough memory|can't allocate memory|ALLOC_FAILED", re.IGNORECASE)


class LossWatch:
    """Keeps the last loss, without waiting for it."""

    def __init__(self, workload: Workload) -> None:
        self._loss: torch.Tensor | None = None
        self._of = workload.loss
        self.workload = dataclasses.replace(workload, loss=self._watched) if workload.optimizer else workload

    def _watched(self, model: Any, batch: Any) -> Any:
        loss = self._of(model, batch)
        if isinstance(loss, torch.Tensor):
            self._loss = loss.detach()
        return loss

    @property
    def finite(self) -> bool:
        return self._loss is None or math.isfinite(float(self._loss.float().sum()))


def build_step(workload: Workload, device: torch.device) -> Step:
    """Build model, batch and optimizer on the device; nothing else of it is left behind."""
    if workload.compile:
        raise WorkloadError(
            f"compile={workload.compile!r} of workload {workload.name!r} cannot be measured: kernels of a compiled step "
            "have no ops to belong to. Set compile=False."
        )
    if workload.kernels != "torch":
        raise WorkloadError(
            f"kernels={workload.kernels!r} of workload {workload.name!r} cannot be measured: they are not torch's. "
            "Leave kernels out."
        )
    if workload.attention in ("flash1", "flash3"):
        raise WorkloadError(
            f"attention={workload.attention!r} of workload {workload.name!r} cannot be measured: it is not in torch. Set "
            "attention='cudnn' or 'flash2'."
        )
    if workload.arithmetic.fp8 is not None:
        raise WorkloadError(
            f"precision={workload.arithmetic} of workload {workload.name!r} cannot be measured: 8-bit products are not torch's "
            "own. Set precision='bf16'."
        )
    torch.manual_seed(0)
    allow_units(workload)
    model = _model(workload, device)
    batch = _batch(workload, device)
    model = prepare_model(workload, model).to(device)
    optimizer = prepare_optimizer(workload, model)
    for group in optimizer.param_groups if optimizer else ():
        group["lr"] = _LEARNING_RATE
    free_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    scaler = _steady_scaler(workload, device)
    return Step(workload=workload, model=model, batch=batch, optimizer=optimizer, scaler=scaler, device=device.type)


def step_like(step: Step, workload: Workload, device: torch.device) -> Step:
    """The step of a workload that differs in its batch alone, with the model and optimizer that are there."""
    allow_units(workload)
    other = copy.copy(step)
    other.workload, other.batch = workload, _batch(workload, device)
    return other


def workload_columns(workload: Workload) -> dict[str, Any]:
    """Of a `StepRow`."""
    trains = {"training": workload.optimizer is not None, "grad_accumulation": workload.grad_accumulation}
    return {"workload": workload.name, "precision": workload.arithmetic.name, **trains}


def allow_units(workload: Workload) -> None:
    """Let the process use tf32 units or not, as the workload says. It holds for the whole process, until the next."""
    tf32 = workload.arithmetic.tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32 == "products"
    torch.backends.cudnn.allow_tf32 = tf32 != "never"


def _steady_scaler(workload: Workload, device: torch.device) -> torch.amp.GradScaler | None:
    """One that has found its scale: until then it overflows and skips updates, which no later step does."""
    scaler = make_scaler(workload, device.type)
    if scaler is not None:
        scaler.load_state_dict(scaler.state_dict() | {"scale": 1.0})
    return scaler


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # of the steps before, 32 MiB a thread, which no cache gives back
        torch.cuda.empty_cache()


def ran_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error))))


def _batch(workload: Workload, device: torch.device) -> Any:
    with torch.device(device):
        batch = workload.batch()
    batch = pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, batch)
    return prepare_batch(workload, batch)


def _model(workload: Workload, device: torch.device) -> Any:
    try:
        with torch.device(device):
            return workload.model()
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        return workload.model()  # some models compute on the host while they are built
