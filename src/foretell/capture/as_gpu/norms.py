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
    """By cuDNN when it has weights and running statistics or is training, of more than rows of features."""
    has_statistics = mean is not None and variance is not None
    has_weights = weight is not None and bias is not None and weight.dtype == torch.float32
    fits_kernel = input.dtype != torch.bfloat16 and input.dim() > 2 and input.numel() // max(input.shape[1], 1) < 2**31
    by_cudnn = cudnn_enabled and has_weights and fits_kernel and (training or has_statistics) and eps >= 1e-5
    kernel = aten.cudnn_batch_norm if by_cudnn else aten.native_batch_norm
    out: Tensor = kernel(input, weight, bias, mean, variance, training, momentum, eps)[0]
    return out


def _rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """One kernel, and two backward; where the weight is of another type, as under autocast, it is taken apart."""
    if weight is None or weight.dtype == input.dtype:
        out: Tensor = _FusedRmsNorm.apply(input, normalized_shape, weight, eps)  # type: ignore[no-untyped-call]
        return out
    wide = input.to(_accumulated(input.dtype))
    mean = wide.pow(2).mean([-i - 1 for i in range(len(normalized_shape))], keepdim=True)
    scale = mean.add_(torch.finfo(wide.dtype).eps if eps is None else eps).rsqrt()
    return ((wide * scale) * weight).type_as(input)


class _FusedRmsNorm(torch.autograd.Function):
    """As torch derives it on a GPU; on a CPU it takes the operator apart before it derives it."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            out: Tensor
            out, divisor = aten._fused_rms_norm(input, normalized_shape, weight, eps)
        ctx.save_for_backward(input, weight, divisor)
        ctx.normalized_shape = normalized_shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        input, weight, divisor = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_input, of_weight = aten._fused_rms_norm_backward(
            gradients[0], input, ctx.normalized_shape, divisor, weight, wanted
        )
        return of_input if wanted[0] else None, None, of_weight if wanted[1] else None, None


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _fused_rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Its output, and what each row was divided by."""
    kept = (*input.shape[: input.dim() - len(normalized_shape)], *[1] * len(normalized_shape))
    return input.new_empty(input.shape), input.new_empty(kept, dtype=_accumulated(input.dtype))


def _batch_norm_shapes(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A GPU keeps the statistics of half types in fp32, a CPU in their own."""
    kept = input.shape[1] if training else 0
    statistics = [input.new_empty(kept, dtype=_accumulated(input.dtype)) for _ in range(2)]
    return torch.empty_like(input), statistics[0], statistics[1]


def _layer_norm_shapes(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    kept = (*input.shape[: input.dim() - len(normalized_shape)], *[1] * len(normalized_shape))
    statistics = [input.new_empty(kept, dtype=_accumulated(input.dtype)) for _ in range(2)]
    return input.new_empty(input.shape), statistics[0], statistics[1]


def _layer_norm_backward_shapes(
    gradient: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    deviation: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """A GPU writes the gradient of its input densely, whatever strides either has."""
    of_input = input.new_empty(input.shape) if wanted[0] else None
    parameters = zip((weight, bias), wanted[1:], strict=True)
    return of_input, *(torch.empty_like(p) if p is not None and wanted else None for p, wanted in parameters)


COMPOSITES: Final[dict[str, Callable[..., Any]]] = {
    "dropout": _dropout,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "rms_norm": _rms_norm,
    "softmax.int": partial(_softmax, aten._softmax),
    "log_softmax.int": partial(_softmax, aten._log_softmax),
}
KERNELS: Final[dict[str, Callable[..., Any]]] = {"_fused_rms_norm": _fused_rms_norm}
SHAPES: Final[dict[str, Callable[..., Any]]] = {
    "native_batch_norm": _batch_norm_shapes,
    "native_layer_norm": _layer_norm_shapes,
    "native_layer_norm_backward": _layer_norm_backward_shapes,
}
