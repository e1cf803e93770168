"""What the accelerator computed goes to the host with the way back for its gradients, as a loss that is computed there sends them."""

from __future__ import annotations

from typing import Any

import torch

from foretell.capture.script.placement import Placement


def to_host(place: Placement, tensor: torch.Tensor) -> torch.Tensor:
    """As it comes there; what is computed from it can be trained on, if it could be before."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return place.to_host(tensor)
    return _Crossing.apply(tensor, place)  # type: ignore[no-any-return,no-untyped-call]


class _Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, place: Placement) -> torch.Tensor:
        ctx.place, ctx.learning = place, place.leaving(tensor)
        return place.to_host(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.learning()
        ctx.place.sent(gradients[0], False)
        return ctx.place.fake_like(gradients[0], keep=False), None
