"""Triton's kernels: a launch reads and writes the tensors that it is given, which is what it is priced by."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from foretell.capture.script.pretend.kernels.by_bytes import launch_by_bytes
from foretell.capture.script.pretend.kernels.package import Package, is_tried
from foretell.capture.script.pretend.kernels.unknown import Unknown
from foretell.errors import WorkloadError

_TORCH: Final = os.path.join(os.path.dirname(torch.__file__), "")  # which looks itself whether Triton is there


def is_needed_by_a_library(name: str) -> bool:
    """Whether a library that is being imported fails without Triton: it comes with kernels, and is installed."""
    if name.partition(".")[0] != "triton":
        return False
    if isinstance(sys.modules.get("triton"), Triton):
        return True
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "importlib.util" in file or file.startswith(_TORCH):
            return False  # it looks whether it is there
        if "importlib" not in file:
            if is_tried(frame):
                return False
            if frame.f_code.co_name != "<module>":
                break
        frame = frame.f_back
    return True


class Triton(Package):
    """Enough of Triton for a script to define its kernels."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("jit", "autotune", "heuristics"):
            return _kernel if name == "jit" else lambda *args, **kwargs: lambda function: function
        if name == "cdiv":
            return lambda a, b: -(-a // b)
        if name == "next_power_of_2":
            return lambda n: 1 << max(n - 1, 0).bit_length()
        return _Anything(f"{self.__name__}.{name}")


class _Anything(Unknown):
    """A name of Triton's, as a type or in a configuration: harmless until a kernel is launched."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Kernel:
    def __init__(self, function: Any) -> None:
        self.name = getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise WorkloadError(
                f"the script launches {self.name}, a Triton kernel, which needs a GPU. Put @foretell.opaque(outputs=lambda "
                "…: torch.empty(…), flops=…) on the function that launches it: outside of forecasts that changes nothing."
            )
        launch_by_bytes(self.name, tensors, f"Triton's {self.name}")

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
        return self(*args, **kwargs)


def _kernel(function: Any = None, **how: Any) -> Any:
    return _Kernel(function) if function is not None else _Kernel


def adapt_installed(module: Any) -> None:
    if not isinstance(module, Package):
        function = importlib.import_module("triton.runtime.jit").JITFunction
        function.run = lambda self, *args, **kwargs: _Kernel(self.fn).run(*args, **kwargs)
