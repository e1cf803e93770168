"""The last layer and the cross-entropy in one, as Liger's and cut cross entropy's kernels have it: no logits in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class _FusedLoss(torch.autograd.Function):
    """Gradients are made with the loss, for a few rows at a time; the backward pass scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        rows = _rows(hidden.shape[0], hidden.shape[1], weight.shape[0])
        for_hidden = torch.empty_like(hidden)
        for_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        total = hidden.new_zeros((), dtype=torch.float32)
        for part, label, out in zip(hidden.split(rows), labels.split(rows), for_hidden.split(rows), strict=True):
            logits = part @ weight.t()
            logits = F.log_softmax(logits, -1)
            total = total - logits.gather(-1, label.unsqueeze(-1)).sum()
            gradient = logits.exp()
            out.copy_(gradient @ weight)
            if for_weight is not None:
                for_weight.addmm_(gradient.t(), part)
        ctx.made = for_hidden, for_weight
        return total / hidden.shape[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        for_hidden, for_weight = ctx.made
        scale = gradient.to(for_hidden.dtype)
        return for_hidden.mul_(scale), None if for_weight is None else for_weight.mul_(scale), None


def _rows(tokens: int, width: int, vocabulary: int) -> int:
    """Tokens of a piece, so that its logits are about as many numbers as the hidden states: a power of two."""
    pieces = math.ceil(vocabulary / width)
    return 1 << math.ceil(math.log2(max(tokens / pieces, 1)))


def fused_linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of tokens, from what the last layer reads."""
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    loss: Tensor = _FusedLoss.apply(hidden, weight, labels)  # type: ignore[no-untyped-call]
    return loss
