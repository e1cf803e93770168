"""torch.compile as its eager step: compiled kernels are not modelled, and compiling on fake tensors ends the process."""

from __future__ import annotations

import sys
from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.reads import is_library

_compiled: list[str] = []  # what was compiled


def run_eagerly() -> None:
    """From now on a compiled function or module is itself, also one that was compiled before."""
    _compiled.clear()  # a fork has its parent's
    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")

    def compile(model: Any = None, **how: Any) -> Any:
        if not _by_an_import():
            _compiled.append(getattr(model, "__name__", type(model).__name__))
        return model if model is not None else lambda function: function

    def compile_module(self: torch.nn.Module, *args: Any, **how: Any) -> None:
        _compiled.append(type(self).__name__)

    replace(torch, "compile", compile)
    replace(torch.nn.Module, "compile", compile_module)


def _by_an_import() -> bool:
    """Whether a library compiles functions of its own as it is imported, whoever will call them."""
    frame: Any = sys._getframe(2)
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def was_compiled(*models: torch.nn.Module) -> bool:
    """Whether the user's code asks for compiled kernels."""
    return bool(_compiled) or any(type(m).__name__ == "OptimizedModule" for model in models for m in model.modules())
