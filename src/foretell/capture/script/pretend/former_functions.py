"""Functions of autograd as they were written before torch 0.4: objects that are called, with methods of their own."""

from __future__ import annotations

import types
from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    """Let `Sign()(x)` be what `Sign.apply(x)` is: the context stands for the object."""
    replace(torch.autograd.Function, "__call__", _call)


def _call(self: Any, *inputs: Any) -> Any:
    kind = type(self)

    class Called(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            for name, value in [*_methods(kind, ctx), *vars(self).items()]:
                setattr(ctx, name, value)
            return kind.forward(ctx, *given)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return kind.backward(ctx, *gradients)

    return Called.apply(*inputs)  # type: ignore[no-untyped-call]


def _methods(kind: type, ctx: Any) -> list[tuple[str, Any]]:
    """What a script's class has besides the two passes."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith("torch") and base is not object]
    members = {name: member for base in reversed(own) for name, member in vars(base).items()}
    return [
        (name, types.MethodType(member, ctx) if isinstance(member, types.FunctionType) else member)
        for name, member in members.items()
        if name not in ("forward", "backward") and not name.startswith("__") and name != "_backward_cls"
    ]
