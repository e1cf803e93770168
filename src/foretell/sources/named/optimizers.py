"""Optimizers by name: `adamw`, in a chosen form as `adamw-fused`, on fp32 copies as `adamw-master`; `none` is inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from foretell.errors import SourceError, did_you_mean

MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


class MasterAdamW(torch.optim.Optimizer):
    """Fused AdamW on fp32 copies of bf16 or fp16 parameters, as Megatron, DeepSpeed and nanotron keep them."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "fused": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                master = p.detach().float()
                moments = (torch.zeros_like(master), torch.zeros_like(master))
                self.state[p] = {"master": master, "moments": moments, "step": torch.zeros((), device=p.device)}
        states = [self.state[p] for p in params]
        masters = [state["master"] for state in states]
        first, second = ([state["moments"][i] for state in states] for i in (0, 1))
        torch._fused_adamw_(
            masters, [p.grad.float() for p in params], first, second, [], [state["step"] for state in states],
            lr=self.param_groups[0]["lr"], beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
        torch._foreach_copy_(params, masters)


_FORMS: dict[str, dict[str, bool]] = {
    "": {},  # what torch picks by itself
    "-foreach": {"foreach": True},
    "-forloop": {"foreach": False},
    "-fused": {"fused": True},
}
_ALGORITHMS: dict[str, tuple[Callable[..., torch.optim.Optimizer], tuple[str, ...]]] = {
    "sgd": (partial(torch.optim.SGD, lr=0.1), tuple(_FORMS)),
    "sgd-momentum": (partial(torch.optim.SGD, lr=0.1, momentum=0.9), tuple(_FORMS)),
    "adam": (torch.optim.Adam, tuple(_FORMS)),
    "adamw": (torch.optim.AdamW, tuple(_FORMS)),
    "adagrad": (torch.optim.Adagrad, tuple(_FORMS)),
    "rmsprop": (torch.optim.RMSprop, ("", "-foreach", "-forloop")),
    "adafactor": (torch.optim.Adafactor, ("", "-foreach", "-forloop")),
}
OPTIMIZERS: dict[str, MakeOptimizer | None] = {"none": None} | {
    name + form: partial(algorithm, **_FORMS[form])
    for name, (algorithm, forms) in _ALGORITHMS.items()
    for form in forms
}
OPTIMIZERS["adamw-master"] = MasterAdamW


def optimizer_named(name: str) -> MakeOptimizer | None:
    """What makes the optimizer from parameters; None for `none`, which means inference."""
    if name not in OPTIMIZERS:
        raise SourceError(
            f"unknown optimizer {name!r}. {did_you_mean(name, OPTIMIZERS)}Allowed: {', '.join(OPTIMIZERS)}."
        )
    return OPTIMIZERS[name]
