"""Apex's mixed precision and its wrappers of many devices, as torch's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from foretell.capture.script.pretend.kernels.notes import note

_SCALE: Final = 65536.0


class _State:
    """Whether losses are scaled."""

    scales = False


def _initialize(models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **how: Any) -> Any:
    if enabled and opt_level != "O0":
        for model in models if isinstance(models, list | tuple) else [models]:
            _cast(model, opt_level)
        _State.scales = True
    return models if optimizers is None else (models, optimizers)


def _cast(model: nn.Module, opt_level: str) -> None:
    if opt_level == "O3":
        model.half()
        return
    if opt_level == "O2":
        note("apex.amp: O2's weights in fp16 with copies in fp32 are run as torch's autocast, as O1 is")
    forward = model.forward

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", torch.float16):
            return forward(*args, **kwargs)

    model.forward = cast


@contextlib.contextmanager
def _scale_loss(loss: Tensor, optimizers: Any, *args: Any, **how: Any) -> Iterator[Tensor]:
    if not _State.scales:
        yield loss
        return
    yield loss.float() * _SCALE
    for optimizer in optimizers if isinstance(optimizers, list | tuple) else [optimizers]:
        if gradients := [p.grad for p in _master_params(optimizer) if p.grad is not None]:
            torch._foreach_mul_(gradients, 1.0 / _SCALE)


def _master_params(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


class _Handle:
    """What `amp.init` gave, before `amp.initialize`."""

    scale_loss = staticmethod(_scale_loss)

    def wrap_optimizer(self, optimizer: Any, num_loss: int = 1) -> Any:
        return optimizer


def _parallel(module: nn.Module, *args: Any, **how: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module)


def _same(function: Any = None, *args: Any, **how: Any) -> Any:
    return function


def _sync_norms(module: nn.Module, process_group: Any = None, channel_last: bool = False) -> nn.Module:
    made: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    return made


KNOWN: Final[Mapping[str, Any]] = {
    "apex.amp.initialize": _initialize,
    "apex.amp.init": lambda *args, **how: _Handle(),
    "apex.amp.scale_loss": _scale_loss,
    "apex.amp.master_params": _master_params,
    "apex.amp.state_dict": dict,
    "apex.amp.load_state_dict": lambda state: None,
    "apex.amp.disable_casts": contextlib.nullcontext,
    **{f"apex.amp.{name}": _same for name in ("half_function", "float_function", "promote_function")},
    **{
        f"apex.amp.register_{name}_function": lambda module, name: None for name in ("half", "float", "promote")
    },
    "apex.parallel.DistributedDataParallel": _parallel,
    "apex.parallel.SyncBatchNorm": nn.SyncBatchNorm,
    "apex.parallel.convert_syncbn_model": _sync_norms,
    "apex.parallel.create_syncbn_process_group": lambda *args, **how: None,
}  # fmt: skip
