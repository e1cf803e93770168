"""Mixed precision as trainers do it by themselves: fp32 copies that are updated, main gradients, half-precision copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from foretell.errors import WorkloadError


class OnMasters(torch.optim.Optimizer):
    """Any optimizer on fp32 copies of bf16 or fp16 parameters, as Megatron, DeepSpeed and nanotron keep them."""

    def __init__(self, params: Iterable[Any], make: Callable[[Any], torch.optim.Optimizer]) -> None:
        params = list(params)
        with torch.no_grad():
            self.masters = {p: p.detach().float().requires_grad_() for p in params}
        self.inner = make(list(self.masters.values()))
        super().__init__(params, dict(self.inner.defaults))

    @torch.no_grad()
    def take_gradients(self) -> list[Tensor]:
        """Give the copies the gradients of their parameters; the copies that have one."""
        for p, master in self.masters.items():
            if master.grad is None and (own := gradient_of(p)) is not None:
                master.grad = own.float()
        return [master for master in self.masters.values() if master.grad is not None]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        masters = self.take_gradients()
        params = [p for p, master in self.masters.items() if master.grad is not None]
        for group in self.inner.param_groups:
            group["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
        torch._foreach_copy_(params, masters)
        for p, master in self.masters.items():
            master.grad = None
            self.state[p] = {"master": master, **self.inner.state.get(master, {})}


def gradient_of(parameter: Tensor) -> Tensor | None:
    """The gradient that is kept: a main gradient where there is one."""
    main: Tensor | None = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None else main


def keep_main_gradients(parameters: Iterable[Tensor], *, copied: bool = False) -> list[Tensor]:
    """Add gradients up in fp32 as soon as they are made, and drop them; the sums, which are there all along.

    `copied`: through an fp32 copy of each, as DeepSpeed's engine adds them up.
    """
    mains, add = [], _add_copy_to_main if copied else _add_to_main
    for p in parameters:
        p.main_grad = torch.zeros_like(p, dtype=torch.float32, requires_grad=False)  # type: ignore[attr-defined]
        mains.append(p.main_grad)  # type: ignore[attr-defined]
        p.register_post_accumulate_grad_hook(add)
    return mains


def _add_to_main(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None


def _add_copy_to_main(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad.float())  # type: ignore[attr-defined]
        parameter.grad = None


class Copies:
    """The half-precision copies of a model's parameters that it computes with: each made where it is first used."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.made: dict[int, Tensor] = {}
        self.watch: Callable[[Tensor], None] = lambda copy: None  # told of each
        for name, module in model.named_modules():
            if isinstance(module, nn.RNNBase):
                raise WorkloadError(
                    f"{name or 'the model'} is a {type(module).__name__}, whose weights lie in one piece: they cannot be kept "
                    "in another precision than they are computed with. Set precision='amp-bf16' instead."
                )
            if not isinstance(module._parameters, _Cast):  # else others have copies of them
                module._parameters = _Cast(module._parameters, self)

    def of(self, parameter: Tensor) -> Tensor:
        made = self.made.get(id(parameter))
        trains = torch.is_grad_enabled() and parameter.requires_grad
        if made is None or (trains and not made.requires_grad):  # what an evaluation made takes no gradient
            self.made[id(parameter)] = parameter.to(self.dtype)
            self.watch(self.made[id(parameter)])
        return self.made[id(parameter)]


class _Cast(dict[str, Any]):
    """A module's parameters: who looks one up computes with its copy, who lists them finds what is kept."""

    def __init__(self, own: Any, copies: Copies) -> None:
        super().__init__(own)
        self._copies = copies

    def __getitem__(self, name: str) -> Any:
        kept = super().__getitem__(name)
        return self._copies.of(kept) if isinstance(kept, Tensor) and kept.is_floating_point() else kept
