"""CUDA and C++ that is compiled as a script runs: the few functions that many repositories share, by their names.

StyleGAN's filters and activations come with every repository that is built on it. A function whose result is dropped writes
into tensors that it is given, and is priced by their bytes. All others say how to declare them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import _OpNamespace
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu.patches import replace
from foretell.capture.opaque import run as run_declared
from foretell.capture.script.following import after_the_call
from foretell.capture.script.pretend.kernels.by_bytes import launch_by_bytes
from foretell.capture.script.pretend.kernels.package import as_declared
from foretell.capture.script.pretend.kernels.unknown import Unknown
from foretell.declared import DECLARED, Opaque


def _filtered(size: int, up: int, down: int, before: int, after: int, taps: int) -> int:
    return (size * up + before + after - taps) // down + 1


def _filter_shape(x: Tensor, taps: Tensor, *how: Any) -> Tensor:
    """Of pictures, resampled and filtered: (n, c, h, w) with a filter's own gain, or (n, h, w, c) without."""
    up_x, up_y, down_x, down_y, x0, x1, y0, y1 = (int(value) for value in how[:8])
    rows = taps.shape[0]
    columns = taps.shape[-1]
    last = len(how) > 8
    height, width = (x.shape[2], x.shape[3]) if last else (x.shape[1], x.shape[2])
    height, width = _filtered(height, up_y, down_y, y0, y1, rows), _filtered(width, up_x, down_x, x0, x1, columns)
    return x.new_empty((x.shape[0], x.shape[1], height, width) if last else (x.shape[0], height, width, x.shape[3]))


_LIKE: Final[Callable[..., Tensor]] = lambda x, *how: x.new_empty(x.shape)  # noqa: E731
_OUTPUTS: Final[dict[str, Callable[..., Any]]] = {
    "fused_bias_act": _LIKE, "bias_act": _LIKE, "upfirdn2d": _filter_shape,
}  # fmt: skip


class _Extension(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := f"{self.__name__}.{name}") in DECLARED:
            return as_declared(DECLARED[path])
        if name not in _OUTPUTS:
            return _Writing(path)
        taps = _taps if name == "upfirdn2d" else 0.0
        known = Opaque(name=name, outputs=_OUTPUTS[name], flops=taps, traffic=None, backward_flops=None)
        return lambda *args, **kwargs: run_declared(known, args, kwargs)


class _Operators(_OpNamespace):
    """`torch.ops.NAME` of an extension that registers its functions there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_Extension(vars(self)["name"]), name)


class _Writing(Unknown):
    """A function of an extension. A program that drops its result has given it what it writes into."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not tensors or not after_the_call(sys._getframe(1)).startswith("POP_TOP"):
            return super().__call__(*args, **kwargs)
        launch_by_bytes(self.path, tensors, f"{self.path}, compiled,")
        return None


class _Source:
    """A kernel that torch would compile from its source: a launch has a grid, blocks, and tensors that it works on."""

    def __init__(self, kernel_source: str, kernel_name: str, *args: Any, **how: Any) -> None:
        self.name = kernel_name

    def set_shared_memory_config(self, size: int) -> None:
        return None

    def __call__(self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, *rest: Any, **how: Any) -> None:
        tensors = [value for value in args or () if isinstance(value, Tensor)]
        if not tensors:
            Unknown(self.name)()
        launch_by_bytes(self.name, tensors, f"{self.name}, compiled from its source,")


def compile_nothing() -> None:
    """`torch.cuda._compile_kernel`, with its names of other versions."""
    for name in ("_compile_kernel", "compile_kernel"):
        setattr(torch.cuda, name, _Source)


def _taps(x: Tensor, taps: Tensor, *how: Any) -> float:
    return 2.0 * _filter_shape(x, taps, *how).numel() * taps.numel()


def adapt(module: Any) -> None:
    """`torch.utils.cpp_extension`: nothing is compiled."""

    def load(name: str, *args: Any, is_python_module: bool = True, **kwargs: Any) -> Any:
        if not is_python_module:
            operators = getattr(torch.ops, name)
            operators.__class__ = _Operators  # the script may have it already
        return sys.modules.setdefault(name, _Extension(name))  # some import it by name then

    for loader in ("load", "load_inline"):
        replace(module, loader, load)
