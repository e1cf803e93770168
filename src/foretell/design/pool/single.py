"""One operator as a workload: forward and, with a dense gradient that is part of the batch, backward; little beside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import torch
from torch import nn

from foretell.errors import WorkloadError, check_choice
from foretell.precision import PrecisionName
from foretell.sources.named.optimizers import OPTIMIZERS
from foretell.workload import Workload

Shape: TypeAlias = tuple[int, ...]
Values: TypeAlias = Shape | Callable[[], torch.Tensor]  # random numbers of a shape, or what a function makes
_LARGEST: Final = 2**31 - 1


def operator(
    **allowed: tuple[int, int] | Iterable[str],
) -> Callable[[Callable[..., Workload]], Callable[..., Workload]]:
    """Makes a function a SOURCE named as it is, with checked settings.

    Whole numbers are at least 1, or from least to most as `allowed` says; texts are one of a Literal or of `allowed`.
    """

    def decorate(make: Callable[..., Workload]) -> Callable[..., Workload]:
        hints = get_type_hints(make)

        @functools.wraps(make)
        def checked(**settings: Any) -> Workload:
            for name, value in settings.items():
                if hints.get(name) is int:
                    least, most = allowed.get(name, (1, _LARGEST))
                    check_range(name, value, int(least), int(most))
                elif name in allowed or get_origin(hints.get(name)) is Literal:
                    check_choice(name, value, [*allowed.get(name, get_args(hints[name]))], WorkloadError)
            return replace(make(**settings), name=make.__name__)

        return checked

    return decorate


def check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise WorkloadError(f"{name} must be from {least} to {most}, got {value}. Give another --set {name}=….")


def check(condition: bool, problem: str) -> None:
    if not condition:
        raise WorkloadError(f"{problem}.")


class _Seeded(torch.autograd.Function):
    """A loss of zero whose gradient with respect to the outputs is what was given: no kernels between it and them."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors[:count])
        return tensors[count].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return None, *[None] * len(ctx.saved_tensors), *ctx.saved_tensors


class _Operator(nn.Module):
    def __init__(self, call: Callable[..., Any], layer: nn.Module | None) -> None:
        super().__init__()
        self.call = call
        self.layer = layer
        self.unused = nn.Parameter(torch.zeros(1))  # a step has something to train, though it gets no gradient

    def forward(self, **inputs: Any) -> Any:
        layer = () if self.layer is None else (self.layer,)
        return self.call(*layer, *inputs.values())


def applied(layer: Any, x: torch.Tensor) -> Any:
    return layer(x)


def workload(
    call: Callable[..., Any],
    inputs: Mapping[str, Values],
    outputs: Sequence[Values],
    *,
    layer: Callable[[], nn.Module] | None = None,
    wanted: Iterable[str] = ("x",),
    training: bool = True,
    precision: PrecisionName,
    channels_last: bool = False,
) -> Workload:
    """`call` takes the layer, where there is one, and the inputs; `wanted` names the inputs that get a gradient."""

    def batch() -> dict[str, Any]:
        made: dict[str, Any] = {name: _made(values) for name, values in inputs.items()}
        return made | {"gradients": [_made(values) for values in outputs]} if training else made

    def loss(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        # A fresh leaf each time, so that its gradient is neither added up nor copied.
        given = {n: v.detach().requires_grad_() if n in wanted else v for n, v in b.items() if n != "gradients"}
        out = model(**given)
        found = out if isinstance(out, tuple | list) else (out,)
        seeded: torch.Tensor = _Seeded.apply(len(found), *b["gradients"], *found)  # type: ignore[no-untyped-call]
        return seeded

    return Workload(
        name="operator",
        model=lambda: _Operator(call, layer() if layer else None),
        batch=batch,
        loss=loss if training else lambda model, b: model(**b),
        optimizer=OPTIMIZERS["sgd"] if training else None,
        precision=precision,
        channels_last=channels_last,
        samples=1,
    )


def _made(values: Values) -> torch.Tensor:
    return values() if callable(values) else torch.randn(values)
