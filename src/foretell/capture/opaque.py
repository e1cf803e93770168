"""Declared operations as ops of the graph: `foretell.opaque.NAME`, which reads tensors and writes others, and its gradient."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from foretell import declared as declarations
from foretell.declared import Opaque
from foretell.errors import WorkloadError

_SCHEMA: Final = "(Tensor[] read, Tensor(a!)[] written, float flops, float traffic) -> ()"
_LIBRARY: Final[list[Any]] = []  # a library that is collected takes its operators with it


def use_declarations() -> None:
    """Run declared operations by their declarations, in this process."""
    declarations.stand_in(run)


def run(declared: Opaque, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    call = _Call(declared, args, kwargs)
    made = _Operation.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return pytree.tree_unflatten(list(made), call.shape)


class _Call:
    """One call of a declared operation."""

    def __init__(self, declared: Opaque, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.declared, self.args, self.kwargs = declared, args, kwargs
        self.label = re.sub(r"\W", "_", declared.name).strip("_") or "unnamed"
        self.shape: Any = None

    def outputs(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        make = self.declared.outputs
        if make is None and not tensors:
            raise WorkloadError(
                f"foretell.opaque({self.label!r}) is given no tensor: say with outputs=… what it returns."
            )
        made = torch.empty_like(tensors[0]) if make is None else make(*self.args, **self.kwargs)
        leaves, self.shape = pytree.tree_flatten(made)
        if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise WorkloadError(
                f"outputs of foretell.opaque({self.label!r}) must return tensors, got {type(made).__name__}. "
                "Return empty ones of the right shapes, as torch.empty_like(x)."
            )
        return leaves

    def amount(self, what: str) -> float | None:
        value = getattr(self.declared, what)
        value = value(*self.args, **self.kwargs) if callable(value) else value
        if value is not None and not 0 <= float(value) < float("inf"):
            raise WorkloadError(f"{what} of foretell.opaque({self.label!r}) must be at least 0, got {value!r}.")
        return None if value is None else float(value)


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = call.outputs(tensors)
        flops, own = call.amount("flops") or 0.0, call.amount("backward_flops")
        launch(call.label, tensors, made, flops, call.amount("traffic"))
        # Not the call itself, whose arguments would outlive a checkpoint.
        ctx.label, ctx.flops = f"{call.label}_backward", 2 * flops if own is None else own
        ctx.save_for_backward(*tensors)
        ctx.mark_dirty(*[tensor for tensor in made if any(tensor is given for given in tensors)])
        ctx.mark_non_differentiable(*[tensor for tensor in made if not tensor.is_floating_point()])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors  # asked for once: a checkpoint computes them again
        wanted = ctx.needs_input_grad[1:]
        made = [torch.empty_like(t) if needed else None for t, needed in zip(saved, wanted, strict=True)]
        read = [*saved, *(g for g in gradients if g is not None)]
        launch(ctx.label, read, [t for t in made if t is not None], ctx.flops)
        return (None, *made)


def launch(label: str, read: Any, written: Any, flops: float, traffic: float | None = None) -> None:
    if traffic is None:
        traffic = float(sum(t.numel() * t.element_size() for t in (*read, *written)))
    _operator(label)(list(read), list(written), flops, traffic)


@cache
def _operator(label: str) -> Any:
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library("foretell", "FRAGMENT"))
    _LIBRARY[0].define(f"opaque.{label}{_SCHEMA}")
    _LIBRARY[0].impl(f"opaque.{label}", lambda read, written, flops, traffic: None, "CompositeExplicitAutograd")
    return getattr(torch.ops.foretell.opaque, label)
