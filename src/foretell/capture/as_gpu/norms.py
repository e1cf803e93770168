"""Normalization, softmax and dropout, in the kernels that a GPU runs them in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

aten = torch.ops.aten


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if train and 0 < p < 1 and input.numel():
        out: Tensor = aten.native_dropout(input, p, train)[0]
        return out
    return input * torch.zeros(()) if train and p == 1 else input


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    # Only the CPU kernel reads channels-last; a GPU copies first.
    samples, channels = input.shape[:2]
    area = input.numel() // max(samples * channels, 1)
    dense = (t.contiguous() if t is not None else None for t in (input, weight, bias))
    out: Tensor = aten.native_group_norm(*dense, samples, channels, area, num_groups, eps)[0]
    return out


def _softmax(kernel: Any, input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    # A GPU's kernel reads fp16 and writes fp32 by itself; anything else is converted first.
    converts = input.dtype == torch.float16 and dtype == torch.float32
    out: Tensor = kernel(input if converts or dtype is None else input.to(dtype), dim, converts)
    return out


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """By cuDNN when it has weights and running statistics or is training."""
    has_statistics = mean is not None and variance is not None
    has_weights = weight is not None and bias is not None and weight.dtype == torch.float32
    fits_kernel = input.dtype != torch.bfloat16 and input.dim() >= 2 and input.numel() // max(input.shape[1], 1) < 2**31
    wanted = (training or (has_statistics and input.dim() > 2)) and eps >= 1e-5
    by_cudnn = cudnn_enabled and has_weights and fits_kernel and wanted
    kernel = aten.cudnn_batch_norm if by_cudnn else aten.native_batch_norm
    out: Tensor = kernel(input, weight, bias, mean, variance, training, momentum, eps)[0]
    return out


COMPOSITES: Final[dict[str, Callable[..., Any]]] = {
    "dropout": _dropout,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "softmax.int": partial(_softmax, aten._softmax),
    "log_softmax.int": partial(_softmax, aten._log_softmax),
}
