"""A model that is compiled as torch.compile would, for the target, in a process that records its step."""

from __future__ import annotations

from typing import Any

import torch
from torch._compile import _disable_dynamo as disable_dynamo
from torch._subclasses.fake_tensor import FakeTensorMode

from foretell.capture.compiled.decisions import decide_as_on_a_gpu
from foretell.capture.compiled.lowering import backend, check_version
from foretell.capture.compiled.recorder import CompiledRecorder
from foretell.capture.compiled.target import answer_as_target


def compile_model(model: torch.nn.Module, recorder: CompiledRecorder) -> None:
    """From now on the model's forward pass, and the backward pass of it, are schedules."""
    check_version()
    answer_as_target()
    decide_as_on_a_gpu()
    dispatch: Any = FakeTensorMode.__torch_dispatch__
    FakeTensorMode.__torch_dispatch__ = disable_dynamo(dispatch)  # type: ignore[method-assign]
    torch.compiler.set_stance("default")
    torch._dynamo.reset()
    optimize: Any = torch._dynamo.optimize
    model.forward = optimize(backend(recorder))(model.forward)
