"""Functions that are compiled as torch.compile would, for the target, in a process that records a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch._compile import _disable_dynamo as disable_dynamo
from torch._guards import TracingContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as of_modules

from foretell.capture.as_gpu.devices import ACCELERATORS
from foretell.capture.compiled.decisions import decide_as_on_a_gpu
from foretell.capture.compiled.draws import draw_again_as_on_a_gpu
from foretell.capture.compiled.lowering import backend, check_version
from foretell.capture.compiled.recorder import CompiledRecorder, Launcher
from foretell.capture.compiled.target import answer_as_target

_MOST_CALLS: Final = 256  # different ways in which a function may be called
_HOOKS: Final = (
    "_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)  # fmt: skip


def prepare() -> None:
    """Let this process compile for the target, from now on."""
    check_version()
    answer_as_target()
    decide_as_on_a_gpu()
    draw_again_as_on_a_gpu()
    FakeTensorMode.__torch_dispatch__ = disable_dynamo(_on_the_host(FakeTensorMode.__torch_dispatch__))  # type: ignore[method-assign]
    torch.Tensor.__deepcopy__ = _keeping_constants(torch.Tensor.__deepcopy__)  # type: ignore[method-assign]
    _compile_each_shape()
    _stand_in_for_torch()
    torch._dynamo.reset()


def _compile_each_shape() -> None:
    """Other shapes are compiled anew: kernels whose sizes are symbols are those of numbers, which a forecast needs."""
    config: Any = torch._dynamo.config
    config.automatic_dynamic_shapes = False
    config.recompile_limit = config.accumulated_recompile_limit = _MOST_CALLS


def _stand_in_for_torch() -> None:
    """What is here instead of torch's functions is traced where compiled code calls it, and not compiled by itself."""
    rules: Any = torch._dynamo.trace_rules
    rules.add("foretell.capture")
    rules.get_mod_inlinelist().add(str(Path(__file__).parents[1]))


def compile_model(model: torch.nn.Module, recorder: CompiledRecorder, launched_by: Launcher) -> None:
    """From now on the model's forward pass, and the backward pass of it, are schedules."""
    prepare()
    model.forward = compiled(model.forward, way_of(recorder, launched_by))


def way_of(recorder: CompiledRecorder, launched_by: Launcher, **how: Any) -> Any:
    """How functions are compiled; `how` as Dynamo takes it."""
    optimize: Any = torch._dynamo.optimize
    return optimize(backend(recorder, launched_by), **how)


def compiled(function: Callable[..., Any], way: Any) -> Callable[..., Any]:
    """The function, compiled as it is called."""
    made = way(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        with without_hooks(), torch.compiler.set_stance("default"):  # elsewhere what was compiled before is as written
            return made(*args, **kwargs)

    return call


@contextmanager
def without_hooks() -> Iterator[None]:
    """Of all modules: they are a recorder's, and would be traced with the step."""
    tables = [getattr(of_modules, name) for name in _HOOKS]
    kept = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, entries in zip(tables, kept, strict=True):
            table.update(entries)


def _on_the_host(dispatch: Any) -> Any:
    """Traced code may name the accelerator: what it makes there lies, like all else, on the host until it is lowered."""

    def __torch_dispatch__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        if device is not None and torch.device(device).type in ACCELERATORS and _traces():
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return dispatch(self, func, types, args, kwargs)

    return __torch_dispatch__


def _keeping_constants(copied: Any) -> Any:
    """Graphs are copied with their constants, which cannot be under a fake mode; nobody writes them."""
    return lambda tensor, memo: tensor if TracingContext.try_get() is not None else copied(tensor, memo)


def _traces() -> bool:
    return TracingContext.try_get() is not None and not isinstance(V.graph, GraphLowering)
