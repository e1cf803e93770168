"""What the compiler decides by the device of a tensor, decided as for a GPU although the step is traced on CPU tensors.

Decompositions ask `device.type == "cuda"`: in the code of those that do, the names of devices are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

import torch
from torch import _decomp, _prims_common, _refs
from torch._inductor import decomposition, utils

from foretell.capture.compiled.padding import decide_by_estimates

_INSTEAD: Final = {"cuda": "cpu", "cpu": "no device"}
_LOOK: Final = (  # functions that look at the device of what they are given, by the modules that they are in
    (_decomp.decompositions, ("native_batch_norm_helper", "_upsample_nearest", "_upsample_linear")),
    (_refs, ("native_group_norm", "native_layer_norm")),
    (decomposition, ("addmm", "bmm", "mm")),
    (_prims_common, ("get_acc_type",)),
)  # fmt: skip
_TFLOPS: Final = {torch.float32: 67.0, torch.float64: 67.0}  # of the target; tf32 and 16 bits below
_TFLOPS_TF32: Final = 495.0
_TFLOPS_HALF: Final = 989.0


def decide_as_on_a_gpu() -> None:
    """In this process, from now on."""
    for module, names in _LOOK:
        for name in names:
            if (function := getattr(module, name, None)) is not None:  # versions differ
                _rename(function)
    vars(decomposition)["is_gpu"] = lambda device: True
    decide_by_estimates()
    vars(utils)["get_device_tflops"] = _tflops


def _rename(function: Callable[..., Any]) -> None:
    inner = inspect.unwrap(function)
    if isinstance(inner, FunctionType):
        inner.__code__ = inner.__code__.replace(co_consts=tuple(map(_constant, inner.__code__.co_consts)))


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return value.replace(co_consts=tuple(map(_constant, value.co_consts)))
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return _INSTEAD.get(value, value) if isinstance(value, str) else value


def _tflops(dtype: torch.dtype) -> float:
    if dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return _TFLOPS_TF32
    return _TFLOPS.get(dtype, _TFLOPS_HALF)
