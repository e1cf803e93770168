"""Sums over the edges of graphs: torch_scatter's functions as torch's own scatters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor


def _scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    if index.dim() < src.dim():
        shape = [1] * src.dim()
        shape[dim] = -1
        index = index.view(shape) if index.dim() == 1 else index.view(*index.shape, *[1] * (src.dim() - index.dim()))
    index = index.expand_as(src)
    size = dim_size if dim_size is not None else int(index.max().item()) + 1 if index.numel() else 0
    sizes = list(src.shape)
    sizes[dim] = size
    made = src.new_zeros(sizes) if out is None else out
    if reduce in ("sum", "add"):
        return made.scatter_add(dim, index, src)
    return made.scatter_reduce(
        dim, index, src, reduce={"max": "amax", "min": "amin", "mul": "prod"}.get(reduce, reduce)
    )


def _reducing(kind: str) -> Callable[..., Any]:
    def scatter(
        src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None,
    ) -> Any:  # fmt: skip
        made = _scatter(src, index, dim, out, dim_size, kind)
        return (made, torch.zeros_like(made, dtype=torch.int64)) if kind in ("max", "min") else made

    return scatter


def _softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    largest = _scatter(src, index, dim, None, dim_size, "max")
    shifted = (src - largest.index_select(dim, index)).exp()
    return shifted / _scatter(shifted, index, dim, None, dim_size).index_select(dim, index)


KNOWN: Final[Mapping[str, Any]] = {
    "torch_scatter.scatter": _scatter,
    **{f"torch_scatter.scatter_{kind}": _reducing(kind) for kind in ("sum", "add", "mean", "mul", "max", "min")},
    "torch_scatter.scatter_softmax": _softmax,
    "torch_scatter.composite.scatter_softmax": _softmax,
}
