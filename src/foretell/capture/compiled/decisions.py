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
from torch._decomp import decompositions_for_rng
from torch._inductor import decomposition, lowering, utils
from torch._inductor.graph import GraphLowering
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

from foretell.capture.compiled.padding import decide_by_estimates
from foretell.capture.compiled.target import CUDA

_INSTEAD: Final = {"cuda": "cpu", "cpu": "meta"}  # where nothing lies
_LOOK: Final = (  # functions that look at the device of what they are given, by the modules that they are in
    (_decomp.decompositions, ("native_batch_norm_helper", "_upsample_nearest", "_upsample_linear")),
    (decompositions_for_rng, ("bernoulli_", "bernoulli_p")),
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
    vars(torch._C)["_conv_determine_backend_memory_format"] = _as_cudnn_lays_out
    vars(utils)["get_device_tflops"] = _tflops
    _inline_constants()


def _inline_constants() -> None:
    """Those of a few numbers, as far as they are known, lie in the code of a kernel on the device."""
    tensor: Any = lowering.tensor
    graph: Any = GraphLowering
    small = graph.can_inline_constant
    lowering.tensor = lambda data, **how: tensor(data, **{**how, "device": CUDA})
    graph.can_inline_constant = staticmethod(lambda value: not isinstance(value, FakeTensor) and small(value))


def _as_cudnn_lays_out(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
    """Channels last where either of them is; torch's libraries for CPUs look at the device, and at other things."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    if last is None or torch.float64 in (x.dtype, weight.dtype):
        return torch.contiguous_format
    return last if any(suggest_memory_format(each) is last for each in (x, weight)) else torch.contiguous_format


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
