"""What user code has torch.compile do: functions and modules that are compiled as they are first called, while a step is recorded.

Where nothing is recorded, where a reason speaks against it and where the compiler fails, they run as they are written.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from foretell.capture.as_gpu.patches import put_back, replace, restore
from foretell.capture.compiled import COMPILES
from foretell.capture.compiled.recorder import CompiledRecorder, Launcher
from foretell.capture.reads import is_library

_AS_WRITTEN: Final = ("eager",)  # backends that run the code as it is
_BY_GRAPHS: Final = ("reduce-overhead", "max-autotune")
_OF_OBJECTS: Final = ("FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "ID_MATCH")  # which objects, not which values
_BEFORE: Final = "it was compiled before the capture began"


class Left(NamedTuple):
    """What was to be compiled, and why it runs as it is written."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a step has compiled, and what it would have."""

    pieces: int = 0  # calls of compiled functions, forward and backward
    functions: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class _Wish:
    """A call of torch.compile."""

    name: str
    launched_by: Launcher
    why_not: str | None = None
    compiled: Any = None
    ran: int = 0  # compiled pieces, when it was called


@dataclass(slots=True, kw_only=True)
class _State:
    wishes: list[_Wish] = field(default_factory=list)
    compiler: Compiler | None = None
    given_up: str | None = None  # why nothing is compiled any more


_STATE: Final = _State()


def take_over() -> None:
    """From now on torch.compile is ours. What was compiled before runs as it is written."""
    _STATE.wishes.clear()  # a fork has its parent's
    _STATE.compiler = _STATE.given_up = None
    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")
    replace(torch, "compile", _compile)
    replace(torch.nn.Module, "compile", _compile_module)


def compile_with(compiler: Compiler) -> None:
    """What is asked for is compiled by this one."""
    _STATE.compiler = compiler


def give_up(why: str) -> None:
    """Everything runs as it is written, for this reason."""
    _STATE.compiler, _STATE.given_up = None, why
    torch.compiler.set_stance("force_eager")
    for wish in _STATE.wishes:
        wish.why_not, wish.ran = wish.why_not or why, 0


def is_wished() -> bool:
    return any(wish.why_not is None for wish in _STATE.wishes)


def found(model: torch.nn.Module | None = None, *functions: object) -> Compiled | None:
    """What was asked for, in a step of this model and these functions, and what came of it; None if nothing was."""
    wishes = list(_STATE.wishes)
    before = ["a module"] * any(type(m).__name__ == "OptimizedModule" for m in (model.modules() if model else ()))
    before += [_name(function) for function in functions if hasattr(function, "_torchdynamo_orig_callable")]
    wishes += [_Wish(name=name, launched_by="code", why_not=_BEFORE) for name in before]
    if not wishes:
        return None
    left = [Left(wish.name, wish.why_not) for wish in wishes if wish.why_not is not None]
    names = [wish.name for wish in wishes if wish.why_not is None and wish.ran]
    return Compiled(
        pieces=sum(wish.ran for wish in wishes),
        functions=tuple(dict.fromkeys(names)),
        left=tuple(dict.fromkeys(left)),
    )


def _compile(
    model: Any = None,
    *,
    backend: Any = "inductor",
    mode: Any = None,
    options: Any = None,
    disable: bool = False,
    **how: Any,
) -> Any:
    if model is None:
        return lambda function: _compile(
            function, backend=backend, mode=mode, options=options, disable=disable, **how
        )  # fmt: skip
    if disable or backend in _AS_WRITTEN or os.environ.get("TORCH_COMPILE_DISABLE") == "1" or _by_an_import():
        return model
    by_graphs = mode in _BY_GRAPHS or bool((options or {}).get("triton.cudagraphs"))
    wish = _Wish(name=_name(model), launched_by="graph" if by_graphs else "code", why_not=_STATE.given_up)
    if backend != "inductor":
        wish.why_not = f"the backend {backend} is not modelled"
    elif isinstance(getattr(model, "__self__", None), Optimizer):
        wish.why_not = "an optimizer's update is not compiled here"
    _STATE.wishes.append(wish)
    if isinstance(model, torch.nn.Module):
        model._compiled_call_impl = functools.partial(_call_module, wish, model)
        return model
    return _wrapped(wish, model) if callable(model) else model


def _compile_module(self: torch.nn.Module, *args: Any, **how: Any) -> None:
    _compile(self, **how)


def _name(model: Any) -> str:
    return str(getattr(model, "__qualname__", type(model).__name__)).rpartition("<locals>.")[2]


def _by_an_import() -> bool:
    """Whether a library compiles functions of its own as it is imported, whoever will call them."""
    frame: Any = sys._getframe(2)
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _wrapped(wish: _Wish, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(wish, function, args, kwargs)

    return call


def _call_module(wish: _Wish, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """As the module is called, hooks and all, with its forward pass compiled."""
    compiler = _STATE.compiler
    if torch.compiler.is_compiling() or compiler is None or not compiler.wants(wish):
        return module._call_impl(*args, **kwargs)
    around, own = vars(module).get("forward"), module.forward
    module.forward = lambda *args, **kwargs: _call(wish, own, args, kwargs)
    try:
        return module._call_impl(*args, **kwargs)
    finally:
        if around is None:
            del module.forward
        else:
            module.forward = around


def _call(wish: _Wish, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    compiler = _STATE.compiler
    if torch.compiler.is_compiling() or compiler is None or not compiler.wants(wish):
        return function(*args, **kwargs)
    return compiler.call(wish, function, args, kwargs)


class Compiler:
    """Compiles under a recorder. `why_not` says what speaks against it now; `since`: what was replaced in torch after so
    much is as it was while the compiler reads it; `report` hears that it begins."""

    def __init__(
        self,
        recorder: CompiledRecorder,
        why_not: Callable[[], str | None] = lambda: None,
        since: int | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._recorder, self._why_not, self._since, self._report = recorder, why_not, since, report
        self._ready = False
        self._ways: dict[Launcher, Any] = {}  # one for all functions: modules of one class are compiled once

    def wants(self, wish: _Wish) -> bool:
        if wish.why_not is None:
            wish.why_not = self._why_not()
        passing = not self._recorder.recording and not torch.is_grad_enabled()  # an evaluation, which nobody records
        return wish.why_not is None and not passing

    def call(self, wish: _Wish, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if wish.compiled is None:
            with self._as_torch_is():
                wish.compiled = self._compiled(wish, function)
        before, failures = self._recorder.ran, len(self._recorder.failures)
        made = wish.compiled(*args, **kwargs)
        wish.ran += self._recorder.ran - before
        if not wish.ran:
            why = (self._recorder.failures[failures:] or ["nothing of it could be traced"])[0]
            wish.why_not = f"the compiler could not be asked ({why})"
        return made

    def _compiled(self, wish: _Wish, function: Callable[..., Any]) -> Any:
        if not self._ready:
            self._report(COMPILES)
        from foretell.capture.compiled.model import compiled, prepare, way_of  # loads Inductor, which takes seconds

        if not self._ready:
            self._ready = True
            prepare()
            self._follow()
        if wish.launched_by not in self._ways:
            self._ways[wish.launched_by] = way_of(self._recorder, wish.launched_by, guard_filter_fn=_of_values)
        return compiled(function, self._ways[wish.launched_by])

    def _follow(self) -> None:
        config: Any = torch._dynamo.config
        config.suppress_errors = True  # what fails runs as it is written
        for name in ("torch._dynamo", "torch._inductor", "torch._functorch"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self._since is not None:
            torch._dynamo.callback.on_compile_start(lambda *given: self._show_torch())
            torch._dynamo.callback.on_compile_end(lambda *given: self._hide_torch())

    @contextmanager
    def _as_torch_is(self) -> Iterator[None]:
        self._show_torch()
        try:
            yield
        finally:
            self._hide_torch()

    def _show_torch(self) -> None:
        if self._since is not None:
            restore(self._since)
            vars(torch.cuda)["is_available"] = lambda: False  # it would ask what stands in for a driver

    def _hide_torch(self) -> None:
        if self._since is not None:
            put_back(self._since)


def _of_values(entries: Any) -> list[bool]:
    """Functions of torch are others while it is compiled: only values, types and shapes decide whether it is again."""
    return [entry.guard_type not in _OF_OBJECTS for entry in entries]
