"""Tools that look into a program as it runs: tracers, exporters, profilers. A model is what it was before them."""

from __future__ import annotations

import contextlib
import resource
from typing import Any

import torch
from torch import nn

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    _keep_modules()
    _profile_nothing()
    once_imported("torch.onnx", _export_nothing)
    resource.setrlimit = lambda *args: None  # of the process that captures


def _keep_modules() -> None:
    """TorchScript runs the same ops as the Python that it is written in; compiled, it could not be fake."""

    def as_written(obj: Any, *args: Any, **kwargs: Any) -> Any:
        return obj

    for name in ("script", "script_method", "trace", "trace_module", "freeze", "optimize_for_inference"):
        replace(torch.jit, name, as_written)
    replace(torch.jit, "ScriptModule", _ScriptModule)
    replace(torch.jit, "save", lambda *args, **kwargs: None)


class _ScriptModule(nn.Module):
    """A module whose class is written in TorchScript: a module."""

    def __init__(self, optimize: Any = None) -> None:
        super().__init__()


def _export_nothing(module: Any) -> None:
    for name in ("export", "dynamo_export"):
        if hasattr(module, name):
            setattr(module, name, lambda *args, **kwargs: Nothing("torch.onnx.exported"))


class _Profile(contextlib.AbstractContextManager[Any]):
    """A profiler that sees nothing; all that it is asked for is empty."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.step_num = 0

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"torch.profiler.profile.{name}")


def _profile_nothing() -> None:
    import torch.autograd.profiler as former

    replace(torch.profiler, "profile", _Profile)
    replace(torch.profiler, "tensorboard_trace_handler", lambda *args, **kwargs: None)
    for name in ("profile", "emit_nvtx", "emit_itt"):
        replace(former, name, _Profile)
